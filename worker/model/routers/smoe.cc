#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class SmoeRouter final : public LinearRouter {
 public:
  SmoeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/true),
        averages_in_evaluation_(moe.router().smoe().dense_eval()),
        average_weight_(RoutedScale(moe) / static_cast<double>(sizes.experts)) {}

  Routing Route(const RouterInput& input) override {
    if (input.is_training || !averages_in_evaluation_) return LinearRouter::Route(input);
    // Every expert with weight 1 / E, whatever the scores; these are still reported.
    RouterInput all = input;
    all.top_k = static_cast<uint32_t>(sizes().experts);
    Routing routing = LinearRouter::Route(all);
    const int64_t rows = input.hidden.size(0), experts = sizes().experts;
    routing.expert_ids =
        at::arange(experts, routing.expert_ids.options()).expand({rows, experts}).contiguous();
    routing.weights = at::full({rows, experts}, average_weight_, routing.logits.options());
    ClearPadding(input.tokens, &routing);
    return routing;
  }

 private:
  const bool averages_in_evaluation_;
  const double average_weight_;
};

}  // namespace

std::unique_ptr<Router> MakeSmoeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context) {
  return std::make_unique<SmoeRouter>(moe, sizes, context);
}

}  // namespace switchyard::model
