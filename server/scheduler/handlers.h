#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/scheduler/draft.h"

// Inside of Decide: one handler per event, and what several of them do to runs and attempts.
namespace switchyard::scheduler {

// Slots that the members of an attempt hold, or held.
inline size_t SlotsOf(const std::vector<MemberRow>& members) {
  size_t slots = 0;
  for (const MemberRow& member : members) slots += member.slots.size();
  return slots;
}

inline constexpr int32_t kExitStopped = 75;
inline constexpr int32_t kExitFenced = 76;

Decision On(const State& state, const Register& event, const Now& now);
Decision On(const State& state, const Heartbeat& event, const Now& now);
Decision On(const State& state, const SubmitSweep& event, const Now& now);
Decision On(const State& state, const Propose& event, const Now& now);
Decision On(const State& state, const CloseSweep& event, const Now& now);
Decision On(const State& state, const ExtendSweep& event, const Now& now);
Decision On(const State& state, const SteerSweep& event, const Now& now);
Decision On(const State& state, const SteerRun& event, const Now& now);
Decision On(const State& state, const RetryRuns& event, const Now& now);
Decision On(const State& state, const SteerWorker& event, const Now& now);
Decision On(const State& state, const PinCheckpoint& event, const Now& now);
Decision On(const State& state, const Append& event, const Now& now);
Decision On(const State& state, const AppendLog& event, const Now& now);
Decision On(const State& state, const Tick& event, const Now& now);
Decision On(const State& state, const Schedule& event, const Now& now);

// A4: asks a live attempt to stop. The intent only rises, and the grace only shrinks, each by
// itself: the strongest way and the earliest end that were asked for count. The reason is set once.
void RaiseIntent(Draft& draft, Epoch epoch, Intent intent, StopReason reason, uint32_t grace_ms);
// Ends an attempt whose ranks have all ended, when nothing has to be waited for (A5..A10).
// `output_tail`: what its trainer wrote last, where that is known and counts.
void EvaluateEnd(Draft& draft, Epoch epoch, uint64_t random, std::string_view output_tail = {});
// M9, A9. `is_crash`: the host or the agent went down with it.
void LoseAttempt(Draft& draft, Epoch epoch, std::string_view why, bool is_crash, uint64_t random);
// One verb on one run; false: nothing to change.
bool SteerOne(Draft& draft, RunId id, Verb verb, const std::string& reason, int32_t priority);
// SW4 for a reason of its own: pauses a live sweep; its live runs as well when `with_runs`.
void PauseSweep(Draft& draft, SweepId id, const std::string& reason, bool with_runs);
// C4: what is beyond the retention, not pinned and not best.
void KeepCheckpoints(Draft& draft, RunId id, bool is_terminal);
// The name is that of one member of the attempt.
bool Matches(const Attempt& attempt, const MemberName& name);

// What a worker names and what is not in memory.
enum class Absent : uint8_t {
  kSealed,     // it has ended, and all of its lines that will ever be taken are stored
  kRecovered,  // the record lacked it since a restore; from this decision on it has it
  kUnsettled,  // only a later turn can tell
  kUnknown,
};
// A12: an attempt that was assigned after the backup that was restored becomes a LOST one with an
// open stream, where its run is known. `recorded`: of an attempt that IsLookedUp names; null: could
// not be read.
Absent SettleAbsent(Draft& draft, const MemberName& name, const RecordedAttempt* recorded);

}  // namespace switchyard::scheduler
