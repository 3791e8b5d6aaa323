#include <vector>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/balanced_assignment.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

constexpr double kCentroidGain = 0.1;

class BaseRouterKind final : public LinearRouter {
 public:
  BaseRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/false, {.orthogonal = kCentroidGain}) {}

 private:
  at::Tensor Choose(const at::Tensor& logits, const RouterInput& input, int64_t k) override {
    if (!input.is_training) return SelectTopK(logits, k);
    const at::Tensor scores = logits.detach().to(at::kCPU, at::kDouble).contiguous();
    const at::Tensor valid = input.tokens.valid.cpu().contiguous();
    const int64_t rows = scores.size(0), experts = scores.size(1);
    const auto* value = scores.const_data_ptr<double>();
    const auto* is_valid = valid.const_data_ptr<bool>();
    std::vector<int64_t> real;
    std::vector<double> of_real;
    for (int64_t n = 0; n < rows; ++n) {
      if (!is_valid[n]) continue;
      real.push_back(n);
      of_real.insert(of_real.end(), value + n * experts, value + (n + 1) * experts);
    }
    const std::vector<int64_t> columns =
        AssignBalanced(of_real, static_cast<int64_t>(real.size()), experts);
    at::Tensor ids = at::zeros({rows, 1}, at::kLong);
    auto* out = ids.data_ptr<int64_t>();
    for (size_t i = 0; i < real.size(); ++i) out[real[i]] = columns[i];
    return ids.to(logits.device());
  }
};

}  // namespace

std::unique_ptr<Router> MakeBaseRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context) {
  return std::make_unique<BaseRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
