#pragma once

#include <string>
#include <vector>

#include "client/commands/context.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class PlanSweepResponse;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::client {

// Reads and checks a sweep file ("-": standard input) with the library that the coordinator uses.
// All faults go to standard error, one a line; kInvalidArgument says how many there were.
Status ReadSweepFile(const Context& context, const std::string& file,
                     const std::vector<std::string>& overrides, v1::SweepSpec* spec);

// What PlanSweep answers, worked out here: without reused runs and without a cost estimate, which
// only the coordinator knows. `cells_max` 0: all.
v1::PlanSweepResponse PlanOffline(const v1::SweepSpec& spec, uint64_t cells_max);

// "demo: 6 cells, 18 runs (3 reused), hash 0123456789ab".
std::string PlanSummary(const v1::SweepSpec& spec, const v1::PlanSweepResponse& plan);

// A row per cell.
Listing PlanListing(const v1::PlanSweepResponse& plan);

}  // namespace switchyard::client
