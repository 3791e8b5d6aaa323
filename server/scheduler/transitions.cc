#include "server/scheduler/transitions.h"

#include <algorithm>
#include <array>

#include "common/base/strings.h"

namespace switchyard::scheduler {
namespace {

// The number of a state in its machine.
template <typename State>
constexpr uint8_t N(State state) {
  return static_cast<uint8_t>(state);
}
constexpr uint8_t kNew = 0;
constexpr uint8_t kClear = 1;
constexpr uint8_t kSet = 2;
constexpr uint8_t kWriting = 1;  // the trainer's business: no row has it

constexpr Transition kSweepTable[] = {
    {"SW1", kNew, N(SweepState::kActive), "Submit", "not submitted before, document valid",
     "sweep row, first runs and links, answer by request id"},
    {"SW4", N(SweepState::kActive), N(SweepState::kPaused), "user, budget spent, or breaker",
     "breaker: 5 first attempts failed with one signature before step 1",
     "reason; user and budget: pause of the live runs"},
    {"SW5", N(SweepState::kPaused), N(SweepState::kActive), "resume", "",
     "its paused runs queue up"},
    {"SW6", N(SweepState::kActive), N(SweepState::kCancelling), "cancel", "",
     "cancel of its live runs that no other live sweep wants"},
    {"SW6", N(SweepState::kPaused), N(SweepState::kCancelling), "cancel", "", "the same"},
    {"SW7", N(SweepState::kCancelling), N(SweepState::kCancelled), "last live run has ended",
     "every linked run terminal, or kept by another sweep", "end time"},
    {"SW8", N(SweepState::kActive), N(SweepState::kCompleted), "last live run has ended",
     "everything proposed, and all runs terminal", "end time"},
};

constexpr Transition kRunTable[] = {
    {"R1", kNew, N(RunState::kQueued), "proposed by a sweep, or retried",
     "no valid run has its identity", "run, link"},
    {"R2", N(RunState::kQueued), N(RunState::kActive), "placed",
     "no live attempt, a linking sweep is ACTIVE, slots free",
     "attempt with the next epoch, members, reservations"},
    {"R3", N(RunState::kActive), N(RunState::kSucceeded), "attempt SUCCEEDED", "", "end"},
    {"R4", N(RunState::kActive), N(RunState::kCancelled), "attempt ended otherwise", "cancel_req",
     "end"},
    {"R5", N(RunState::kActive), N(RunState::kStoppedEarly), "attempt ended otherwise", "prune_req",
     "end"},
    {"R6", N(RunState::kActive), N(RunState::kQuarantined), "attempt ended otherwise",
     "a poison rule holds", "end"},
    {"R7", N(RunState::kActive), N(RunState::kFailed), "attempt FAILED",
     "class not tried again, or its budget is spent", "end"},
    {"R8", N(RunState::kActive), N(RunState::kPaused), "attempt ended otherwise", "pause_req",
     "reason"},
    {"R9", N(RunState::kActive), N(RunState::kBackoff), "attempt FAILED(user, internal, unknown)",
     "within the budget; or out of memory with a larger alternative", "counter, not_before"},
    {"R10", N(RunState::kActive), N(RunState::kBackoff), "attempt LOST or FAILED(infra)", "",
     "infra_fail, infra_streak, not_before"},
    {"R11", N(RunState::kActive), N(RunState::kQueued), "attempt PREEMPTED", "", "infra_streak"},
    {"R12", N(RunState::kBackoff), N(RunState::kQueued), "time", "now >= not_before",
     "place in the queue"},
    {"R13", N(RunState::kQueued), N(RunState::kCancelled), "cancel", "", "end"},
    {"R13", N(RunState::kBackoff), N(RunState::kCancelled), "cancel", "", "end"},
    {"R14", N(RunState::kQueued), N(RunState::kStoppedEarly), "prune", "", "end"},
    {"R14", N(RunState::kBackoff), N(RunState::kStoppedEarly), "prune", "", "end"},
    {"R15", N(RunState::kQueued), N(RunState::kPaused), "pause", "", "pause_req"},
    {"R15", N(RunState::kBackoff), N(RunState::kPaused), "pause", "", "pause_req"},
    {"R16", N(RunState::kPaused), N(RunState::kQueued), "resume", "", "pause_req taken back"},
    {"R17", N(RunState::kPaused), N(RunState::kCancelled), "cancel", "", "end"},
    {"R18", N(RunState::kPaused), N(RunState::kStoppedEarly), "prune", "", "end"},
};

constexpr Transition kAttemptTable[] = {
    {"A1", kNew, N(AttemptState::kAssigned), "R2", "", "attempt bound to its workers for ever"},
    {"A3", N(AttemptState::kAssigned), N(AttemptState::kRunning), "every rank LAUNCHED", "",
     "start time"},
    {"A4", N(AttemptState::kAssigned), N(AttemptState::kStopping),
     "intent, a rank failed, 120 s without a launch, or all ranks ended", "",
     "intent, stop reason, grace"},
    {"A4", N(AttemptState::kRunning), N(AttemptState::kStopping),
     "intent, a rank failed, the time limit, or all ranks ended", "", "intent, stop reason, grace"},
    {"A5", N(AttemptState::kAssigned), N(AttemptState::kSucceeded), "all ranks ended",
     "each with exit code 0 and a complete exit record; streams stored", "end, class, reason"},
    {"A5", N(AttemptState::kRunning), N(AttemptState::kSucceeded), "all ranks ended",
     "each with exit code 0 and a complete exit record; streams stored", "end, class, reason"},
    {"A5", N(AttemptState::kStopping), N(AttemptState::kSucceeded), "all ranks ended",
     "each with exit code 0 and a complete exit record; streams stored", "end, class, reason"},
    {"A6", N(AttemptState::kAssigned), N(AttemptState::kCancelled), "all ranks ended",
     "stop reason cancel or kill", "end, class, reason"},
    {"A6", N(AttemptState::kRunning), N(AttemptState::kCancelled), "all ranks ended",
     "stop reason cancel or kill", "end, class, reason"},
    {"A6", N(AttemptState::kStopping), N(AttemptState::kCancelled), "all ranks ended",
     "stop reason cancel or kill", "end, class, reason"},
    {"A7", N(AttemptState::kAssigned), N(AttemptState::kFailed), "all ranks ended",
     "stop reason timeout: class timeout", "end, class, reason"},
    {"A7", N(AttemptState::kRunning), N(AttemptState::kFailed), "all ranks ended",
     "stop reason timeout: class timeout", "end, class, reason"},
    {"A7", N(AttemptState::kStopping), N(AttemptState::kFailed), "all ranks ended",
     "stop reason timeout: class timeout", "end, class, reason"},
    {"A8", N(AttemptState::kAssigned), N(AttemptState::kPreempted), "all ranks ended",
     "stop reason drain, pause, prune or preempt, and the end is a stop; streams stored",
     "end, class, reason"},
    {"A8", N(AttemptState::kRunning), N(AttemptState::kPreempted), "all ranks ended",
     "stop reason drain, pause, prune or preempt, and the end is a stop; streams stored",
     "end, class, reason"},
    {"A8", N(AttemptState::kStopping), N(AttemptState::kPreempted), "all ranks ended",
     "stop reason drain, pause, prune or preempt, and the end is a stop; streams stored",
     "end, class, reason"},
    {"A9", N(AttemptState::kAssigned), N(AttemptState::kLost),
     "all ranks ended, or the worker was lost while a stream was waited for",
     "root cause LOST or FENCED", "end, class, reason"},
    {"A9", N(AttemptState::kRunning), N(AttemptState::kLost),
     "all ranks ended, or the worker was lost while a stream was waited for",
     "root cause LOST or FENCED", "end, class, reason"},
    {"A9", N(AttemptState::kStopping), N(AttemptState::kLost),
     "all ranks ended, or the worker was lost while a stream was waited for",
     "root cause LOST or FENCED", "end, class, reason"},
    {"A10", N(AttemptState::kAssigned), N(AttemptState::kFailed), "all ranks ended",
     "otherwise: class of the root cause", "end, class, reason"},
    {"A10", N(AttemptState::kRunning), N(AttemptState::kFailed), "all ranks ended",
     "otherwise: class of the root cause", "end, class, reason"},
    {"A10", N(AttemptState::kStopping), N(AttemptState::kFailed), "all ranks ended",
     "otherwise: class of the root cause", "end, class, reason"},
    {"A12", kNew, N(AttemptState::kLost), "named by a worker, and assigned after a restored backup",
     "its run is known", "attempt with its own epoch, stream open"},
};

constexpr Transition kMemberTable[] = {
    {"M2", N(MemberState::kPending), N(MemberState::kLaunched),
     "record LAUNCHING or RUNNING observed", "", ""},
    {"M3", N(MemberState::kPending), N(MemberState::kRefused), "record REFUSED observed", "",
     "slots free"},
    {"M4", N(MemberState::kLaunched), N(MemberState::kStopping), "intent, or a sibling failed", "",
     ""},
    {"M5", N(MemberState::kLaunched), N(MemberState::kExited), "end observed", "",
     "exit code, class, evidence; slots free"},
    {"M5", N(MemberState::kStopping), N(MemberState::kExited), "end observed", "",
     "exit code, class, evidence; slots free"},
    {"M6", N(MemberState::kLaunched), N(MemberState::kFenced), "exit code 76, or a fence inferred",
     "", "the same"},
    {"M6", N(MemberState::kStopping), N(MemberState::kFenced), "exit code 76, or a fence inferred",
     "", "the same"},
    {"M7", N(MemberState::kStopping), N(MemberState::kWedged), "alive long after SIGKILL", "",
     "worker cordoned"},
    {"M8", N(MemberState::kWedged), N(MemberState::kExited), "reaped", "",
     "exit code, class, evidence; slots free"},
    {"M9", N(MemberState::kPending), N(MemberState::kLost),
     "lease older than X, confirmed death, or no record under an applied set", "", "slots free"},
    {"M9", N(MemberState::kLaunched), N(MemberState::kLost),
     "lease older than X, confirmed death, or no record under an applied set", "", "slots free"},
    {"M9", N(MemberState::kStopping), N(MemberState::kLost),
     "lease older than X, confirmed death, or no record under an applied set", "", "slots free"},
    {"M9", N(MemberState::kWedged), N(MemberState::kLost),
     "lease older than X, confirmed death, or no record under an applied set", "", "slots free"},
};

constexpr Transition kContactTable[] = {
    {"W1", N(Contact::kUnknown), N(Contact::kOnline),
     "Register, or a heartbeat after a commit that failed",
     "identity, protocol and (generation, boot) fit", ""},
    {"W2", N(Contact::kOnline), N(Contact::kSuspect), "silence", "max(20 s, 4 heartbeat periods)",
     ""},
    {"W3", N(Contact::kSuspect), N(Contact::kOnline), "heartbeat or Register", "", ""},
    {"W4", N(Contact::kSuspect), N(Contact::kLost), "silence of 10 min",
     "none of its attempts is live", ""},
    {"W4", N(Contact::kUnknown), N(Contact::kLost), "silence of 10 min since the start",
     "none of its attempts is live", ""},
    {"W5", N(Contact::kLost), N(Contact::kOnline), "heartbeat or Register", "", ""},
};

constexpr Transition kAdminTable[] = {
    {"W6", N(AdminState::kOpen), N(AdminState::kDraining), "operator", "",
     "intent DRAIN on its attempts, deadline"},
    {"W7", N(AdminState::kDraining), N(AdminState::kDrained), "time",
     "no attempts, every stream stored", ""},
    {"W8", N(AdminState::kDraining), N(AdminState::kOpen), "undrain", "", ""},
    {"W8", N(AdminState::kDrained), N(AdminState::kOpen), "undrain", "", ""},
    {"W9", N(AdminState::kOpen), N(AdminState::kRetired), "LOST for 24 h", "", ""},
    {"W9", N(AdminState::kDraining), N(AdminState::kRetired), "LOST for 24 h", "", ""},
    {"W9", N(AdminState::kDrained), N(AdminState::kRetired), "LOST for 24 h", "", ""},
    {"W12", N(AdminState::kRetired), N(AdminState::kOpen), "Register",
     "incarnation not older than the recorded one", "incarnation, nonce (volatile)"},
};

constexpr Transition kCordonTable[] = {
    {"W10", kClear, kSet,
     "operator, WEDGED, or 3 infrastructure failures of distinct runs in 10 min", "",
     "reason; what runs goes on"},
    {"W11", kSet, kClear, "operator", "", ""},
};

constexpr Transition kCheckpointTable[] = {
    {"C1", kWriting, N(CheckpointState::kStaged),
     "the trainer has renamed its directory into place", "files and manifest synced", ""},
    {"C2", N(CheckpointState::kStaged), N(CheckpointState::kPublished), "its line is stored",
     "attempt current and not terminal", "checkpoint row"},
    {"C3", N(CheckpointState::kStaged), N(CheckpointState::kOrphan), "its line is stored",
     "epoch stale, or the attempt has ended", "checkpoint row"},
    {"C4", N(CheckpointState::kPublished), N(CheckpointState::kSuperseded),
     "a newer one, or the end of the run",
     "beyond the retention, not pinned, not best (a score that is no number is never best)",
     "state"},
    {"C5", N(CheckpointState::kSuperseded), N(CheckpointState::kTombstoned),
     "the next tick of a live run, 24 h for an ended one", "", "state"},
    {"C5", N(CheckpointState::kTombstoned), N(CheckpointState::kDeleted),
     "a worker that reaches its store says it is gone", "", "state"},
    {"C6", N(CheckpointState::kPublished), N(CheckpointState::kCorrupt),
     "an attempt that was to resume from it reports another start", "",
     "state; the next attempt falls back to the one before"},
    {"C7", N(CheckpointState::kSuperseded), N(CheckpointState::kPublished), "pin",
     "not yet a tombstone", "state"},
};

constexpr Transition kCoordinatorTable[] = {
    {"K1", N(CoordinatorState::kBoot), N(CoordinatorState::kRecovering), "data directory locked",
     "schema known, log recovered", "boot raised"},
    {"K2", N(CoordinatorState::kBoot), N(CoordinatorState::kRestoreDecision),
     "the database cannot be trusted", "tail sentinel ahead, newer schema, or bad page", ""},
    {"K3", N(CoordinatorState::kRecovering), N(CoordinatorState::kServing), "state loaded",
     "nothing is replaced in the first 30 s", ""},
    {"K4", N(CoordinatorState::kServing), N(CoordinatorState::kDegraded),
     "disk full, read error, or free space below the ballast", "",
     "ballast freed; mutations refused, nothing expires"},
    {"K5", N(CoordinatorState::kDegraded), N(CoordinatorState::kServing), "probe",
     "ballast whole, probe row committed", "history"},
    {"K6", N(CoordinatorState::kServing), N(CoordinatorState::kDraining), "SIGTERM", "", ""},
    {"K6", N(CoordinatorState::kDegraded), N(CoordinatorState::kDraining), "SIGTERM", "", ""},
    {"K7", N(CoordinatorState::kDraining), N(CoordinatorState::kExit), "last call answered", "",
     "log checkpointed"},
    {"K8", N(CoordinatorState::kRecovering), N(CoordinatorState::kExit),
     "outcome of a commit unknown, or a broken invariant", "", "exit code 70"},
    {"K8", N(CoordinatorState::kServing), N(CoordinatorState::kExit),
     "outcome of a commit unknown, or a broken invariant", "", "exit code 70"},
    {"K8", N(CoordinatorState::kDegraded), N(CoordinatorState::kExit),
     "outcome of a commit unknown, or a broken invariant", "", "exit code 70"},
    {"K8", N(CoordinatorState::kDraining), N(CoordinatorState::kExit),
     "outcome of a commit unknown, or a broken invariant", "", "exit code 70"},
};

template <typename State>
std::string_view NameOf(uint8_t state) {
  return Name(static_cast<State>(state));
}

struct Entry {
  std::string_view title;
  std::span<const Transition> table;
  uint8_t states = 0;
  std::string_view (*name)(uint8_t) = nullptr;
};

std::string_view CordonName(uint8_t state) { return state == kSet ? "cordoned" : "clear"; }
std::string_view CheckpointName(uint8_t state) {
  return state == kWriting ? "writing" : NameOf<CheckpointState>(state);
}

const Entry& EntryOf(Machine machine) {
  static const std::array<Entry, kMachines> entries{{
      {"Sweep", kSweepTable, 5, NameOf<SweepState>},
      {"Run", kRunTable, 9, NameOf<RunState>},
      {"Attempt", kAttemptTable, 9, NameOf<AttemptState>},
      {"Member (one rank)", kMemberTable, 9, NameOf<MemberState>},
      {"Worker: contact (volatile)", kContactTable, 4, NameOf<Contact>},
      {"Worker: administration", kAdminTable, 4, NameOf<AdminState>},
      {"Worker: cordon flag", kCordonTable, 2, CordonName},
      {"Checkpoint", kCheckpointTable, 8, CheckpointName},
      {"Coordinator", kCoordinatorTable, 7, NameOf<CoordinatorState>},
  }};
  return entries[static_cast<size_t>(machine)];
}

std::string Upper(std::string_view word) {
  std::string out(word);
  for (char& c : out) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return out;
}

}  // namespace

std::string_view Name(CoordinatorState state) {
  switch (state) {
    case CoordinatorState::kBoot:
      return "boot";
    case CoordinatorState::kRecovering:
      return "recovering";
    case CoordinatorState::kServing:
      return "serving";
    case CoordinatorState::kDegraded:
      return "degraded";
    case CoordinatorState::kDraining:
      return "draining";
    case CoordinatorState::kRestoreDecision:
      return "restore_decision";
    case CoordinatorState::kExit:
      return "exit";
  }
  return "unspecified";
}

std::span<const Transition> TableOf(Machine machine) { return EntryOf(machine).table; }
std::string_view Title(Machine machine) { return EntryOf(machine).title; }
uint8_t CountStates(Machine machine) { return EntryOf(machine).states; }

std::string_view StateName(Machine machine, uint8_t state) {
  const Entry& entry = EntryOf(machine);
  return state == 0 || state > entry.states ? "-" : entry.name(state);
}

bool IsFinal(Machine machine, uint8_t state) {
  return std::ranges::none_of(TableOf(machine),
                              [&](const Transition& row) { return row.from == state; });
}

bool IsAllowed(Machine machine, uint8_t from, uint8_t to) {
  return std::ranges::any_of(
      TableOf(machine), [&](const Transition& row) { return row.from == from && row.to == to; });
}

bool IsAllowed(SweepState from, SweepState to) {
  return IsAllowed(Machine::kSweep, N(from), N(to));
}
bool IsAllowed(RunState from, RunState to) { return IsAllowed(Machine::kRun, N(from), N(to)); }
bool IsAllowed(AttemptState from, AttemptState to) {
  return IsAllowed(Machine::kAttempt, N(from), N(to));
}
bool IsAllowed(MemberState from, MemberState to) {
  return IsAllowed(Machine::kMember, N(from), N(to));
}
bool IsAllowed(Contact from, Contact to) { return IsAllowed(Machine::kContact, N(from), N(to)); }
bool IsAllowed(AdminState from, AdminState to) {
  return IsAllowed(Machine::kAdmin, N(from), N(to));
}
bool IsAllowed(CheckpointState from, CheckpointState to) {
  return IsAllowed(Machine::kCheckpoint, N(from), N(to));
}
bool IsAllowed(CoordinatorState from, CoordinatorState to) {
  return IsAllowed(Machine::kCoordinator, N(from), N(to));
}

std::string RenderTables() {
  std::string out;
  for (size_t i = 0; i < kMachines; ++i) {
    const auto machine = static_cast<Machine>(i);
    out += StrCat("### ", Title(machine), "\n\nStates:");
    for (uint8_t state = 1; state <= CountStates(machine); ++state) {
      const bool is_reached = std::ranges::any_of(TableOf(machine), [&](const Transition& row) {
        return row.to == state || row.from == state;
      });
      // A state of a later stage.
      if (!is_reached) continue;
      out +=
          StrCat(" `", Upper(StateName(machine, state)), "`", IsFinal(machine, state) ? "\\*" : "");
    }
    out +=
        "\n\n| Id | From | To | Trigger | Guard | Durable effects |\n|---|---|---|---|---|---|\n";
    for (const Transition& row : TableOf(machine)) {
      out += StrCat("| ", row.id, " | ", Upper(StateName(machine, row.from)), " | ",
                    Upper(StateName(machine, row.to)), " | ", row.trigger, " | ", row.guard, " | ",
                    row.effects, " |\n");
    }
    out += "\n";
  }
  return out;
}

}  // namespace switchyard::scheduler
