#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "worker/model/routers/router.h"

namespace switchyard::v1 {
class CapacitySpec;
}

namespace switchyard::model {

// What a limit per expert did to one routing.
struct CapacityOutcome {
  int64_t capacity = 0;
  int64_t dropped = 0;   // assignments
  int64_t load_max = 0;  // assignments to the fullest expert, before dropping
};

// Takes assignments from experts that have more than max(min, ceil(N K / E factor)), N all rows:
// ids become -1, weights 0, the others stay as they are. Padding takes no place. The phase's factor
// must be given.
CapacityOutcome ApplyCapacity(const v1::CapacitySpec& spec, bool is_training, int64_t experts,
                              const TokenFacts& tokens, Routing* routing);

}  // namespace switchyard::model
