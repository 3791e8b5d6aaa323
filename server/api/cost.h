#pragma once

#include <string>

#include "common/base/status.h"
#include "server/store/store.h"

namespace switchyard::v1 {
class PlanSweepResponse;
}

namespace switchyard::api {

// Slot hours of a plan's new runs, from what its listed cells compute and how fast the project's
// newest successful runs were: the median over runs of active FLOPs per slot second. 0: there are
// none, or nothing is new. A rough number: it knows nothing of the machine that the runs will meet.
Result<double> EstimateSlotHours(store::ReadStore& store, const std::string& project,
                                 const v1::PlanSweepResponse& plan);

}  // namespace switchyard::api
