#pragma once

#include <vector>

#include "common/base/status.h"
#include "common/spec/fault.h"
#include "common/spec/space.h"

namespace switchyard::spec {

class SweepLayout;

// True when the space or one of its alternatives has constraints.
bool HasConstraints(const Space& space);

// False when a constraint that applies to the cell is false for it. A constraint applies where its
// alternative is chosen and the cell, with its defaults filled in, has everything that it names. A
// cell that cannot be laid is allowed: what is wrong with it is said elsewhere. kInvalidArgument,
// with a fault, when the types of a constraint do not fit.
Result<bool> IsAllowed(const SweepLayout& layout, const Point& point, std::vector<Fault>* faults);

}  // namespace switchyard::spec
