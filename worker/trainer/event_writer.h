#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/file.h"
#include "common/base/status.h"
#include "worker/train/event_sink.h"

namespace switchyard::trainer {

// The event file of an attempt (docs/attempt-directory.md): a bounded queue in memory and one
// thread that numbers the lines, appends them, syncs once a second, and begins a new segment when
// one is full. A full disk is waited for while the queue takes the pressure. What is given up, in
// this order and always before a number is given: log lines; derived series when the agent asks for
// it; with a full disk 1 step in 2^n of all metrics is kept, n rising as the queue fills. All of it
// is counted in `drop` lines; all other lines are kept. A step behind an earlier one is an error of
// the run, or with `lenient_steps` recorded and counted. Thread-safe.
class EventWriter final : public train::EventSink {
 public:
  struct Options {
    // Origin of a line's `ms`, CLOCK_BOOTTIME.
    uint64_t start_boottime_ns = 0;
    // Above half of it log lines are dropped, above all of it metric lines.
    size_t queue_bytes_max = size_t{64} << 20;
    std::chrono::milliseconds sync_interval{1000};
    // Pause between tries while the disk is full.
    std::chrono::milliseconds retry_interval{1000};
    // A segment of a file is sealed once it has so many bytes.
    uint64_t segment_bytes_max = uint64_t{64} << 20;
    // Keep derived series of 1 step in 2^n; asked for each line. Empty: always 0.
    std::function<uint32_t()> pressure;
    // Points of a step behind an earlier one are recorded.
    bool lenient_steps = false;
  };

  // Appends to a new or empty file. kFailedPrecondition: there are lines in it already.
  static Result<std::unique_ptr<EventWriter>> Open(const std::string& path, Options options);
  // Writes to an open descriptor (a pipe, a terminal), without syncs.
  static std::unique_ptr<EventWriter> ForDescriptor(UniqueFd fd, Options options);
  // Closes.
  ~EventWriter() override;

  void Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) override;
  void Vector(uint64_t step, std::string name, std::vector<uint32_t> shape,
              std::vector<float> values) override;
  void Line(std::string type, std::string members) override;
  void Phase(std::string name) override;
  void Log(std::string text) override;
  Status health() const override;
  // With `lenient_steps`: how many points were recorded behind a later step; empty: none.
  std::string step_warning() const;

  // Writes and syncs all that was queued, waiting at most `limit` for a full disk; afterwards lines
  // are refused. Idempotent. kResourceExhausted: the disk stayed full.
  Status Close(std::chrono::milliseconds limit);
  // Number of the last line that is in the file.
  uint64_t last_seq() const;
  // Series that a run can do without: timings, auxiliary losses, routing.
  static bool IsDerived(std::string_view series);

 private:
  struct State;
  explicit EventWriter(std::unique_ptr<State> state);

  std::unique_ptr<State> state_;
};

}  // namespace switchyard::trainer
