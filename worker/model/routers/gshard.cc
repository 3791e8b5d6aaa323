#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class GshardRouterKind final : public LinearRouter {
 public:
  GshardRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/true), options_(moe.router().gshard()) {}

 private:
  void Finish(const RouterInput& input, Routing* routing) override {
    const bool is_random =
        options_.random_second() && (input.is_training || options_.fastmoe_compat());
    if (!is_random || routing->expert_ids.size(1) < 2) return;
    // Kept with probability 2 w2; the first weight stays as it is.
    const at::Tensor drawn =
        TokenUniform(input.random.With("second"), input.tokens, 1, routing->weights.scalar_type());
    const at::Tensor given_up = (routing->weights.detach().narrow(1, 1, 1) * 2).lt(drawn);
    const at::Tensor mask = at::cat({at::zeros_like(given_up), given_up}, 1);
    routing->expert_ids = routing->expert_ids.masked_fill(mask, -1);
    routing->weights = routing->weights.masked_fill(mask, 0.0);
    routing->has_open_slots = true;
  }

  const pb::GshardRouter options_;
};

}  // namespace

std::unique_ptr<Router> MakeGshardRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                         const RouterContext& context) {
  return std::make_unique<GshardRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
