// Sweeps: submitting, proposing, and what users ask of sweeps and runs.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/handlers.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

uint64_t ProposeRuns(Draft& draft, const SweepRow& sweep, const std::vector<PlannedRun>& planned) {
  const State& state = draft.state();
  uint64_t reused = 0;
  std::unordered_map<std::string, RunId> made;
  for (const PlannedRun& plan : planned) {
    SweepStatus& status = draft.sweep(sweep.id);
    if (plan.number != status.proposed + 1) continue;
    LinkRow link{.sweep = sweep.id,
                 .number = plan.number,
                 .run = {},
                 .cell = plan.cell,
                 .columns = plan.columns};
    std::optional<RunState> found;
    const std::string key = LiveKey(plan.run.project, plan.run.run_key);
    const auto own = made.find(key);
    const auto live = state.live_keys.find(key);
    if (own != made.end()) {
      link.run = own->second;
      found = RunState::kQueued;
    } else if (live != state.live_keys.end()) {
      const Run& run = *state.FindRun(live->second);
      const bool is_own = std::ranges::any_of(
          run.links, [&](const SweepLink& other) { return other.sweep == sweep.id; });
      if (sweep.rerun == 0 || is_own) {
        link.run = live->second;
        found = run.status.state;
      }
    } else if (plan.stored.has_value() && sweep.rerun == 0) {
      link.run = plan.stored->first;
      const Run* run = state.FindRun(link.run);
      found = run != nullptr ? run->status.state : plan.stored->second;
    }
    if (found.has_value()) {
      ++reused;
    } else {
      RunRow row = plan.run;
      row.sweep = sweep.id;
      link.run = row.id;
      found = RunState::kQueued;
      made.emplace(key, row.id);
      const int32_t priority = status.priority.value_or(row.priority);
      draft.Add(std::move(row), priority);
    }
    draft.Add(std::move(link));
    status.proposed = plan.number;
    ++status.counts[static_cast<size_t>(*found)];
  }
  return reused;
}

// Live runs of a sweep that no other sweep in a state up to `kept_by` wants, in order of id.
std::vector<RunId> OwnRuns(const State& state, const Sweep& sweep, SweepState kept_by) {
  std::vector<RunId> out;
  for (const RunId id : sweep.live_runs) {
    const bool is_kept = std::ranges::any_of(state.FindRun(id)->links, [&](const SweepLink& link) {
      return link.sweep != sweep.row.id && state.FindSweep(link.sweep)->status.state <= kept_by;
    });
    if (!is_kept) out.push_back(id);
  }
  std::ranges::sort(out);
  return out;
}

std::string WithReason(std::string_view what, const std::string& reason) {
  return reason.empty() ? std::string(what) : StrCat(what, ": ", reason);
}

}  // namespace

bool SteerOne(Draft& draft, RunId id, Verb verb, const std::string& reason, int32_t priority) {
  RunStatus& status = draft.run(id);
  if (IsTerminal(status.state)) return false;
  const bool is_active = status.state == RunState::kActive;
  const bool is_ending = status.cancel_req || status.prune_req;
  switch (verb) {
    case Verb::kCancel:
      if (status.cancel_req) return false;
      status.cancel_req = true;
      draft.History("cancel_requested", id.value, reason);
      if (is_active) {
        RaiseIntent(draft, status.current_epoch, Intent::kCancel, StopReason::kCancel, kGraceMs);
      } else {
        draft.SetRunState(id, RunState::kCancelled, WithReason("cancelled", reason));
      }
      return true;
    case Verb::kKill:
      // Also an attempt that is killed for another reason: its run shall not be tried again.
      if (status.cancel_req && is_active &&
          draft.attempt(status.current_epoch).intent == Intent::kKill) {
        return false;
      }
      status.cancel_req = true;
      draft.History("kill_requested", id.value, reason);
      if (is_active) {
        RaiseIntent(draft, status.current_epoch, Intent::kKill, StopReason::kKill, 0);
      } else {
        draft.SetRunState(id, RunState::kCancelled, WithReason("killed", reason));
      }
      return true;
    case Verb::kPrune:
      if (is_ending) return false;
      status.prune_req = true;
      draft.History("prune_requested", id.value, reason);
      if (is_active) {
        RaiseIntent(draft, status.current_epoch, Intent::kDrain, StopReason::kPrune, kGraceMs);
      } else {
        draft.SetRunState(id, RunState::kStoppedEarly, WithReason("pruned", reason));
      }
      return true;
    case Verb::kPause:
      if (is_ending || status.pause_req) return false;
      status.pause_req = true;
      draft.History("pause_requested", id.value, reason);
      if (is_active) {
        RaiseIntent(draft, status.current_epoch, Intent::kDrain, StopReason::kPause, kGraceMs);
      } else if (status.state != RunState::kPaused) {
        draft.SetRunState(id, RunState::kPaused, WithReason("paused", reason));
      }
      return true;
    case Verb::kResume:
      if (!status.pause_req && status.state != RunState::kPaused) return false;
      status.pause_req = false;
      draft.History("resumed", id.value, reason);
      if (status.state == RunState::kPaused) draft.SetRunState(id, RunState::kQueued, "");
      return true;
    case Verb::kPriority:
      if (status.priority == priority) return false;
      status.priority = priority;
      draft.History("priority_changed", id.value, WithReason(StrCat("to ", priority), reason));
      return true;
  }
  return false;
}

