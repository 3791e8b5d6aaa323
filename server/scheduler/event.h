#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/scheduler/state.h"

// What the core is asked to decide about. New ids and random numbers arrive here: the core makes
// none.
namespace switchyard::scheduler {

struct Register {
  WorkerRow worker;  // admin and cordon flags are not taken from here
  std::string nonce;
  uint32_t seen_generation = 0;
  uint32_t seen_boot = 0;
};

enum class RecordState : uint8_t {
  kLaunching = 1,
  kRunning = 2,
  kExited = 3,
  kRefused = 4,
  kWedged = 5,  // alive long after SIGKILL
};

// One rank of an attempt, as its worker names it.
struct MemberName {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  WorkerId worker;
};

// One record of an agent.
struct MemberReport {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  RecordState state = RecordState::kLaunching;
  int32_t exit_code = 0;
  int32_t signal = 0;
  EndClass end_class = EndClass::kNone;
  bool complete = false;
  std::string evidence;
  uint64_t last_seq = 0;
  std::string reason;
  uint64_t final_step = 0;
  std::string output_tail;  // user errors: the last bytes of the output
};

struct Heartbeat {
  WorkerId worker;
  std::string nonce;
  uint64_t incarnation = 0;
  uint64_t hb_seq = 0;
  uint64_t sent_boottime_ns = 0;
  Rev applied;
  std::vector<MemberReport> observed;
  std::vector<CheckpointRef> deleted;  // that an earlier answer named
  // The agent drains its worker by itself and ends then; how long its attempts have for it.
  bool is_leaving = false;
  uint32_t leaving_grace_ms = 0;
  // Nothing can be written now: only the contact counts, what it reports will be reported again.
  bool is_echo_only = false;
  uint64_t random = 0;
  // Of the reported attempts that IsLookedUp names, read in the same turn; those that are missing
  // could not be read and are settled by a later heartbeat.
  std::map<Epoch, RecordedAttempt> recorded = {};
};

// A run as the expansion of a sweep made it, with a fresh id for the case that it is new.
struct PlannedRun {
  RunRow run;
  uint64_t number = 0;
  uint64_t cell = 0;
  std::vector<std::pair<std::string, std::string>> columns;
  // The checkpoint of another run that it begins with.
  struct Start {
    RunId run;
    uint64_t step = 0;
  };
  std::optional<Start> start;
  // A stored run with this identity that stands, read in the same turn. Its state counts where the
  // run is not in memory.
  std::optional<std::pair<RunId, RunState>> stored;
};

// A valid document with a name that is free; the first runs come along.
struct SubmitSweep {
  SweepRow sweep;
  std::vector<PlannedRun> first;
};

struct Propose {
  SweepId sweep;
  std::vector<PlannedRun> runs;  // in order of number
};

// The strategy of a drawn sweep proposes nothing more: it completes with its last run.
struct CloseSweep {
  SweepId sweep;
};

// More cells or seeds for a sweep that is active or paused.
struct ExtendSweep {
  SweepExtension extension;
};

// What a person, a strategy or a policy asks of runs.
enum class Verb : uint8_t {
  kCancel = 1,    // stop with a checkpoint; the run ends
  kKill = 2,      // stop at once; the run ends
  kPause = 3,     // stop with a checkpoint; the run waits
  kResume = 4,    // take a pause back
  kPrune = 5,     // as cancel, by a strategy: STOPPED_EARLY
  kPriority = 6,  // of what is queued, and of later attempts
};
std::string_view Name(Verb verb);

// kPrune is not for sweeps. Runs that another live sweep wants as well are left alone.
struct SteerSweep {
  SweepId sweep;
  Verb verb = Verb::kCancel;
  std::string reason;
  int32_t priority = 0;  // kPriority
};
struct SteerRun {
  RunId run;
  Verb verb = Verb::kCancel;
  std::string reason;
  int32_t priority = 0;
};

// New runs for runs that have ended without success (R19): in the sweep while it is live, else in
// `child`, a sweep that proposes nothing itself.
struct RetryRuns {
  SweepId sweep;
  std::optional<SweepRow> child;  // used when `sweep` is not live any more
  struct Retried {
    RunRow run;  // with a fresh id and `parent`
    uint64_t cell = 0;
    std::vector<std::pair<std::string, std::string>> columns;
  };
  std::vector<Retried> runs;
};

enum class WorkerVerb : uint8_t {
  kDrain = 1,  // nothing new; what runs stops with a checkpoint and goes elsewhere
  kUndrain = 2,
  kCordon = 3,  // nothing new; what runs goes on
  kUncordon = 4,
  kFence = 5,  // an operator vouches that its processes are gone
};
std::string_view Name(WorkerVerb verb);

struct SteerWorker {
  WorkerId worker;
  WorkerVerb verb = WorkerVerb::kDrain;
  std::string reason;
  std::optional<uint32_t> deadline_ms;  // kDrain: until it shall be empty
  uint64_t random = 0;
};

// Keeps a checkpoint whatever the retention says, or no longer.
struct PinCheckpoint {
  CheckpointRef checkpoint;
  bool pinned = true;
};

// A line that the core looks at.
struct LineFact {
  enum class Kind : uint8_t { kHello, kResume, kCheckpoint };
  Kind kind = Kind::kHello;
  uint64_t seq = 0;
  Epoch from;  // resume
  uint64_t step = 0;
  std::string digest;
  uint64_t bytes = 0;
  std::string path;
  std::optional<double> score;  // checkpoint: the objective so far
};

struct Append {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  WorkerId worker;
  uint64_t first_seq = 0;
  uint64_t n = 0;
  std::vector<LineFact> lines;
  uint64_t last_step = 0;  // of its points; 0: none
  uint64_t random = 0;
  std::optional<RecordedAttempt> recorded = {};  // as in Heartbeat
};

struct AppendLog {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  WorkerId worker;
  LogStream stream = LogStream::kStdout;
  uint64_t offset = 0;
  uint64_t size = 0;
  std::optional<RecordedAttempt> recorded = {};  // as in Heartbeat
};

// Every 500 ms, after the inbox; never while the coordinator is fresh or late.
struct Tick {
  uint64_t random = 0;
};

// Places queued runs: at most `limit`, none of `skip`.
struct Schedule {
  size_t limit = 200;
  std::set<RunId> skip;
};

using Event = std::variant<Register, Heartbeat, SubmitSweep, Propose, CloseSweep, ExtendSweep,
                           SteerSweep, SteerRun, RetryRuns, SteerWorker, PinCheckpoint, Append,
                           AppendLog, Tick, Schedule>;

}  // namespace switchyard::scheduler
