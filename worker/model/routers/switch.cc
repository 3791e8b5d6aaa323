#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace switchyard::model {

std::unique_ptr<Router> MakeSwitchRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                         const RouterContext& context) {
  // Noise, norm and capacity are options that every linear router has; their defaults differ.
  return std::make_unique<LinearRouter>(moe, sizes, context, /*has_bias=*/true);
}

}  // namespace switchyard::model
