#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/spec/fault.h"

namespace switchyard::v1 {
class CompareSpec;
class ObjectiveSpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

class SweepPlan;

// Faults of the report section. `columns`: axes of each stage by name; of a sweep without stages,
// under the empty name. A stage that is not there (its parents are another sweep's) takes any axis.
void CheckReport(const v1::SweepSpec& sweep,
                 const std::map<std::string, std::vector<std::string>>& columns,
                 std::vector<Fault>* faults);

// Writes every default of a comparison out; `metric` is its stage's objective.
void FillCompareDefaults(const std::string& metric, v1::CompareSpec* compare);

// The values that the axis `by` has among the cells of the plan, in order of first appearance.
// Where cells are drawn, those that it can have.
std::vector<std::string> ArmsOf(const SweepPlan& plan, const std::string& by);

// What is registered at submission: lower-case hex SHA-256 of a comparison with its defaults, the
// resolved objective, the arms and the seeds. Another hash later makes a verdict exploratory.
std::string RegistrationHash(const v1::CompareSpec& compare, const v1::ObjectiveSpec& objective,
                             const std::vector<std::string>& arms,
                             const std::vector<uint64_t>& seeds);

}  // namespace switchyard::spec
