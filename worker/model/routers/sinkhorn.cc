#include "worker/model/routers/sinkhorn.h"

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class SinkhornRouterKind final : public LinearRouter {
 public:
  SinkhornRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/false), options_(moe.router().sinkhorn()) {}

 private:
  at::Tensor Choose(const at::Tensor& logits, const RouterInput& input, int64_t k) override {
    if (!input.is_training) return SelectTopK(logits, k);
    const at::Tensor real = input.tokens.valid.nonzero().squeeze(1);
    const at::Tensor plan = SinkhornPlan(logits.detach().index_select(0, real),
                                         options_.iterations_max(), options_.tolerance());
    return at::zeros({logits.size(0), k}, real.options()).index_copy(0, real, SelectTopK(plan, k));
  }

  const pb::SinkhornRouter options_;
};

}  // namespace

at::Tensor SinkhornPlan(const at::Tensor& logits, int64_t iterations_max, double tolerance) {
  const int64_t rows = logits.size(0), columns = logits.size(1);
  if (rows == 0) return logits.detach();
  constexpr double kTiny = 1e-8;
  // The row's largest score moves into d0 and keeps exp finite.
  const at::Tensor cost = (logits.detach() - logits.detach().amax(1, /*keepdim=*/true)).exp();
  at::Tensor d0 = at::ones({rows}, cost.options());
  at::Tensor d1 = at::ones({columns}, cost.options());
  for (int64_t i = 0; i < iterations_max; ++i) {
    d0 = (at::mv(cost, d1) + kTiny).reciprocal() / static_cast<double>(rows);
    const at::Tensor next =
        (at::mv(cost.t(), d0) + kTiny).reciprocal() / static_cast<double>(columns);
    const double change = (next - d1).abs().mean().item<double>();
    d1 = next;
    if (change < tolerance) break;
  }
  return d0.unsqueeze(1) * cost * d1.unsqueeze(0);
}

std::unique_ptr<Router> MakeSinkhornRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                           const RouterContext& context) {
  return std::make_unique<SinkhornRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
