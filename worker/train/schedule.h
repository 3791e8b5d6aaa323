#pragma once

#include <cstdint>

namespace switchyard::train {

enum class DecayKind { kConstant, kCosine };

// The learning rate as a function of the update's number, one tick per update whatever the number
// of micro-batches (models.md 2.3). Immutable.
struct LrSchedule {
  double peak = 0;
  DecayKind decay = DecayKind::kConstant;
  uint64_t warmup_steps = 0;
  uint64_t steps_max = 0;  // the length of the cosine
  // The reference Transformer-XL sets the rate after each update: update 1 runs at the peak,
  // update n at lr(n - 1).
  bool is_txl_compatible = false;

  // Rate of update `n`, counted from 1. While n < warmup_steps: peak n / warmup_steps; then the
  // peak, or peak (1 + cos(pi n / steps_max)) / 2, whose clock the warm-up does not shift.
  double Rate(uint64_t n) const;
};

}  // namespace switchyard::train