void PauseSweep(Draft& draft, SweepId id, const std::string& reason, bool with_runs) {
  SweepStatus& status = draft.sweep(id);
  if (status.state != SweepState::kActive) return;
  status.reason = reason;
  draft.SetSweepState(id, SweepState::kPaused);
  if (!with_runs) return;
  const Sweep& sweep = *draft.state().FindSweep(id);
  for (const RunId run : OwnRuns(draft.state(), sweep, SweepState::kActive)) {
    SteerOne(draft, run, Verb::kPause, reason, 0);
  }
}

Decision On(const State& state, const SubmitSweep& event, const Now& now) {
  Draft draft(state, now);
  draft.Add(event.sweep);
  draft.History("sweep_submitted", event.sweep.id.value,
                StrCat(event.sweep.cells, " cells, ", event.sweep.runs, " runs"));
  const uint64_t reused = ProposeRuns(draft, event.sweep, event.first);
  draft.decision.answer = ProposeAnswer{reused};
  return draft.Finish();
}

Decision On(const State& state, const Propose& event, const Now& now) {
  Draft draft(state, now);
  const Sweep* sweep = state.FindSweep(event.sweep);
  // The flag is looked at inside the transaction that would make the runs.
  if (sweep == nullptr || !SWITCHYARD_GUARD(X38, sweep->status.state == SweepState::kActive)) {
    draft.decision.answer = ProposeAnswer{};
    return draft.Finish();
  }
  const uint64_t reused = ProposeRuns(draft, sweep->row, event.runs);
  draft.decision.answer = ProposeAnswer{reused};
  return draft.Finish();
}

Decision On(const State& state, const CloseSweep& event, const Now& now) {
  Draft draft(state, now);
  const Sweep* sweep = state.FindSweep(event.sweep);
  if (sweep != nullptr && sweep->row.is_drawn && !sweep->status.is_closed) {
    draft.sweep(event.sweep).is_closed = true;
    draft.History("strategy_exhausted", event.sweep.value,
                  StrCat(sweep->status.proposed, " runs proposed"));
  }
  return draft.Finish();
}

Decision On(const State& state, const ExtendSweep& event, const Now& now) {
  Draft draft(state, now);
  const Sweep* sweep = state.FindSweep(event.extension.id);
  if (sweep == nullptr || sweep->status.state > SweepState::kPaused) {
    draft.decision.status = FailedPrecondition("the sweep has ended");
    return draft.Finish();
  }
  draft.sweep(event.extension.id).is_closed = false;
  draft.Add(event.extension);
  draft.History("sweep_extended", event.extension.id.value,
                StrCat(event.extension.cells, " cells, ", event.extension.runs, " runs"));
  return draft.Finish();
}

