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

// Faults of the sweep's own fields: names, axes (unknown path, value given twice, overlapping
// paths, values of the wrong type), seeds, objective, policy, size (at most 1,000,000 runs, by
// checked arithmetic). Cells are validated one by one through SweepPlan.
std::vector<Fault> ValidateSweep(const v1::SweepSpec& sweep);

// [a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])? without "..".
bool IsValidName(std::string_view name);

}  // namespace switchyard::spec
