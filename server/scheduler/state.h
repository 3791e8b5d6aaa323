#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "server/scheduler/lease_policy.h"
#include "server/scheduler/rows.h"

namespace switchyard::scheduler {

// What the core is told about time. `now` stands still while the coordinator lags, so that its own
// delay expires nobody; `unix_ms` is written down and never compared.
struct Now {
  Timestamp now;
  int64_t unix_ms = 0;
};

struct Rev {
  uint32_t generation = 0;
  uint32_t boot = 0;
  uint64_t n = 0;
  auto operator<=>(const Rev&) const = default;
};

// A checkpoint of a run, by its place in the run's history.
struct CheckpointRef {
  RunId run;
  Epoch epoch;
  uint64_t step = 0;
  auto operator<=>(const CheckpointRef&) const = default;
};

struct SweepLink {
  SweepId sweep;
  uint64_t number = 0;
};

// A run that is not terminal, or has an attempt whose stream is open.
struct Run {
  RunRow row;  // `spec` and `attempt_spec` stay in the store
  RunStatus status;
  std::vector<SweepLink> links;            // of sweeps that are not terminal
  std::vector<CheckpointRow> checkpoints;  // PUBLISHED, in order of publishing
  std::vector<Epoch> attempts;             // in State::attempts
  Timestamp queued_since;
  Timestamp not_before;      // BACKOFF
  uint64_t queue_order = 0;  // rises with each entry into the queue
  // Read from the store at a start: an earlier coordinator may have placed it.
  bool is_loaded = false;
};

// An attempt that is not terminal, or whose stream is not sealed.
struct Attempt {
  AttemptRow row;
  AttemptStatus status;
  std::vector<MemberRow> members;  // by rank
  std::vector<StreamRow> streams;  // by rank
  Timestamp assigned_at;
  std::optional<Timestamp> running_since;
  std::optional<Timestamp> ended_at;
  bool is_observed = false;  // the worker has a record: its spec need not be sent again
  // The agent started anew since it last reported this attempt.
  bool agent_restarted = false;
  uint64_t step = 0;  // of its newest stored point
};

// It was lost to the record with a restore and came back (A12): the record gave it no slots. It is
// an attempt of its run that another one may go on from, and never the head of the run's curve.
inline bool IsRecovered(const Attempt& attempt) {
  return attempt.status.state == AttemptState::kLost && !attempt.members.empty() &&
         attempt.members[0].slots.empty();
}

enum class Contact : uint8_t { kUnknown = 1, kOnline = 2, kSuspect = 3, kLost = 4 };
std::string_view Name(Contact contact);

struct Worker {
  WorkerRow row;
  // Volatile.
  Contact contact = Contact::kUnknown;
  std::string nonce;
  uint64_t hb_seq = 0;
  Timestamp last;                  // newest contact
  Rev applied;                     // newest wanted set that it follows
  bool instance_changed = false;   // since the last heartbeat
  bool is_leaving = false;         // a signal drains its agent, which ends then
  uint64_t want_rev = 0;           // n of the newest change of its wanted set
  std::set<Epoch> attempts;        // not terminal
  std::map<uint32_t, Epoch> held;  // slot index -> member that is not terminal
  std::set<Epoch> ended;           // terminal, stream not sealed
  // Infrastructure failures of runs, for the rule that cordons it.
  std::deque<std::pair<Timestamp, RunId>> infra_ends;

  uint32_t CountSlots(SlotKind kind) const;
  uint32_t CountFree(SlotKind kind) const;
  bool HasLabels(const std::vector<std::string>& labels) const;
  // Online, open, not leaving, not cordoned.
  bool IsPlaceable() const;
};

struct Sweep {
  SweepRow row;  // `spec` stays in the store
  SweepStatus status;
  std::unordered_set<RunId> live_runs;  // linked, not terminal
};

// Queued runs that are alike for placement wait in one line, in order of age.
struct QueueKey {
  int32_t priority = 0;
  std::string project;
  SweepId sweep;
  SlotKind kind = SlotKind::kCpu;
  uint32_t count = 1;
  uint64_t memory_bytes = 0;
  bool exclusive = false;
  std::vector<std::string> labels;
  uint32_t max_parallel = 0;
  uint64_t timeout_ms = 0;
  auto operator<=>(const QueueKey&) const = default;
};
struct QueueEntry {
  uint64_t order = 0;
  RunId run;
  auto operator<=>(const QueueEntry&) const = default;
};

// Use of slots by a project, in slot seconds, of which half is forgotten in every half-life. Exact
// between changes of `slots`: the decayed integral of what is held.
struct Usage {
  double slot_seconds = 0;
  uint32_t slots = 0;  // held now
  Timestamp at;

  double At(Timestamp now) const;
  void Change(Timestamp now, int32_t slots_more);
};

// A checkpoint on its way to deletion.
struct Doomed {
  CheckpointRow row;  // SUPERSEDED or TOMBSTONED
  Timestamp since;    // in this state
};

// Everything that is decided about, in memory. Changed by Apply only.
struct State {
  std::string cluster_id;
  uint32_t generation = 0;
  uint32_t boot = 0;
  uint64_t last_epoch = 0;
  uint64_t rev_n = 1;
  uint64_t queue_order = 0;
  LeasePolicy leases;   // as the operator has set them
  Timestamp loaded_at;  // when this coordinator read its rows at its start

  std::map<SweepId, Sweep> sweeps;  // not terminal
  std::unordered_map<RunId, Run> runs;
  std::map<Epoch, Attempt> attempts;
  std::map<WorkerId, Worker> workers;

  std::map<QueueKey, std::set<QueueEntry>> queue;
  uint64_t queued = 0;
  std::set<RunId> backoff;
  std::map<std::string, Usage> usage;  // by project
  std::map<CheckpointRef, Doomed> doomed;
  // (project, run_key) -> newest run that is not terminal.
  std::unordered_map<std::string, RunId> live_keys;

  const Run* FindRun(RunId id) const;
  const Attempt* FindAttempt(Epoch epoch) const;
  const Worker* FindWorker(WorkerId id) const;
  const Sweep* FindSweep(SweepId id) const;
  double UsageOf(const std::string& project, Timestamp now) const;
};

// What a worker names under this epoch must be looked up in the record: it is not in memory, and
// was assigned before the database was restored, so that the record may never have known it.
bool IsLookedUp(const State& state, Epoch epoch);

std::string LiveKey(std::string_view project, std::string_view run_key);
QueueKey QueueKeyOf(const Run& run);
// As stated, or the alternative that it has come to.
ResourceNeed NeedOf(const Run& run);

// One number for (boot, n) of a Rev, ordered alike.
inline uint64_t PackRev(uint32_t boot, uint64_t n) { return uint64_t{boot} << 40 | n; }

// What a worker shall run, computed anew each time.
struct Wanted {
  const Attempt* attempt = nullptr;
  uint32_t rank = 0;
  uint32_t grace_ms = 0;
  uint64_t lease_ms = 0;
};
std::vector<Wanted> WantedOf(const State& state, WorkerId worker);
// Checkpoints that it shall delete, named until it says that they are gone: tombstones in the store
// that it reaches, in order, at most kGcCheckpointsMax.
std::vector<CheckpointRow> TombstonesOf(const State& state, WorkerId worker);

}  // namespace switchyard::scheduler
