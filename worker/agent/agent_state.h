#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/agent/agent_state_end.h"
#include "worker/agent/agent_state_hang.h"
#include "worker/agent/agent_state_transitions.h"

// The agent's decisions: events in, actions out. No clock, thread or file: `now_ns` is
// CLOCK_BOOTTIME in nanoseconds, given by the caller. The machine of a record is the table in
// agent_state_transitions.
namespace switchyard::agent {

struct AttemptKey {
  uint64_t epoch = 0;
  uint32_t rank = 0;
  auto operator<=>(const AttemptKey&) const = default;
};

// Stamp of a wanted set, ordered.
struct Rev {
  uint32_t generation = 0;
  uint32_t boot = 0;
  uint64_t n = 0;
  auto operator<=>(const Rev&) const = default;
};

enum class Intent : uint8_t { kRun = 1, kDrain = 2, kCancel = 3, kKill = 4 };

struct Record {
  AttemptKey key;
  std::string run_id;
  uint32_t ordinal = 0;
  std::vector<uint32_t> slots;
  RecordState state = RecordState::kLaunching;
  AttemptEnd end;  // EXITED and REFUSED; REFUSED uses `reason` only

  // Volatile.
  Intent intent = Intent::kRun;
  uint64_t lease_ns = 0;     // length; 0: no deadline
  uint64_t deadline_ns = 0;  // as written last
  uint64_t stop_at_ns = 0;   // 0: no stop under way
  uint64_t term_at_ns = 0;   // SIGTERM due; 0: none or sent
  bool kill_sent = false;
  uint64_t wedged_at_ns = 0;  // alive by then, after SIGKILL: wedged; 0: not killed
  bool wedged = false;
  HangWatch hang;
  std::string agent_reason;  // the agent's own evidence of why it ends
  bool spawn_requested = false;
  uint64_t wait_until_ns = 0;  // the slots must be free by then
  bool spooled = false;        // events and logs are acknowledged
  bool gc = false;             // the coordinator wants no more of it
  bool is_live() const {
    return state == RecordState::kLaunching || state == RecordState::kRunning;
  }
};

struct Wanted {
  AttemptKey key;
  std::string run_id;
  uint32_t ordinal = 0;
  std::vector<uint32_t> slots;
  Intent intent = Intent::kRun;
  uint64_t grace_ms = 0;
  uint64_t lease_ms = 0;  // 0: no deadline
  bool has_spec = false;
  // What this release does not understand about it; empty: nothing.
  std::string unknown;
};

struct Desired {
  Rev rev;
  uint64_t echo_incarnation = 0;
  uint64_t echo_sent_boottime_ns = 0;
  std::vector<Wanted> want;
  std::vector<AttemptKey> gc;
};

// What the shell shall do. Directories of `prepare` are made and `records` are written and synced
// before anything else of the same Actions is done.
struct Actions {
  struct Lease {
    AttemptKey key;
    uint64_t deadline_ns = 0;
  };
  struct Stop {
    AttemptKey key;
    Intent intent = Intent::kRun;
    uint64_t deadline_ns = 0;
  };
  struct Prepare {
    AttemptKey key;
    uint64_t deadline_ns = 0;
  };
  std::vector<Prepare> prepare;
  std::vector<Record> records;
  std::vector<AttemptKey> spawn;
  std::vector<Lease> leases;
  std::vector<Stop> stops;
  std::vector<AttemptKey> dump;       // SIGUSR2 to the trainer: it prints its stack
  std::vector<AttemptKey> terminate;  // SIGTERM to the trainer
  std::vector<AttemptKey> kill;       // SIGKILL to its whole session
  std::vector<AttemptKey> drop;       // remove the payload
  std::vector<AttemptKey> resend;     // send its lines again from the durable watermark
  bool seen_changed = false;          // (generation, boot) of the coordinator to be kept
  bool heartbeat = false;             // the observed set has changed: tell at once

  // Adds what is to be done behind this.
  void Append(Actions more);
  bool IsEmpty() const;
};

// Reducer of one agent. One thread at a time.
class AgentState {
 public:
  struct Options {
    uint32_t slots = 1;
    uint64_t incarnation = 0;
  };
  static constexpr uint64_t kNoDeadline = UINT64_MAX;
  static constexpr uint64_t kSlotWaitNs = 60'000'000'000;
  static constexpr uint64_t kTermBeforeNs = 10'000'000'000;
  // From a kill to a reaped process (K of protocol 5).
  static constexpr uint64_t kReapNs = 10'000'000'000;
  // Between the request for a stack dump and the kill of a hung trainer.
  static constexpr uint64_t kDumpNs = 2'000'000'000;
  // Of what was dropped, so many are remembered; late messages are younger than that.
  static constexpr size_t kTombstonesMax = 100'000;

  explicit AgentState(Options options) : options_(options) {}

  // At start: a record whose payload is there. Live ones must have been adopted (RUNNING).
  void Restore(Record record);

  // The coordinator has taken the registration: from here on nothing of an earlier generation, that
  // is from before a restore, is followed.
  Actions OnRegistered(uint32_t generation);
  // A reply to a heartbeat. Another incarnation's is dropped whole; of an old one the echo still
  // counts, and gc when it is of the present generation.
  Actions OnDesired(const Desired& desired, uint64_t now_ns);
  // The process runs (no error), or will never run.
  Actions OnSpawned(AttemptKey key, const std::string& error, uint64_t now_ns);
  Actions OnEnded(AttemptKey key, AttemptEnd end, uint64_t now_ns);
  // Everything that the attempt wrote is acknowledged, or refused for good.
  Actions OnSpooled(AttemptKey key);
  // What the newest lines of a running trainer say.
  void OnProgress(AttemptKey key, const Progress& progress, uint64_t now_ns);
  // The worker leaves: running attempts are drained, new ones refused from now on.
  Actions OnDrain(uint64_t grace_ms, uint64_t now_ns);
  // Stops and waits that are due.
  Actions OnTick(uint64_t now_ns);
  // Too little room for new work: wanted attempts are refused.
  void SetDiskLow(bool is_low) { disk_low_ = is_low; }

  // When OnTick has something to do; kNoDeadline: never.
  uint64_t NextTick() const;
  const Record* Find(AttemptKey key) const;
  // Records whose payload is still there.
  const std::map<AttemptKey, Record>& records() const { return records_; }
  bool is_draining() const { return draining_; }
  Rev applied() const { return applied_; }
  // No attempt is running or about to.
  bool IsIdle() const;

 private:
  void EnterGeneration(uint32_t generation, Actions* actions);
  void Decide(const Wanted& wanted, uint32_t generation, uint64_t now_ns, Actions* actions);
  void RaiseStop(Record& record, Intent intent, uint64_t grace_ms, uint64_t now_ns,
                 Actions* actions);
  void Kill(Record& record, uint64_t now_ns, Actions* actions);
  void Exit(Record& record, AttemptEnd end, Actions* actions);
  void SpawnReady(Actions* actions);
  void DropIfDone(Record& record, Actions* actions);
  uint64_t DeadlineFor(uint64_t lease_ns) const;

  Options options_;
  std::map<AttemptKey, Record> records_;
  std::set<AttemptKey> tombstones_;  // payload gone, never launched again
  std::optional<uint64_t> base_ns_;  // newest echoed send time
  Rev applied_;
  uint32_t generation_ = 0;  // newest that was met; 0: none
  bool disk_low_ = false;
  bool draining_ = false;
};

}  // namespace switchyard::agent
