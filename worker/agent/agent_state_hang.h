#pragma once

#include <cstdint>
#include <optional>
#include <string>

// Whether a trainer that is alive has stopped making progress. Pure.
namespace switchyard::agent {

// What the newest lines of an event file say.
struct Progress {
  uint64_t step = 0;
  uint64_t ms = 0;        // of the step's line, since the attempt's start
  bool has_line = false;  // of any kind: before it data may be loaded, which takes its time
  bool has_step = false;  // a metric line was seen
  // A phase other than training was announced behind it: loading, building, evaluating take as long
  // as they take.
  bool in_phase = false;

  bool operator==(const Progress&) const = default;
};

// One per attempt: fed with what was read last, asked at each tick.
class HangWatch {
 public:
  static constexpr uint64_t kLeastNs = 300'000'000'000;      // 5 min
  static constexpr uint64_t kFirstStepNs = 900'000'000'000;  // 15 min
  static constexpr uint64_t kEwmaFactor = 10;

  void Observe(const Progress& progress, uint64_t now_ns);
  // A reason once the trainer counts as hung: no step for max(10 x mean step time, 5 min), or no
  // first one for 15 min, and no phase announced.
  std::optional<std::string> Check(uint64_t now_ns) const;
  // CLOCK_BOOTTIME at which Check may say something first; none while a phase is under way.
  std::optional<uint64_t> due_ns() const;

 private:
  uint64_t LimitNs() const;

  Progress last_;
  uint64_t changed_ns_ = 0;  // 0: nothing observed yet
  double mean_step_ms_ = 0;  // exponentially weighted; 0: unknown
};

}  // namespace switchyard::agent
