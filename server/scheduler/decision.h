#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/status.h"
#include "server/scheduler/event.h"

namespace switchyard::scheduler {

// Volatile changes: never stored.
struct WorkerContact {
  WorkerId worker;
  Contact contact = Contact::kOnline;
  std::string nonce;
  uint64_t hb_seq = 0;
  Timestamp last;
  Rev applied;
  bool instance_changed = false;
  bool is_leaving = false;
};
struct AttemptObserved {
  Epoch epoch;
};
// The attempt's newest stored point is at this step.
struct AttemptStep {
  Epoch epoch;
  uint64_t step = 0;
};
// Its agent has started anew, or has reported it since.
struct AgentRestarted {
  Epoch epoch;
  bool restarted = true;
};
// An infrastructure failure of a run on a worker.
struct InfraEnd {
  WorkerId worker;
  RunId run;
};
// A run that has ended is in memory again: an attempt of it, that the record lacked, has an open
// stream. Its rows are stored.
struct EndedRunBack {
  RunRow row;
  RunStatus status;
};
// The wanted set of the worker has changed.
struct WantChanged {
  WorkerId worker;
};

// One thing that changes. Rows are stored and applied alike, in this order.
using Change = std::variant<SweepRow, SweepExtension, SweepStatus, RunRow, RunStatus, LinkRow,
                            AttemptRow, AttemptStatus, MemberRow, StreamRow, CheckpointRow,
                            WorkerRow, HistoryRow, UsageRow, WorkerContact, AttemptObserved,
                            AttemptStep, AgentRestarted, InfraEnd, EndedRunBack, WantChanged>;

enum class StaleKind : uint8_t {
  kIncarnation = 0,
  kNonce = 1,
  kHbSeq = 2,
  kEpoch = 3,
  kSealed = 4,
  kGap = 5,
  kUnknownAttempt = 6,
  kLateOutcome = 7,
};
inline constexpr size_t kStaleKinds = 8;
std::string_view Name(StaleKind kind);

struct AttemptRef {
  Epoch epoch;
  uint32_t rank = 0;
};

// Answers, by event; what has none leaves it empty.
struct HeartbeatAnswer {
  std::vector<AttemptRef> gc;
  bool has_news = false;  // an observation changed something
  // Later than due, by the period told; 0 for the first.
  Milliseconds delay{0};
};
struct AppendAnswer {
  uint64_t committed = 0;
  uint64_t expect = 0;         // not 0: send again from here
  uint64_t accepted_from = 0;  // first new seq; 0: nothing new
};
struct AppendLogAnswer {
  uint64_t committed = 0;
  uint64_t accepted_from = 0;  // offset of the first new byte
  uint64_t accepted_to = 0;    // equal to accepted_from: nothing new
};
struct ProposeAnswer {
  uint64_t reused = 0;
};
struct SteerAnswer {
  uint64_t runs_affected = 0;
};
struct RetryAnswer {
  SweepId sweep;  // that holds the new runs
  uint64_t made = 0;
};
struct ScheduleAnswer {
  std::vector<Milliseconds> waits;  // of the runs placed
  size_t placed = 0;
};
using Answer = std::variant<std::monostate, HeartbeatAnswer, AppendAnswer, AppendLogAnswer,
                            ProposeAnswer, SteerAnswer, RetryAnswer, ScheduleAnswer>;

struct Decision {
  // Not ok: refused, and nothing but volatile changes.
  Status status;
  std::vector<Change> changes;
  Answer answer;
  std::vector<StaleKind> stale;
  std::array<uint64_t, kProfileCount> leases_expired{};  // by profile

  bool has_expired_leases() const {
    return std::ranges::any_of(leases_expired, [](uint64_t n) { return n > 0; });
  }
};

}  // namespace switchyard::scheduler
