#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class DeepseekRouterKind final : public LinearRouter {
 public:
  DeepseekRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : LinearRouter(moe, sizes, context, /*has_bias=*/false), options_(moe.router().deepseek()) {}

 private:
  at::Tensor Choose(const at::Tensor& logits, const RouterInput&, int64_t k) override {
    if (!options_.has_group_limit()) return SelectTopK(logits, k);
    return SelectTopK(LimitToGroups(at::softmax(logits.detach(), 1), options_.group_limit()), k);
  }

  const pb::DeepseekRouter options_;
};

}  // namespace

std::unique_ptr<Router> MakeDeepseekRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                           const RouterContext& context) {
  return std::make_unique<DeepseekRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
