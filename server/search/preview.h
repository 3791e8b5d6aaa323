#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "server/search/search.h"

namespace switchyard::search {

// A stretch of training under one point: a fork continues under another.
struct Segment {
  Point point;
  uint64_t from_step = 0;
};

// The objective of a run at an evaluation. `history` is the run's, oldest first: at least one.
using Curve =
    std::function<double(const std::vector<Segment>& history, uint64_t seed, uint64_t step)>;

// One call of the strategy and what it answered.
struct PreviewEvent {
  enum class Kind : uint8_t { kPropose = 1, kObserve = 2, kFinish = 3 };
  Kind kind = Kind::kPropose;
  uint64_t time = 0;   // in steps of training since the start
  uint64_t limit = 0;  // kPropose
  uint64_t cell = 0;
  uint64_t seed = 0;
  uint64_t step = 0;
  double value = 0;
  RunEnd end;
  Actions actions;
};

struct PreviewResult {
  std::vector<PreviewEvent> events;
  uint64_t cells = 0;
  uint64_t runs_completed = 0;
  uint64_t runs_stopped = 0;
  uint64_t steps = 0;       // trained by all runs
  uint64_t steps_full = 0;  // if every run that was started had gone to its end
  uint64_t time = 0;        // in steps, with all slots used
  // The cell whose last observed mean over its replicates at the run's end is best; 0: none.
  uint64_t best_cell = 0;
  double best_value = 0;
  Point best_point;
};

// Drives `search` as the coordinator does, with `slots` runs at a time that all train equally fast
// and report `curve` at each evaluation. A run whose value is not finite ends there, as by a guard,
// when `is_guarded`. Pure.
PreviewResult Preview(Search* search, uint64_t slots, const Curve& curve, bool is_guarded = false);

}  // namespace switchyard::search
