#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace switchyard::model {

std::unique_ptr<Router> MakePlainRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                        const RouterContext& context) {
  return std::make_unique<LinearRouter>(moe, sizes, context, /*has_bias=*/false);
}

}  // namespace switchyard::model
