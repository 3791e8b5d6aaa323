#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::client {

struct WatchSweep {
  std::string name;
  std::string state;
  uint64_t runs = 0;
  uint64_t succeeded = 0;
  uint64_t failed = 0;
  uint64_t cancelled = 0;
  uint64_t set_aside = 0;  // stopped early; of a live sweep also paused
  uint64_t active = 0;
  uint64_t waiting = 0;
  double elapsed_seconds = -1;  // since it was submitted; negative: it has ended
  double eta_seconds = -1;      // negative: unknown

  uint64_t ended() const { return succeeded + failed + cancelled + set_aside; }
};

struct WatchRun {
  std::string name;
  std::string state;
  std::string label;  // axis values: "smoe 0.01"
  uint64_t step = 0;
  uint64_t steps_total = 0;
  std::optional<double> loss;      // of any class: one that is NaN has diverged and says so
  std::vector<double> loss_curve;  // training loss, oldest first
  std::optional<double> entropy;   // usage entropy / ln E, mean over layers
  std::vector<double> entropy_curve;
  std::optional<double> tokens_per_second;
  double eta_seconds = -1;
  std::string reason;
};

// All that one frame of `watch` shows.
struct WatchView {
  std::string fleet;  // "2 workers, 3 of 4 slots busy"
  std::vector<WatchSweep> sweeps;
  std::vector<WatchRun> runs;
  uint64_t runs_hidden = 0;  // active ones that are not listed
  std::string note;          // "coordinator does not answer …"
};

struct FrameStyle {
  size_t columns = 80;
  size_t rows = 24;
  bool has_color = false;
};

// Lines of the frame, none wider than `columns` cells and at most `rows - 1` of them (the cursor's
// line is kept free). What does not fit in width is left out, the least important first: entropy
// curve, loss curve, progress bar, label, rate, time left, entropy.
std::vector<std::string> RenderWatch(const WatchView& view, const FrameStyle& style);

// How many rows of runs such a frame has place for.
size_t RunRowsThatFit(size_t sweep_count, size_t rows);

// Text that replaces the last frame, whose lines were `previous`, by `lines`: cursor up, each line
// cleared behind its end, and everything below. `columns` now: lines that were wider than a window
// that has shrunk since take several rows.
std::string Redraw(const std::vector<std::string>& previous, const std::vector<std::string>& lines,
                   size_t columns);

// One line about a sweep or run for output that is no terminal.
std::string PlainLine(const WatchSweep& sweep);
std::string PlainLine(const WatchRun& run);

}  // namespace switchyard::client
