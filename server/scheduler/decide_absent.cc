// Attempts that workers name and that are not in memory: sealed ones, those that a restore of the
// database has made unknown, and those of nobody.
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/handlers.h"

namespace switchyard::scheduler {

bool Matches(const Attempt& attempt, const MemberName& name) {
  return attempt.row.run == name.run && attempt.row.ordinal == name.ordinal &&
         name.rank < attempt.members.size() && attempt.members[name.rank].worker == name.worker;
}

Absent SettleAbsent(Draft& draft, const MemberName& name, const RecordedAttempt* recorded) {
  const State& state = draft.state();
  if (!IsLookedUp(state, name.epoch)) {
    // Epochs of this generation up to the last one were ours: this one is stored.
    const bool is_ours =
        GenerationOf(name.epoch) == state.generation && name.epoch.value <= state.last_epoch;
    return is_ours ? Absent::kSealed : Absent::kUnknown;
  }
  if (recorded == nullptr) return Absent::kUnsettled;
  if (recorded->is_stored) return Absent::kSealed;
  const Worker* worker = state.FindWorker(name.worker);
  const Run* run = state.FindRun(name.run);
  if (SWITCHYARD_GUARD(X43, run == nullptr && !recorded->run.has_value())) return Absent::kUnknown;
  // Only ranks 0 are ever assigned.
  if (name.rank != 0 || name.ordinal == 0) return Absent::kUnknown;
  if (worker == nullptr) return Absent::kUnsettled;
  if (run == nullptr) {
    // It has ended in this very turn: what was read is from before.
    if (!IsTerminal(recorded->run->second.state)) return Absent::kUnsettled;
    draft.Add(EndedRunBack{.row = recorded->run->first, .status = recorded->run->second});
  }
  draft.History("attempt_recovered", name.run.value,
                StrCat("attempt ", name.ordinal, " on ", worker->row.host,
                       ": assigned after the backup that was restored; its lines are taken"));
  // Its payload is gone from the worker once a wanted set that is made after this commit is
  // followed there, and it is not reported.
  draft.AddLost(
      {.epoch = name.epoch,
       .run = name.run,
       .ordinal = name.ordinal,
       .worker = name.worker,
       .pool = worker->row.pool,
       .assign_rev = PackRev(state.boot, state.rev_n + 1),
       .resume_epoch = {},
       .resume_step = 0,
       .resume_path = {},
       .created_ms = draft.now().unix_ms},
      {.epoch = name.epoch, .rank = name.rank, .worker = name.worker, .slots = {}, .evidence = {}},
      "lost: assigned after the backup that was restored");
  return Absent::kRecovered;
}

}  // namespace switchyard::scheduler
