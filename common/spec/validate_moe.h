#pragma once

#include <vector>

#include "common/spec/fault.h"

namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::spec {

// The faults of `run.model.moe` (defaults filled in, a backbone is set): layers, experts,
// the router's kind with its options, gate norm, noise, capacity, losses, causality.
std::vector<Fault> CheckMoe(const v1::RunSpec& run);

}  // namespace switchyard::spec
