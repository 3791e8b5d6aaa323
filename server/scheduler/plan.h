#pragma once

#include <optional>
#include <vector>

#include "server/scheduler/state.h"

namespace switchyard::scheduler {

struct Placement {
  RunId run;
  WorkerId worker;
  std::vector<uint32_t> slots;
  // Newest published checkpoint that the worker reaches.
  std::optional<CheckpointRow> resume;
};

// Places queued runs on free slots: highest priority first, then longest in the queue, then lowest
// id; the narrowest worker that fits. The first run that fits no free slots but some worker
// reserves the worker that is free soonest; a later run uses it only when its own time limit ends
// before that. Equal arguments, equal plan; a run that fits nowhere is passed over. Cost: by lines
// of the queue and placements, not by queued runs.
std::vector<Placement> PlanPlacements(const State& state, Timestamp now, size_t limit);

// Why a queued run is not placed now, in the terms of PlanPlacements, for a person.
std::string ExplainWait(const State& state, const Run& run, Timestamp now);

}  // namespace switchyard::scheduler
