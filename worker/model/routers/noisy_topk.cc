#include <cmath>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// FastMoE reads the fan-in of its [D, E] matrices as E.
Init InitOf(const pb::MoeSpec& moe, const RouterSizes& sizes) {
  if (moe.router().noisy_topk().init() == pb::NOISY_INIT_ZEROS) return {};
  return {.uniform = 1.0 / std::sqrt(static_cast<double>(sizes.experts))};
}

class NoisyTopkRouterKind final : public LinearRouter {
 public:
  NoisyTopkRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes,
                      const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/false, InitOf(moe, sizes)) {
    if (moe.router().noise().kind() != pb::NOISE_KIND_GAUSSIAN_LEARNED) return;
    noise_weight_ = context.store.Add(context.gate_prefix + "noise_weight",
                                      {sizes.experts, sizes.d_model}, InitOf(moe, sizes));
  }

 private:
  at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) override {
    clean_ = LinearRouter::Scores(hidden, input);
    if (!input.is_training || !noise_weight_.defined()) return clean_;
    deviation_ = at::softplus(at::linear(hidden, noise_weight_)) + 1e-2;
    const at::Tensor normal = TokenNormal(input.random.With("learned"), input.tokens,
                                          sizes().experts, clean_.scalar_type());
    return clean_ + normal * deviation_;
  }

  // Probability that an expert is chosen when its own noise is drawn anew (Shazeer et al., appendix
  // A).
  void Finish(const RouterInput& input, Routing* routing) override {
    const at::Tensor clean = std::exchange(clean_, {});
    const at::Tensor deviation = std::exchange(deviation_, {});
    if (!input.is_training || !deviation.defined()) return;
    const int64_t k = routing->expert_ids.size(1), experts = sizes().experts;
    if (k == experts) {
      routing->soft_load = at::ones_like(clean);
      return;
    }
    const at::Tensor sorted = std::get<0>(routing->logits.topk(k + 1, 1));
    const at::Tensor last_in = sorted.narrow(1, k - 1, 1), first_out = sorted.narrow(1, k, 1);
    const at::Tensor is_in = at::zeros_like(clean, at::kBool).scatter(1, routing->expert_ids, true);
    const at::Tensor threshold = at::where(is_in, first_out, last_in);
    routing->soft_load = at::special_ndtr((clean - threshold) / deviation);
  }

  at::Tensor noise_weight_;       // [E, D] or undefined
  at::Tensor clean_, deviation_;  // [N, E] of the pass under way
};

}  // namespace

std::unique_ptr<Router> MakeNoisyTopkRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                            const RouterContext& context) {
  return std::make_unique<NoisyTopkRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
