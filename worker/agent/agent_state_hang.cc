#include "worker/agent/agent_state_hang.h"

#include <algorithm>

#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

// Of the newest step in the mean: about the last ten count.
constexpr double kWeight = 0.2;
constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

void HangWatch::Observe(const Progress& progress, uint64_t now_ns) {
  if (!progress.has_line || (changed_ns_ != 0 && progress == last_)) return;
  // An evaluation inside the interval would count as a very long step.
  if (last_.has_step && progress.has_step && !last_.in_phase && progress.step > last_.step &&
      progress.ms >= last_.ms) {
    const double mean = static_cast<double>(progress.ms - last_.ms) /
                        static_cast<double>(progress.step - last_.step);
    mean_step_ms_ = mean_step_ms_ == 0 ? mean : mean_step_ms_ + kWeight * (mean - mean_step_ms_);
  }
  last_ = progress;
  changed_ns_ = now_ns;
}

uint64_t HangWatch::LimitNs() const {
  if (!last_.has_step) return kFirstStepNs;
  const double steps_ms = mean_step_ms_ * static_cast<double>(kEwmaFactor);
  // A day is beyond every lease that this watch could beat.
  constexpr double kDayMs = 86'400'000;
  return std::max(kLeastNs, static_cast<uint64_t>(std::min(steps_ms, kDayMs)) * kNsPerMs);
}

std::optional<uint64_t> HangWatch::due_ns() const {
  if (changed_ns_ == 0 || last_.in_phase) return std::nullopt;
  return changed_ns_ + LimitNs();
}

std::optional<std::string> HangWatch::Check(uint64_t now_ns) const {
  const std::optional<uint64_t> due = due_ns();
  if (!due || now_ns < *due) return std::nullopt;
  const uint64_t seconds = (now_ns - changed_ns_) / 1'000'000'000;
  if (!last_.has_step) return StrCat("hang: no first step for ", seconds, " s");
  return StrCat("hang: no step for ", seconds, " s behind step ", last_.step);
}

}  // namespace switchyard::agent
