#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class BiasBalancedRouterKind final : public LinearRouter {
 public:
  BiasBalancedRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes,
                         const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/false),
        options_(moe.router().bias_balanced()),
        balance_(context.store.AddBuffer(context.gate_prefix + "e_score_correction_bias",
                                         at::zeros({sizes.experts}, at::kFloat))),
        counts_(at::zeros({sizes.experts + 1}, at::kDouble)) {}

  Routing Route(const RouterInput& input) override {
    Routing routing = LinearRouter::Route(input);
    if (input.counts) Count(routing.expert_ids);
    routing.extras.emplace_back("selection_bias_range", balance_.max() - balance_.min());
    return routing;
  }

  void EndUpdate(bool is_applied) override {
    const at::Tensor counts = counts_.narrow(0, 0, sizes().experts);
    if (is_applied && counts.sum().item<double>() > 0) {
      balance_.add_((counts.mean() - counts).sign().to(balance_.device(), balance_.scalar_type()),
                    options_.bias_update_rate());
    }
    counts_.zero_();
  }

 private:
  at::Tensor Choose(const at::Tensor& logits, const RouterInput&, int64_t k) override {
    const at::Tensor scores = options_.score() == pb::SCORE_FUNCTION_SOFTMAX
                                  ? at::softmax(logits.detach(), 1)
                                  : at::sigmoid(logits.detach());
    const at::Tensor biased = scores + balance_;
    return SelectTopK(
        options_.has_group_limit() ? LimitToGroups(biased, options_.group_limit()) : biased, k);
  }

  // Assignments of this update's passes; what is not routed goes to the last place.
  void Count(const at::Tensor& expert_ids) {
    const at::Tensor ids = expert_ids.reshape({-1}).cpu();
    const at::Tensor index = ids.masked_fill(ids.lt(0), sizes().experts);
    counts_.index_add_(0, index, at::ones_like(index, at::kDouble));
  }

  const pb::BiasBalancedRouter options_;
  at::Tensor balance_;  // [E] float32
  at::Tensor counts_;   // [E + 1] float64
};

}  // namespace

std::unique_ptr<Router> MakeBiasBalancedRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                               const RouterContext& context) {
  return std::make_unique<BiasBalancedRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
