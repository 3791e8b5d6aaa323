#pragma once

#include <vector>

#include "common/spec/fault.h"

namespace switchyard::v1 {
class PolicySpec;
}

namespace switchyard::spec {

// Writes every default of the policy out, as the comments of spec.proto state them. Idempotent.
void FillPolicyDefaults(v1::PolicySpec* policy);

// Faults of a policy, with or without its defaults.
std::vector<Fault> ValidatePolicy(const v1::PolicySpec& policy);

}  // namespace switchyard::spec
