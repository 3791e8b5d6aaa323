#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/ids.h"

// The rows of the domain: what a decision changes, what the store keeps, and what the core's state
// is made of. Numbers of the enums are those of the protocol and of the database; never re-used.
namespace switchyard::scheduler {

enum class SweepState : uint8_t {
  kActive = 1,
  kPaused = 2,
  kCancelling = 3,
  kCompleted = 4,
  kCancelled = 5,
};
enum class RunState : uint8_t {
  kQueued = 1,
  kBackoff = 2,
  kActive = 3,
  kPaused = 4,
  kSucceeded = 5,
  kStoppedEarly = 6,
  kFailed = 7,
  kCancelled = 8,
  kQuarantined = 9,
};
inline constexpr size_t kRunStates = 10;  // index 0 is not used
enum class AttemptState : uint8_t {
  kAssigned = 1,
  kForming = 2,
  kRunning = 3,
  kStopping = 4,
  kSucceeded = 5,
  kFailed = 6,
  kCancelled = 7,
  kPreempted = 8,
  kLost = 9,
};
enum class MemberState : uint8_t {
  kPending = 1,
  kPrepared = 2,
  kLaunched = 3,
  kStopping = 4,
  kWedged = 5,
  kExited = 6,
  kRefused = 7,
  kFenced = 8,
  kLost = 9,
};
enum class Intent : uint8_t { kRun = 1, kDrain = 2, kCancel = 3, kKill = 4 };
enum class StopReason : uint8_t {
  kNone = 0,
  kCancel = 1,
  kKill = 2,
  kDrain = 3,
  kPause = 4,
  kPrune = 5,
  kPreempt = 6,
  kTimeout = 7,
  kSibling = 8,
  kFormTimeout = 9,
};
enum class EndClass : uint8_t {
  kNone = 0,
  kOk = 1,
  kSpec = 2,
  kData = 3,
  kInfra = 4,
  kInternal = 5,
  kOom = 6,
  kStopped = 7,
  kFenced = 8,
  kGuard = 9,
  kUser = 10,
  kUnknown = 11,
  kTimeout = 12,
};
enum class SlotKind : uint8_t { kCpu = 1, kGpu = 2 };
enum class AdminState : uint8_t { kOpen = 1, kDraining = 2, kDrained = 3, kRetired = 4 };
enum class CheckpointState : uint8_t {
  kStaged = 2,
  kPublished = 3,
  kSuperseded = 4,
  kTombstoned = 5,
  kDeleted = 6,
  kCorrupt = 7,
  kOrphan = 8,
};
// `on_disconnect`: what loss of contact means for a run.
enum class Profile : uint8_t { kResilient = 1, kExclusive = 2, kLocal = 3 };
inline constexpr size_t kProfileCount = 4;  // with the unused 0
enum class LogStream : uint8_t { kStdout = 1, kStderr = 2 };

// Lower-case words of the protocol: "queued", "stopped_early", "ok", ...
std::string_view Name(SweepState state);
std::string_view Name(RunState state);
std::string_view Name(AttemptState state);
std::string_view Name(MemberState state);
std::string_view Name(Intent intent);
std::string_view Name(StopReason reason);
std::string_view Name(EndClass end_class);
std::string_view Name(SlotKind kind);
std::string_view Name(AdminState state);
std::string_view Name(CheckpointState state);

bool IsTerminal(SweepState state);
bool IsTerminal(RunState state);
bool IsTerminal(AttemptState state);
bool IsTerminal(MemberState state);

// The generation in which an epoch was given: its top 16 bits.
inline uint32_t GenerationOf(Epoch epoch) { return static_cast<uint32_t>(epoch.value >> 48); }

// Times named *_ms are milliseconds since 1970, for people; 0: not yet.

// A sweep as it was submitted; never changes.
struct SweepRow {
  SweepId id;
  std::string project;
  std::string name;       // unique; a name used again has a suffix: "demo.2"
  std::string base_name;  // as in the document
  std::string spec_hash;  // hex
  uint32_t rerun = 0;     // 0, or the number of the `--rerun` submission of this document
  std::string spec;       // SweepSpec, serialised
  std::string objective;  // ObjectiveSpec as resolved, serialised
  std::vector<std::string> axes;
  uint64_t cells = 0;
  uint64_t runs = 0;  // all that the strategy will propose
  int64_t created_ms = 0;
  std::optional<SweepId> parent;  // of a sweep that `retry` made
  uint64_t budget_slot_ms = 0;    // slots times wall time; 0: no limit
  // Its strategy proposes while it runs; `cells` and `runs` are then what it announces, 0: not
  // known.
  bool is_drawn = false;
};

// Numbers 1.. of a sweep whose cells are drawn are below; those of its retried runs above.
inline constexpr uint64_t kDrawnRunsMax = 1'000'000;

// Linked runs by RunState.
using StateCounts = std::array<uint64_t, kRunStates>;

// First attempts that failed with one signature before their first step.
struct EarlyFailure {
  std::string signature;
  uint32_t count = 0;
  bool operator==(const EarlyFailure&) const = default;
};

// What changes about a sweep. The last one of a sweep in a commit holds.
struct SweepStatus {
  SweepId id;
  SweepState state = SweepState::kActive;
  uint64_t proposed = 0;  // links made by the strategy: numbers 1..proposed
  // Links made by `retry`: numbers runs+1..runs+retried; drawn: from kDrawnRunsMax+1.
  uint64_t retried = 0;
  StateCounts counts{};
  std::string reason;  // why it is paused, or was cancelled
  int64_t ended_ms = 0;
  // Slots times wall time of its ended attempts, milliseconds: what `slot_hours` is compared with.
  uint64_t slot_ms = 0;
  std::optional<int32_t> priority;  // of runs proposed from now on, instead of the policy's
  std::vector<EarlyFailure> early_failures;  // what the breaker counts
  bool is_closed = false;                    // drawn: its strategy proposes nothing more
  bool operator==(const SweepStatus&) const = default;
};

// What the strategy of a drawn sweep knows (server/app/strategies.h). The last one in a commit
// holds.
struct StrategyRow {
  SweepId sweep;
  std::string state;
};

// A live sweep's document with more cells or seeds than before. Its runs are proposed while it runs
// from then on.
struct SweepExtension {
  SweepId id;
  std::string spec;
  std::string spec_hash;
  std::vector<std::string> axes;
  uint64_t cells = 0;
  uint64_t runs = 0;
};

// A run belongs to every sweep that proposed its run_key.
struct LinkRow {
  SweepId sweep;
  uint64_t number = 0;  // 1.., unique in the sweep
  RunId run;
  uint64_t cell = 0;
  std::vector<std::pair<std::string, std::string>> columns;  // axis -> value
};

struct SlotNeed {
  SlotKind kind = SlotKind::kCpu;
  uint32_t count = 1;
  bool operator==(const SlotNeed&) const = default;
};

// What a run needs of a worker.
struct ResourceNeed {
  SlotNeed slots;
  uint64_t memory_bytes = 0;  // 0: not stated
  bool operator==(const ResourceNeed&) const = default;
};

// The part of the policy of a run that is decided about here.
struct RunPolicy {
  Profile profile = Profile::kResilient;
  uint64_t memory_bytes = 0;        // 0: not stated
  bool exclusive = false;           // alone on its worker
  std::vector<std::string> labels;  // the worker has all of them
  // Larger needs, tried in order: the next one after an end for lack of memory.
  std::vector<ResourceNeed> alternatives;
  uint32_t crash_budget = 2;  // internal and unknown ends in a row without a newer checkpoint
  uint32_t user_budget = 0;   // ends with a listed user code or text
  std::vector<int32_t> user_codes;
  std::vector<std::string> user_texts;  // one of them in the last output
  uint32_t keep_last = 2;
  uint32_t keep_best = 1;
  bool is_maximized = false;  // the objective, for the best checkpoint
  // Series that its checkpoints are ranked by; empty: that of its sweep.
  std::string objective;
  bool is_objective_last = false;
  std::vector<uint64_t> keep_steps;  // checkpoints of these steps are results as well
  // The store that holds the checkpoint of another run that it begins with; empty: it begins anew.
  std::string start_store;
  bool operator==(const RunPolicy&) const = default;
};

// A run as it was made; never changes.
struct RunRow {
  RunId id;
  SweepId sweep;  // the first one that proposed it
  std::string project;
  std::string run_key;  // hex SHA-256
  uint32_t rerun = 0;
  uint64_t seed = 0;
  std::string router;
  int32_t priority = 0;  // as submitted
  SlotNeed need;
  uint32_t max_parallel = 0;    // runs of the sweep at one time; 0: no limit
  uint64_t timeout_ms = 0;      // wall time of all attempts together; 0: none
  uint64_t steps_total = 0;     // 0: known to the trainer only
  std::optional<RunId> parent;  // the run that `retry` repeats
  RunPolicy policy;
  std::string spec;          // RunSpec in canonical form, serialised
  std::string attempt_spec;  // AttemptSpec with telemetry, checkpoint and objective, serialised
  int64_t created_ms = 0;
};

// An end with a signature: what the poison rules compare.
struct EndSignature {
  std::string text;
  uint64_t step = 0;           // reached by the attempt
  uint64_t progress_step = 0;  // of the newest published checkpoint at that time
  bool operator==(const EndSignature&) const = default;
};
// What a run has met on one worker.
struct WorkerBlame {
  WorkerId worker;
  uint32_t infra_ends = 0;
  uint32_t crashes = 0;  // ends together with the agent or the host
  bool operator==(const WorkerBlame&) const = default;
};
// What the poison rules know of a run (protocol 15). Both lists keep their newest entries.
struct PoisonEvidence {
  std::vector<EndSignature> signatures;
  std::vector<WorkerBlame> workers;
  uint32_t crashes = 0;  // of agents or hosts
  bool operator==(const PoisonEvidence&) const = default;
};

// What changes about a run.
struct RunStatus {
  RunId id;
  RunState state = RunState::kQueued;
  Epoch current_epoch;    // newest attempt; 0: none
  uint32_t attempts = 0;  // k of the newest attempt
  int32_t priority = 0;
  uint32_t alternative = 0;  // of the policy's alternatives, from 1; 0: the need as stated
  bool cancel_req = false;
  bool pause_req = false;
  bool prune_req = false;
  uint32_t user_fail = 0;
  uint32_t crash_fail = 0;
  uint32_t infra_fail = 0;
  uint32_t infra_streak = 0;
  uint64_t progress_step = 0;  // step of the newest checkpoint when the counters were last reset
  uint64_t active_ms = 0;      // wall time of the ended attempts
  int64_t not_before_ms = 0;   // BACKOFF: display only, the core's own clock decides
  PoisonEvidence evidence;
  std::string reason;  // why it ended or waits, in a few words
  int64_t queued_ms = 0;
  int64_t started_ms = 0;  // first attempt
  int64_t ended_ms = 0;
  bool operator==(const RunStatus&) const = default;
};

// One execution of a run. `epoch` is its identity.
struct AttemptRow {
  Epoch epoch;
  RunId run;
  uint32_t ordinal = 0;  // k, from 1
  WorkerId worker;       // of rank 0
  std::string pool;
  uint64_t assign_rev = 0;  // of the Desired that carries it first: boot << 40 | n
  Epoch resume_epoch;       // assigned checkpoint; 0: from the start
  uint64_t resume_step = 0;
  std::string resume_path;
  int64_t created_ms = 0;
};

struct AttemptStatus {
  Epoch epoch;
  AttemptState state = AttemptState::kAssigned;
  Intent intent = Intent::kRun;
  StopReason stop_reason = StopReason::kNone;
  uint32_t grace_ms = 0;  // from the agent's first sight of the intent
  EndClass end_class = EndClass::kNone;
  std::string reason;
  // From its own event lines: it has started, and from which point of which attempt (0: from the
  // start). Decides the canonical curve.
  bool start_reported = false;
  Epoch resumed_epoch;
  uint64_t resumed_step = 0;
  uint64_t final_step = 0;
  int64_t running_ms = 0;
  int64_t ended_ms = 0;
  bool operator==(const AttemptStatus&) const = default;
};

// One rank of an attempt. The slots are reserved while the state is not terminal.
struct MemberRow {
  Epoch epoch;
  uint32_t rank = 0;
  WorkerId worker;
  std::vector<uint32_t> slots;
  MemberState state = MemberState::kPending;
  int32_t exit_code = 0;
  int32_t signal = 0;
  EndClass end_class = EndClass::kNone;
  bool complete = false;
  std::string evidence;
  bool operator==(const MemberRow&) const = default;
};

// The event stream and the raw output of one rank.
struct StreamRow {
  Epoch epoch;
  uint32_t rank = 0;
  uint64_t acked = 0;                     // every line up to here is stored
  std::optional<uint64_t> declared_last;  // last_seq of the ended member
  bool sealed = false;
  uint64_t stdout_end = 0;  // bytes stored up to here
  uint64_t stderr_end = 0;
  bool operator==(const StreamRow&) const = default;
};

// Points of one series of one stream, in order of seq, as they arrived.
struct ChunkRow {
  Epoch epoch;
  uint32_t rank = 0;
  std::string series;
  bool is_vector = false;
  std::vector<uint32_t> shape;
  uint64_t first_seq = 0;
  uint64_t last_seq = 0;
  uint64_t first_step = 0;
  uint64_t last_step = 0;
  uint32_t n = 0;
  std::string blob;  // server/store/chunks.h
};

// Every event line that is not a metric line.
struct StreamEventRow {
  Epoch epoch;
  uint32_t rank = 0;
  uint64_t seq = 0;
  uint64_t covers = 1;
  std::string kind;
  std::string json;
};

struct LogRow {
  Epoch epoch;
  uint32_t rank = 0;
  LogStream stream = LogStream::kStdout;
  uint64_t offset = 0;
  std::string data;
};

struct CheckpointRow {
  RunId run;
  Epoch epoch;
  uint64_t step = 0;
  CheckpointState state = CheckpointState::kPublished;
  std::string digest;
  uint64_t bytes = 0;
  std::string path;
  std::string store;  // uuid of the checkpoint store of the worker
  bool pinned = false;
  // Objective at this step, as far as it was stored with the checkpoint's line.
  std::optional<double> score;
  int64_t state_ms = 0;  // since when it is in this state
};

// Last, best and counts of one series of a run over its canonical curve. The value of a vector
// point is the mean of its finite elements. Non-finite points are counted in both counts and are
// `last` when they are the last, never `best`.
struct SummaryRow {
  RunId run;
  std::string series;
  bool is_vector = false;
  std::vector<uint32_t> shape;
  double last = 0;
  uint64_t last_step = 0;
  bool has_best = false;
  double best = 0;
  uint64_t best_step = 0;
  uint64_t count = 0;
  uint64_t non_finite = 0;
};

// Forget all summaries of a run; those that follow in the commit replace them.
struct SummaryReset {
  RunId run;
};

// Where a run stands, by its newest committed point.
struct RunProgress {
  RunId run;
  uint64_t step = 0;
};

// Decayed use of slots by a project (lease_policy.h), as of `at_ms`.
struct UsageRow {
  std::string project;
  double slot_seconds = 0;
  int64_t at_ms = 0;
};

struct IdemRow {
  std::string request_id;
  std::string method;
  std::string body_hash;
  std::string reply;  // serialised response
  int64_t expires_ms = 0;
};

struct SlotRow {
  uint32_t index = 0;
  SlotKind kind = SlotKind::kCpu;
  std::string uuid;
  bool operator==(const SlotRow&) const = default;
};

struct WorkerRow {
  WorkerId id;
  uint64_t incarnation = 0;
  std::string instance_id;
  std::string pool;
  std::string host;
  std::string version;
  std::string metrics_address;
  std::string checkpoint_store;
  uint32_t threads_per_slot = 1;
  std::vector<std::string> labels;
  std::vector<SlotRow> slots;
  AdminState admin = AdminState::kOpen;
  bool cordoned = false;
  std::string cordon_reason;
  uint64_t memory_bytes = 0;      // of the host; 0: not told
  int64_t drain_deadline_ms = 0;  // DRAINING: when it shall be empty; 0: none
  bool operator==(const WorkerRow&) const = default;
};

// What the record says of an attempt that a worker names and that is not in memory.
struct RecordedAttempt {
  bool is_stored = false;  // it is there: it has ended, and its streams are sealed
  // Its run; none: the record knows no such run.
  std::optional<std::pair<RunRow, RunStatus>> run;
};

struct HistoryRow {
  int64_t at_ms = 0;
  std::string kind;  // "run_created", "attempt_assigned", "late_outcome", ...
  Uuid ref;          // run, sweep or worker
  std::string text;  // for people
};

}  // namespace switchyard::scheduler
