#pragma once

#include <string_view>
#include <vector>

#include "common/spec/fault.h"

namespace switchyard::v1 {
class RunSpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

// Faults of a RunSpec with all defaults filled in (canonical.h). Presence, ranges, cross-field
// rules.
std::vector<Fault> ValidateRun(const v1::RunSpec& run);

// The part of ValidateRun about kinds, checkpoints, jobs, guards and ranks.
std::vector<Fault> CheckKind(const v1::RunSpec& run);

// Faults of the sweep's own fields: names, axes (unknown path, value given twice, overlapping
// paths, values of the wrong type), seeds, objective, policy, size (at most 1,000,000 runs, by
// checked arithmetic). Cells are validated one by one through SweepPlan.
std::vector<Fault> ValidateSweep(const v1::SweepSpec& sweep);

// SPLIT/METRIC with the split train, valid or test, and a metric of a-z, 0-9, '_', '/', '.', '-'.
bool IsSeriesName(std::string_view name);

// [a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])? without "..".
bool IsValidName(std::string_view name);

}  // namespace switchyard::spec
