#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class SmoeDropoutRouter final : public LinearRouter {
 public:
  SmoeDropoutRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/true,
                     {.std = context.init_std, .is_frozen = true}),
        options_(moe.router().smoe_dropout()) {}

 private:
  int64_t ExpertsPerToken(const RouterInput& input) const override {
    return input.is_training ? ExpertsAt(options_.schedule(), sizes().top_k, input.step)
                             : LinearRouter::ExpertsPerToken(input);
  }

  at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) override {
    const at::Tensor logits = LinearRouter::Scores(hidden, input);
    const double rate = options_.logit_dropout();
    if (!input.is_training || rate <= 0) return logits;
    const at::Tensor drawn = TokenUniform(input.random.With("logit_dropout"), input.tokens,
                                          sizes().experts, logits.scalar_type());
    return logits.masked_fill(drawn.lt(rate), 0.0) / (1 - rate);
  }

  const pb::SmoeDropoutRouter options_;
};

}  // namespace

std::unique_ptr<Router> MakeSmoeDropoutRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                              const RouterContext& context) {
  return std::make_unique<SmoeDropoutRouter>(moe, sizes, context);
}

}  // namespace switchyard::model
