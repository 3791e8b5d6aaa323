#include "common/spec/router_accounting.h"

#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

RouterSize Linear(uint64_t d, uint64_t experts, bool has_bias) {
  return {.params = d * experts + (has_bias ? experts : 0), .flops = 2 * d * experts};
}

RouterSize OfHyperRouter(const pb::HyperRouter& router, uint64_t d, uint64_t experts) {
  const uint64_t width = router.hyper_size();
  const uint64_t out = experts * (d + 1);
  const uint64_t network = width * d + width + out * width + out;
  // The gate is made once per pass, not per token.
  RouterSize size{.params = d, .flops = 2 * d * experts};
  (router.shared_hypernet() ? size.params_shared : size.params) += network;
  return size;
}

RouterSize OfXmoe(const pb::XmoeRouter& router, uint64_t d, uint64_t experts) {
  const uint64_t p = router.proj_dim();
  const uint64_t temperature =
      router.temperature() == pb::XMOE_TEMPERATURE_LEARNED_EXP_CLAMP ? 1 : 0;
  return {.params = p * d + experts * p + temperature, .flops = 2 * (d * p + p * experts)};
}

}  // namespace

RouterSize SizeOfRouter(const pb::MoeSpec& moe, uint64_t d_model) {
  const uint64_t experts = moe.experts();
  const pb::RouterSpec& router = moe.router();
  switch (router.kind_case()) {
    case pb::RouterSpec::kSmoe:
    case pb::RouterSpec::kSmoeDropout:
    case pb::RouterSpec::kSwitch:
    case pb::RouterSpec::kGshard:
      return Linear(d_model, experts, /*has_bias=*/true);
    case pb::RouterSpec::kHyperRouter:
      return OfHyperRouter(router.hyper_router(), d_model, experts);
    case pb::RouterSpec::kXmoe:
      return OfXmoe(router.xmoe(), d_model, experts);
    case pb::RouterSpec::kRandomFixed:
      if (router.random_fixed().mode() != pb::RANDOM_FIXED_MODE_FROZEN_ROUTER) return {};
      return Linear(d_model, experts,
                    router.random_fixed().score() != pb::RANDOM_FIXED_SCORE_COSINE);
    case pb::RouterSpec::kNoisyTopk: {
      RouterSize size = Linear(d_model, experts, /*has_bias=*/false);
      if (router.noise().kind() == pb::NOISE_KIND_GAUSSIAN_LEARNED) size.params *= 2;
      return size;
    }
    case pb::RouterSpec::kExpertChoice:
    case pb::RouterSpec::kBase:
    case pb::RouterSpec::kSinkhorn:
    case pb::RouterSpec::kBiasBalanced:
    case pb::RouterSpec::kDeepseek:
    case pb::RouterSpec::kMixtral:
    case pb::RouterSpec::kOlmoe:
    case pb::RouterSpec::kQwen3:
      return Linear(d_model, experts, /*has_bias=*/false);
    default:
      return {};
  }
}

}  // namespace switchyard::spec
