#include <c10/util/Exception.h>

#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {

GateWeights GateWeightsFrom(int proto_gate_norm) {
  switch (proto_gate_norm) {
    case pb::GATE_NORM_SOFTMAX_TOPK:
      return GateWeights::kSoftmaxTopk;
    case pb::GATE_NORM_SOFTMAX_FULL:
      return GateWeights::kSoftmaxFull;
    case pb::GATE_NORM_SOFTMAX_FULL_RENORM:
      return GateWeights::kSoftmaxFullRenorm;
    case pb::GATE_NORM_UNIFORM:
      return GateWeights::kUniform;
    case pb::GATE_NORM_SIGMOID:
      return GateWeights::kSigmoid;
    case pb::GATE_NORM_SIGMOID_RENORM:
      return GateWeights::kSigmoidRenorm;
    default:
      break;
  }
  TORCH_CHECK(false, "model.moe.router.gate_norm: unspecified; defaults were not filled in");
}

bool IsSigmoid(GateWeights norm) {
  return norm == GateWeights::kSigmoid || norm == GateWeights::kSigmoidRenorm;
}

std::unique_ptr<Router> MakeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                   const RouterContext& context) {
  TORCH_CHECK(sizes.experts > 0 && sizes.top_k > 0 && sizes.top_k <= sizes.experts, "top_k ",
              sizes.top_k, " of ", sizes.experts, " experts");
  const pb::GateNorm norm = moe.router().gate_norm();
  TORCH_CHECK(norm != pb::GATE_NORM_UNSPECIFIED,
              "model.moe.router.gate_norm: unspecified; defaults were not filled in");
  // Validation refuses it before (common/spec); a spec that came another way must not train a
  // router that gets no gradient.
  const bool is_constant =
      sizes.top_k == 1 && sizes.experts > 1 &&
      (norm == pb::GATE_NORM_SOFTMAX_TOPK || norm == pb::GATE_NORM_SOFTMAX_FULL_RENORM);
  TORCH_CHECK(!is_constant || moe.allow_constant_gate() || !spec::PropertiesOf(moe).is_trainable ||
                  moe.router().has_hyper_router(),
              "model.moe: top_k 1 with this gate_norm makes the only weight 1, so that the router "
              "gets no gradient; use softmax_full or set allow_constant_gate");
  switch (moe.router().kind_case()) {
    case pb::RouterSpec::kSmoe:
      return MakeSmoeRouter(moe, sizes, context);
    case pb::RouterSpec::kHash:
      return MakeHashRouter(moe, sizes, context);
    case pb::RouterSpec::kSmoeDropout:
      return MakeSmoeDropoutRouter(moe, sizes, context);
    case pb::RouterSpec::kHyperRouter:
      return MakeHyperRouter(moe, sizes, context);
    case pb::RouterSpec::kRmoe:
      return MakeRmoeRouter(moe, sizes, context);
    case pb::RouterSpec::kMcf:
      return MakeMcfRouter(moe, sizes, context);
    case pb::RouterSpec::kCosine:
      return MakeCosineRouter(moe, sizes, context);
    case pb::RouterSpec::kXmoe:
      return MakeXmoeRouter(moe, sizes, context);
    case pb::RouterSpec::kRandomFixed:
      return MakeRandomFixedRouter(moe, sizes, context);
    case pb::RouterSpec::kSwitch:
      return MakeSwitchRouter(moe, sizes, context);
    case pb::RouterSpec::kGshard:
      return MakeGshardRouter(moe, sizes, context);
    case pb::RouterSpec::kNoisyTopk:
      return MakeNoisyTopkRouter(moe, sizes, context);
    case pb::RouterSpec::kExpertChoice:
      return MakeExpertChoiceRouter(moe, sizes, context);
    case pb::RouterSpec::kBase:
      return MakeBaseRouter(moe, sizes, context);
    case pb::RouterSpec::kSinkhorn:
      return MakeSinkhornRouter(moe, sizes, context);
    case pb::RouterSpec::kBiasBalanced:
      return MakeBiasBalancedRouter(moe, sizes, context);
    case pb::RouterSpec::kDeepseek:
      return MakeDeepseekRouter(moe, sizes, context);
    case pb::RouterSpec::kMixtral:
    case pb::RouterSpec::kOlmoe:
    case pb::RouterSpec::kQwen3:
      return MakePlainRouter(moe, sizes, context);
    default:
      break;
  }
  TORCH_CHECK(false, "model.moe.router: no router of this kind routes tokens");
}

}  // namespace switchyard::model
