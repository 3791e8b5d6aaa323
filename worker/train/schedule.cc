#include "worker/train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace switchyard::train {
namespace {

double RateAt(const LrSchedule& schedule, uint64_t t) {
  if (t < schedule.warmup_steps) {
    return schedule.peak * static_cast<double>(t) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.decay == DecayKind::kConstant || schedule.steps_max == 0) return schedule.peak;
  const double part =
      std::min(1.0, static_cast<double>(t) / static_cast<double>(schedule.steps_max));
  return 0.5 * schedule.peak * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace

double LrSchedule::Rate(uint64_t n) const {
  if (!is_txl_compatible) return RateAt(*this, n);
  return n <= 1 ? peak : RateAt(*this, n - 1);
}

}  // namespace switchyard::train
