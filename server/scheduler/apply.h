#pragma once

#include <span>

#include "server/scheduler/decision.h"

namespace switchyard::scheduler {

// Brings a decision's changes into the state, in order.
void Apply(std::span<const Change> changes, const Now& now, State* state);

// The revision of the next Desired: above all before it.
Rev NextRev(State* state);

// A state from stored rows. Every worker is UNKNOWN; leases count from `now`.
struct StoredRows {
  std::string cluster_id;
  uint32_t generation = 0;
  uint32_t boot = 0;
  uint64_t last_epoch = 0;
  std::vector<SweepRow> sweeps;
  std::vector<SweepStatus> sweep_status;
  std::vector<RunRow> runs;
  std::vector<RunStatus> run_status;
  std::vector<LinkRow> links;
  std::vector<AttemptRow> attempts;
  std::vector<AttemptStatus> attempt_status;
  std::vector<MemberRow> members;
  std::vector<StreamRow> streams;
  std::vector<CheckpointRow> checkpoints;
  std::vector<WorkerRow> workers;
  std::vector<UsageRow> usage;
};
State Restore(StoredRows rows, const Now& now);

}  // namespace switchyard::scheduler
