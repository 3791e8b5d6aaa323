#include <c10/util/Exception.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

GateWeights FromProto(pb::GateNorm norm, GateWeights otherwise) {
  switch (norm) {
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
    case pb::GATE_NORM_UNSPECIFIED:
    case pb::GateNorm_INT_MIN_SENTINEL_DO_NOT_USE_:
    case pb::GateNorm_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return otherwise;
}

}  // namespace

std::unique_ptr<Router> MakeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                   const RouterContext& context) {
  const pb::RouterSpec& router = moe.router();
  TORCH_CHECK(sizes.experts > 0 && sizes.top_k > 0 && sizes.top_k <= sizes.experts, "top_k ",
              sizes.top_k, " of ", sizes.experts, " experts");
  switch (router.kind_case()) {
    case pb::RouterSpec::kSmoe: {
      const GateWeights norm = FromProto(router.gate_norm(), GateWeights::kSoftmaxTopk);
      TORCH_CHECK(norm == GateWeights::kSoftmaxFull || sizes.top_k > 1 || sizes.experts == 1 ||
                      moe.allow_constant_gate(),
                  "model.moe: top_k 1 with this gate_norm makes the only weight 1, so that the "
                  "router gets no gradient; use softmax_full or set allow_constant_gate");
      return MakeSmoeRouter(sizes, norm, context);
    }
    case pb::RouterSpec::kHash: {
      const GateWeights norm = FromProto(router.gate_norm(), GateWeights::kUniform);
      TORCH_CHECK(norm == GateWeights::kUniform,
                  "model.moe.router.gate_norm: hash has no scores, only uniform is possible");
      return MakeHashRouter(sizes,
                            {.is_balanced = router.hash().balanced(),
                             .is_per_layer = router.hash().per_layer_table()},
                            context);
    }
    default:
      break;
  }
  TORCH_CHECK(false, "model.moe.router: no router of this kind routes tokens");
}

}  // namespace switchyard::model
