#pragma once

#include <string>
#include <vector>

#include "common/spec/fault.h"
#include "common/spec/space.h"

namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::spec {

// Lays at `match.vary` of `run` the whole number whose quantity is nearest to that of `other` (both
// as written, without defaults), the smaller of two that are equally near. `to` is how the other
// one is called in faults. A fault: the quantity does not depend on the number, does not rise with
// it, or stays further apart than the tolerance.
void SolveMatch(const Match& match, const std::string& to, const v1::RunSpec& other,
                v1::RunSpec* run, std::vector<Fault>* faults);

}  // namespace switchyard::spec
