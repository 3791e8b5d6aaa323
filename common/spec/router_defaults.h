#pragma once

#include <cstdint>

namespace switchyard::v1 {
class MoeSpec;
}

namespace switchyard::spec {

// Fills in what the router's kind leaves open in `moe` (top_k, gate norm, noise, the kind's
// options, its losses), as the comments of spec.proto state. Only what the kind uses is written
// out. `steps`: updates of the run, 0 when they are not known yet. Not for dense.
void FillRouterDefaults(uint64_t steps, v1::MoeSpec* moe);

}  // namespace switchyard::spec