Decision On(const State& state, const SteerSweep& event, const Now& now) {
  Draft draft(state, now);
  SteerAnswer answer;
  const Sweep* sweep = state.FindSweep(event.sweep);
  const auto refuse = [&](std::string_view why) {
    draft.decision.status = FailedPrecondition(StrCat(
        "sweep ", sweep == nullptr ? event.sweep.value.ToString() : sweep->row.name, " ", why));
    return draft.Finish();
  };
  const auto steer = [&](SweepState kept_by) {
    for (const RunId id : OwnRuns(state, *sweep, kept_by)) {
      answer.runs_affected += SteerOne(draft, id, event.verb, event.reason, event.priority) ? 1 : 0;
    }
  };
  if (sweep == nullptr) {
    // Ended: cancelling it again changes nothing, the rest has nothing to act on.
    if (event.verb != Verb::kCancel && event.verb != Verb::kKill) return refuse("has ended");
    draft.decision.answer = answer;
    return draft.Finish();
  }
  const SweepState before = sweep->status.state;
  switch (event.verb) {
    case Verb::kCancel:
    case Verb::kKill:
      if (before <= SweepState::kPaused) {
        draft.sweep(event.sweep).reason = event.reason;
        draft.SetSweepState(event.sweep, SweepState::kCancelling);
      }
      // What is being cancelled can still be killed.
      if (before <= SweepState::kPaused || event.verb == Verb::kKill) steer(SweepState::kPaused);
      break;
    case Verb::kPause:
      if (before == SweepState::kCancelling) return refuse("is being cancelled");
      if (before == SweepState::kActive) {
        draft.sweep(event.sweep).reason = event.reason.empty() ? "paused by a user" : event.reason;
        draft.SetSweepState(event.sweep, SweepState::kPaused);
        steer(SweepState::kActive);
      }
      break;
    case Verb::kResume:
      if (before == SweepState::kCancelling) return refuse("is being cancelled");
      if (before == SweepState::kPaused) {
        SweepStatus& status = draft.sweep(event.sweep);
        status.reason.clear();
        status.early_failures.clear();
        draft.SetSweepState(event.sweep, SweepState::kActive);
        steer(SweepState{});
      }
      break;
    case Verb::kPriority:
      draft.sweep(event.sweep).priority = event.priority;
      steer(SweepState{});
      break;
    case Verb::kPrune:
      return refuse("is not pruned as a whole: only runs are");
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

Decision On(const State& state, const SteerRun& event, const Now& now) {
  Draft draft(state, now);
  SteerAnswer answer;
  const Run* run = state.FindRun(event.run);
  const bool is_live = run != nullptr && !IsTerminal(run->status.state);
  const bool is_end = event.verb == Verb::kCancel || event.verb == Verb::kKill;
  if (is_live) {
    if (event.verb == Verb::kPause && (run->status.cancel_req || run->status.prune_req)) {
      draft.decision.status = FailedPrecondition("the run is being ended already");
    } else if (SteerOne(draft, event.run, event.verb, event.reason, event.priority)) {
      answer.runs_affected = 1;
    }
  } else if (!is_end) {
    draft.decision.status =
        FailedPrecondition(StrCat("the run has ended: it cannot take '", Name(event.verb),
                                  "' any more (retry makes a new run of it)"));
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

Decision On(const State& state, const RetryRuns& event, const Now& now) {
  Draft draft(state, now);
  const Sweep* sweep = state.FindSweep(event.sweep);
  const bool is_live = sweep != nullptr && sweep->status.state <= SweepState::kPaused;
  if (!is_live && !event.child.has_value()) {
    draft.decision.status = FailedPrecondition("the sweep has ended, and no child was given");
    return draft.Finish();
  }
  const SweepId into = is_live ? event.sweep : event.child->id;
  if (!is_live) {
    draft.Add(*event.child);
    draft.History("sweep_retried", event.sweep.value, event.child->name);
  }
  uint64_t planned = 0;
  if (is_live) planned = sweep->row.is_drawn ? kDrawnRunsMax : sweep->row.runs;
  RetryAnswer answer{.sweep = into};
  for (const RetryRuns::Retried& retried : event.runs) {
    const std::string key = LiveKey(retried.run.project, retried.run.run_key);
    // Somebody else has made this run anew already.
    if (state.live_keys.contains(key)) continue;
    SweepStatus& status = draft.sweep(into);
    RunRow row = retried.run;
    row.sweep = into;
    const LinkRow link{.sweep = into,
                       .number = planned + ++status.retried,
                       .run = row.id,
                       .cell = retried.cell,
                       .columns = retried.columns};
    draft.History("run_retried", row.parent->value, row.id.value.ToString());
    const int32_t priority = status.priority.value_or(row.priority);
    draft.Add(std::move(row), priority);
    draft.Add(link);
    ++status.counts[static_cast<size_t>(RunState::kQueued)];
    ++answer.made;
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

}  // namespace switchyard::scheduler
