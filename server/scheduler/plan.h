#pragma once

#include <optional>
#include <set>
#include <string>
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

// Places queued runs on free slots, none of `skip`: highest priority first; within it the project
// that has used least lately (State::usage), then longest in the queue, then lowest id; the
// narrowest worker that fits. A worker fits a run by kind and number of free slots, labels, memory
// as far as both are stated, and exclusiveness; one that the run has met with failures is used only
// while no other in contact could take it. The first run that fits no free slots but some worker
// reserves the worker that is free soonest (by the time limits of its attempts; unknown ends last,
// then fewest busy slots, then id); a later run uses it only when its own time limit ends before
// that. Equal arguments, equal plan; a run that fits nowhere is passed over. Cost: by lines of the
// queue, workers and placements, not by queued runs.
std::vector<Placement> PlanPlacements(const State& state, Timestamp now, size_t limit,
                                      const std::set<RunId>& skip = {});

// After a restore the rows do not know what was placed since the backup, and a worker out of
// contact may still execute it. An `exclusive` run (S7) that has had no attempt of this generation
// is therefore not placed before the trainers of an earlier one have fenced themselves: X after the
// start of the coordinator. nullopt: no such wait, as for runs made since this start.
std::optional<Timestamp> HeldAfterRestore(const State& state, const Run& run);

// Why a queued run is not placed now, in the terms of PlanPlacements, for a person.
std::string ExplainWait(const State& state, const Run& run, Timestamp now);

}  // namespace switchyard::scheduler
