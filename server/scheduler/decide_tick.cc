// What time brings, and the placement of queued runs.
#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "server/scheduler/handlers.h"
#include "server/scheduler/lease_policy.h"
#include "server/scheduler/plan.h"

namespace switchyard::scheduler {
namespace {

// Leases and contact of one worker (M9, A9, W2, W4, W7, W9).
void WatchWorker(Draft& draft, const Worker& worker, Milliseconds suspect, uint64_t random) {
  const State& state = draft.state();
  const WorkerId id = worker.row.id;
  const Milliseconds silent = draft.now().now - worker.last;
  size_t live = worker.attempts.size();
  for (const Epoch epoch : worker.attempts) {
    const Run* run = state.FindRun(state.FindAttempt(epoch)->row.run);
    const std::optional<Milliseconds> replace = ReplaceAfter(run->row.policy.profile, state.leases);
    if (!replace.has_value() || silent < *replace) continue;
    ++draft.decision.leases_expired[static_cast<size_t>(run->row.policy.profile)];
    LoseAttempt(draft, epoch,
                StrCat("no contact with the worker for ", silent.count() / 1000, " s"),
                /*is_crash=*/false, random ^ epoch.value);
    --live;
  }
  const Contact contact = worker.contact;
  if (silent >= suspect && contact == Contact::kOnline) draft.SetContact(id, Contact::kSuspect);
  if (silent >= kLostAfter && live == 0 && contact != Contact::kLost) {
    draft.SetContact(id, Contact::kLost);
  }
  if (worker.row.admin == AdminState::kDraining && worker.attempts.empty() &&
      worker.ended.empty()) {
    draft.SetAdmin(id, AdminState::kDrained, "");
  } else if (contact == Contact::kLost && silent >= kRetireAfter && worker.attempts.empty() &&
             worker.row.admin != AdminState::kRetired) {
    draft.SetAdmin(id, AdminState::kRetired, "no contact for 24 h");
  }
}

// The time limits of one live attempt: to be launched, and of its run.
void WatchAttempt(Draft& draft, const Attempt& attempt) {
  const Timestamp now = draft.now().now;
  const Epoch epoch = attempt.row.epoch;
  if (attempt.status.state == AttemptState::kAssigned &&
      now - attempt.assigned_at >= kFormTimeout) {
    RaiseIntent(draft, epoch, Intent::kKill, StopReason::kFormTimeout, 0);
  }
  const Run& run = *draft.state().FindRun(attempt.row.run);
  if (run.row.timeout_ms > 0 && attempt.running_since.has_value() &&
      attempt.status.stop_reason == StopReason::kNone &&
      run.status.active_ms + static_cast<uint64_t>((now - *attempt.running_since).count()) >=
          run.row.timeout_ms) {
    RaiseIntent(draft, epoch, Intent::kDrain, StopReason::kTimeout, kGraceMs);
  }
}

// SW4: sweeps whose ended and running attempts have used up the budget.
void WatchBudgets(Draft& draft) {
  const State& state = draft.state();
  std::map<SweepId, uint64_t> used;
  for (const auto& [id, sweep] : state.sweeps) {
    if (sweep.row.budget_slot_ms > 0 && sweep.status.state == SweepState::kActive) {
      used[id] = sweep.status.slot_ms;
    }
  }
  if (used.empty()) return;
  for (const auto& [id, worker] : state.workers) {
    for (const Epoch epoch : worker.attempts) {
      const Attempt& attempt = *state.FindAttempt(epoch);
      if (!attempt.running_since.has_value()) continue;
      const auto ms = static_cast<uint64_t>((draft.now().now - *attempt.running_since).count());
      const uint64_t slot_ms = ms * SlotsOf(attempt.members);
      for (const SweepLink& link : state.FindRun(attempt.row.run)->links) {
        const auto sweep = used.find(link.sweep);
        if (sweep != used.end()) sweep->second += slot_ms;
      }
    }
  }
  for (const auto& [id, slot_ms] : used) {
    const uint64_t budget = state.FindSweep(id)->row.budget_slot_ms;
    if (slot_ms < budget) continue;
    PauseSweep(draft, id,
               StrCat("budget spent: ", slot_ms / 1000, " of ", budget / 1000, " slot seconds"),
               /*with_runs=*/true);
  }
}

}  // namespace

Decision On(const State& state, const Tick& event, const Now& now) {
  Draft draft(state, now);
  const Milliseconds suspect = SuspectAfter(state.workers.size());
  for (const auto& [id, worker] : state.workers) {
    WatchWorker(draft, worker, suspect, event.random);
    for (const Epoch epoch : worker.ended) {
      const Attempt& attempt = *state.FindAttempt(epoch);
      if (attempt.ended_at.has_value() && now.now - *attempt.ended_at >= kSealAfter) {
        for (StreamRow& stream : draft.streams(epoch)) stream.sealed = true;
      }
    }
    for (const Epoch epoch : worker.attempts) WatchAttempt(draft, *state.FindAttempt(epoch));
  }
  WatchBudgets(draft);
  for (const RunId id : state.backoff) {
    if (now.now < state.FindRun(id)->not_before || draft.RunStateOf(id) != RunState::kBackoff) {
      continue;
    }
    draft.SetRunState(id, RunState::kQueued, draft.run(id).reason);
  }
  for (const auto& [ref, doomed] : state.doomed) {
    if (doomed.row.state != CheckpointState::kSuperseded) continue;
    // A run that goes on writes the next one soon: its disk holds what the policy keeps. An ended
    // one writes no more, and whoever looks at it then has a day to pin a checkpoint.
    const Run* run = state.FindRun(ref.run);
    const bool is_live = run != nullptr && !IsTerminal(draft.RunStateOf(ref.run));
    if (!is_live && now.now - doomed.since < kTombstoneAfter) continue;
    CheckpointRow row = doomed.row;
    draft.SetCheckpointState(row, CheckpointState::kTombstoned);
    draft.Add(std::move(row));
  }
  return draft.Finish();
}

Decision On(const State& state, const Schedule& event, const Now& now) {
  Draft draft(state, now);
  ScheduleAnswer answer;
  uint64_t epoch = state.last_epoch;
  for (Placement& placement :
       PlanPlacements(state, now.now, std::min(event.limit, kPlacementsMax), event.skip)) {
    const Run& run = *state.FindRun(placement.run);
    SWITCHYARD_CHECK(run.status.state == RunState::kQueued) << "placed a run that is not queued";
    const Worker& worker = *state.FindWorker(placement.worker);
    RunStatus& status = draft.run(placement.run);
    draft.SetRunState(placement.run, RunState::kActive, "");
    ++status.attempts;
    status.current_epoch = {++epoch};
    if (status.started_ms == 0) status.started_ms = now.unix_ms;
    AttemptRow row{.epoch = {epoch},
                   .run = placement.run,
                   .ordinal = status.attempts,
                   .worker = placement.worker,
                   .pool = worker.row.pool,
                   .assign_rev = PackRev(state.boot, state.rev_n + 1),
                   .resume_epoch = {},
                   .resume_step = 0,
                   .resume_path = {},
                   .created_ms = now.unix_ms};
    if (placement.resume.has_value()) {
      row.resume_epoch = placement.resume->epoch;
      row.resume_step = placement.resume->step;
      row.resume_path = placement.resume->path;
    }
    draft.History("attempt_assigned", placement.run.value,
                  StrCat("attempt ", row.ordinal, " on ", worker.row.host));
    draft.Add(std::move(row), MemberRow{.epoch = {epoch},
                                        .rank = 0,
                                        .worker = placement.worker,
                                        .slots = std::move(placement.slots),
                                        .evidence = {}});
    answer.waits.push_back(now.now - run.queued_since);
    ++answer.placed;
  }
  draft.decision.answer = std::move(answer);
  return draft.Finish();
}

}  // namespace switchyard::scheduler
