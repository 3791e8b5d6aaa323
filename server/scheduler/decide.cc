#include "server/scheduler/decide.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "common/base/check.h"
#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/draft.h"
#include "server/scheduler/lease_policy.h"
#include "server/scheduler/plan.h"

namespace switchyard::scheduler {
namespace {

constexpr int32_t kExitStopped = 75;
constexpr int32_t kExitFenced = 76;

// Asks a live attempt to stop (A4). The intent only rises; the reason is set once.
void RaiseIntent(Draft& draft, Epoch epoch, Intent intent, StopReason reason) {
  AttemptStatus& status = draft.attempt(epoch);
  if (IsTerminal(status.state)) return;
  std::vector<MemberRow>& members = draft.members(epoch);
  const bool all_ended = std::ranges::all_of(
      members, [](const MemberRow& member) { return IsTerminal(member.state); });
  // It waits for its stream: nothing is left to stop, and finished work wins.
  if (all_ended) return;
  if (status.stop_reason == StopReason::kNone) status.stop_reason = reason;
  if (!SWITCHYARD_GUARD(X34, intent > status.intent)) return;
  status.intent = intent;
  if (status.state != AttemptState::kStopping) {
    draft.SetAttemptState(epoch, AttemptState::kStopping);
  }
  for (MemberRow& member : members) {
    if (member.state == MemberState::kLaunched) {
      draft.SetMemberState(member, MemberState::kStopping);
    }
  }
  draft.WantChanged(draft.state().FindAttempt(epoch)->row.worker);
}

// R13, R17, and the request on a live attempt.
void CancelOne(Draft& draft, RunId id, const std::string& reason) {
  RunStatus& status = draft.run(id);
  if (IsTerminal(status.state) || status.cancel_req) return;
  status.cancel_req = true;
  draft.History("cancel_requested", id.value, reason);
  if (status.state == RunState::kActive) {
    RaiseIntent(draft, status.current_epoch, Intent::kCancel, StopReason::kCancel);
  } else {
    draft.SetRunState(id, RunState::kCancelled,
                      reason.empty() ? "cancelled" : StrCat("cancelled: ", reason));
  }
}

std::string EndReason(const MemberRow& member, const AttemptStatus& status) {
  if (member.state == MemberState::kRefused) return StrCat("refused: ", member.evidence);
  if (member.state == MemberState::kLost) return StrCat("lost: ", member.evidence);
  std::string out = member.signal != 0 ? StrCat("signal ", member.signal)
                                       : StrCat("exit code ", member.exit_code);
  if (member.end_class != EndClass::kNone) out += StrCat(", class ", Name(member.end_class));
  if (!member.evidence.empty()) out += StrCat(": ", member.evidence);
  if (status.stop_reason != StopReason::kNone) out += StrCat(" (", Name(status.stop_reason), ")");
  return out;
}

// What a terminal attempt means for its run (R3..R11, in this precedence).
void EndRun(Draft& draft, Epoch epoch, uint64_t random) {
  const Attempt& attempt = *draft.state().FindAttempt(epoch);
  const AttemptStatus& outcome = draft.attempt(epoch);
  RunStatus& status = draft.run(attempt.row.run);
  if (attempt.running_since.has_value()) {
    status.active_ms += static_cast<uint64_t>((draft.now().now - *attempt.running_since).count());
  }
  draft.History(StrCat("attempt_", Name(outcome.state)), attempt.row.run.value,
                StrCat("attempt ", attempt.row.ordinal, ": ", outcome.reason));
  const uint64_t published = draft.PublishedStep(attempt.row.run);
  if (published > status.progress_step) {
    status.progress_step = published;
    status.infra_streak = 0;
    status.crash_fail = 0;
    status.user_fail = 0;
  }
  const bool is_infra =
      outcome.state == AttemptState::kLost ||
      (outcome.state == AttemptState::kFailed && outcome.end_class == EndClass::kInfra);
  if (is_infra) {
    ++status.infra_fail;
    ++status.infra_streak;
  } else if (outcome.state == AttemptState::kPreempted) {
    ++status.infra_streak;
  } else if (outcome.state == AttemptState::kFailed) {
    if (outcome.end_class == EndClass::kUser) ++status.user_fail;
    if (outcome.end_class == EndClass::kInternal || outcome.end_class == EndClass::kUnknown) {
      ++status.crash_fail;
    }
  }
  const RunId id = status.id;
  if (outcome.state == AttemptState::kSucceeded) {
    draft.SetRunState(id, RunState::kSucceeded, "");
  } else if (status.cancel_req) {
    draft.SetRunState(id, RunState::kCancelled, outcome.reason);
  } else if (status.prune_req) {
    draft.SetRunState(id, RunState::kStoppedEarly, outcome.reason);
  } else if (!SWITCHYARD_GUARD(X40, status.infra_streak < kInfraStreakMax)) {
    draft.SetRunState(
        id, RunState::kQuarantined,
        StrCat("no progress over ", status.infra_streak, " attempts: ", outcome.reason));
  } else if (outcome.state == AttemptState::kFailed && !is_infra) {
    draft.SetRunState(id, RunState::kFailed, outcome.reason);
  } else if (status.pause_req) {
    draft.SetRunState(id, RunState::kPaused, "paused");
  } else if (is_infra) {
    const Milliseconds wait = InfraBackoff(status.infra_streak, random);
    status.not_before_ms = draft.now().unix_ms + wait.count();
    draft.SetRunState(id, RunState::kBackoff, outcome.reason);
  } else {
    draft.SetRunState(id, RunState::kQueued, outcome.reason);
  }
}

// Ends an attempt whose ranks have all ended, when nothing has to be waited for (A5..A10).
void EvaluateEnd(Draft& draft, Epoch epoch, uint64_t random) {
  AttemptStatus& status = draft.attempt(epoch);
  if (IsTerminal(status.state)) return;
  const std::vector<MemberRow>& members = draft.members(epoch);
  const std::vector<StreamRow>& streams = draft.streams(epoch);
  bool all_ok = true;
  bool streams_complete = true;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!IsTerminal(members[i].state)) return;
    all_ok &= members[i].state == MemberState::kExited && members[i].exit_code == 0 &&
              members[i].signal == 0 && members[i].complete;
    streams_complete &=
        streams[i].declared_last.has_value() && streams[i].acked >= *streams[i].declared_last;
  }
  const MemberRow& root = *std::ranges::find_if(
      members, [](const MemberRow& member) { return IsTerminal(member.state); });
  const auto end = [&](AttemptState to, EndClass end_class) {
    status.end_class = end_class;
    status.reason = EndReason(root, status);
    draft.SetAttemptState(epoch, to);
    EndRun(draft, epoch, random);
  };
  const auto wait_for_stream = [&] {
    if (status.state != AttemptState::kStopping) {
      draft.SetAttemptState(epoch, AttemptState::kStopping);
    }
  };
  const bool is_exited = root.state == MemberState::kExited;
  if (all_ok) {
    if (!SWITCHYARD_GUARD(X41, streams_complete)) return wait_for_stream();
    return end(AttemptState::kSucceeded, EndClass::kOk);
  }
  // SIGTERM from outside.
  if (is_exited && root.exit_code == kExitStopped && status.stop_reason == StopReason::kNone) {
    status.stop_reason = StopReason::kPreempt;
  }
  switch (status.stop_reason) {
    case StopReason::kCancel:
    case StopReason::kKill:
      return end(AttemptState::kCancelled, EndClass::kStopped);
    case StopReason::kTimeout:
      return end(AttemptState::kFailed, EndClass::kTimeout);
    case StopReason::kDrain:
    case StopReason::kPause:
    case StopReason::kPrune:
    case StopReason::kPreempt:
      if (is_exited && (root.exit_code == kExitStopped ||
                        (root.exit_code == 0 && root.signal == 0 && !root.complete))) {
        if (!SWITCHYARD_GUARD(X41, streams_complete)) return wait_for_stream();
        return end(AttemptState::kPreempted, EndClass::kStopped);
      }
      if (root.state == MemberState::kRefused ||
          (is_exited && root.end_class == EndClass::kStopped)) {
        return end(AttemptState::kPreempted, EndClass::kStopped);
      }
      break;
    case StopReason::kNone:
    case StopReason::kSibling:
    case StopReason::kFormTimeout:
      break;
  }
  if (root.state == MemberState::kLost || root.state == MemberState::kFenced) {
    return end(AttemptState::kLost,
               root.state == MemberState::kFenced ? EndClass::kFenced : EndClass::kInfra);
  }
  if (root.state == MemberState::kRefused || status.stop_reason == StopReason::kFormTimeout) {
    return end(AttemptState::kFailed, EndClass::kInfra);
  }
  const bool has_no_class = root.end_class == EndClass::kNone || root.end_class == EndClass::kOk ||
                            root.end_class == EndClass::kStopped;
  end(AttemptState::kFailed, has_no_class ? EndClass::kInternal : root.end_class);
}

// M9, A9.
void LoseAttempt(Draft& draft, Epoch epoch, std::string_view why, uint64_t random) {
  AttemptStatus& status = draft.attempt(epoch);
  if (IsTerminal(status.state)) return;
  bool any_lost = false;
  for (MemberRow& member : draft.members(epoch)) {
    if (IsTerminal(member.state)) continue;
    member.evidence = why;
    draft.SetMemberState(member, MemberState::kLost);
    any_lost = true;
  }
  if (any_lost) {
    EvaluateEnd(draft, epoch, random);
    if (IsTerminal(draft.attempt(epoch).state)) return;
  }
  // Lost while it waited for its stream: its record is incomplete.
  status.end_class = EndClass::kInfra;
  status.reason = StrCat("lost before its last lines arrived: ", why);
  draft.SetAttemptState(epoch, AttemptState::kLost);
  EndRun(draft, epoch, random);
}

// Walks one member as reported; a later state implies the earlier ones. True when it changed.
bool ObserveMember(Draft& draft, const Attempt& attempt, const MemberReport& report,
                   uint64_t random) {
  const Epoch epoch = attempt.row.epoch;
  std::vector<MemberRow>& members = draft.members(epoch);
  MemberRow& member = members[report.rank];
  bool changed = false;
  if (!attempt.is_observed) {
    draft.Observed(epoch);
    changed = true;
  }
  if (!SWITCHYARD_GUARD(X06, !IsTerminal(member.state))) return changed;
  const auto launch = [&] {
    if (member.state != MemberState::kPending && member.state != MemberState::kPrepared) return;
    draft.SetMemberState(member, MemberState::kLaunched);
    changed = true;
    const AttemptStatus& status = draft.attempt(epoch);
    if (status.state == AttemptState::kAssigned) {
      draft.SetAttemptState(epoch, AttemptState::kRunning);
    } else if (status.intent > Intent::kRun) {
      draft.SetMemberState(member, MemberState::kStopping);
    }
  };
  switch (report.state) {
    case RecordState::kLaunching:
    case RecordState::kRunning:
      launch();
      return changed;
    case RecordState::kRefused:
      // A record that was launched cannot be refused: what it says now is not believed.
      if (member.state != MemberState::kPending && member.state != MemberState::kPrepared) {
        draft.Stale(StaleKind::kUnknownAttempt);
        return changed;
      }
      member.evidence = report.reason;
      member.end_class = EndClass::kInfra;
      draft.SetMemberState(member, MemberState::kRefused);
      break;
    case RecordState::kExited:
      launch();
      member.exit_code = report.exit_code;
      member.signal = report.signal;
      member.end_class = report.end_class;
      member.complete = report.complete;
      member.evidence = report.evidence;
      draft.SetMemberState(member,
                           report.exit_code == kExitFenced || report.end_class == EndClass::kFenced
                               ? MemberState::kFenced
                               : MemberState::kExited);
      break;
  }
  draft.streams(epoch)[report.rank].declared_last = report.last_seq;
  AttemptStatus& status = draft.attempt(epoch);
  status.final_step = std::max(status.final_step, report.final_step);
  EvaluateEnd(draft, epoch, random);
  // Its slots are free.
  draft.WantChanged(attempt.row.worker);
  return true;
}

bool Matches(const Attempt& attempt, RunId run, uint32_t ordinal, uint32_t rank, WorkerId worker) {
  return attempt.row.run == run && attempt.row.ordinal == ordinal &&
         rank < attempt.members.size() && attempt.members[rank].worker == worker;
}

// ---------------------------------------------------------------- workers

Decision On(const State& state, const Register& event, const Now& now) {
  Draft draft(state, now);
  const WorkerId id = event.worker.id;
  if (Rev{event.seen_generation, event.seen_boot, 0} > Rev{state.generation, state.boot, 0}) {
    draft.Stale(StaleKind::kEpoch);
    draft.decision.status = FailedPrecondition(
        StrCat("worker ", id.value.ToString(), " has seen generation ", event.seen_generation,
               " boot ", event.seen_boot, ", this coordinator is at ", state.generation, " boot ",
               state.boot, ": an old database"));
    return draft.Finish();
  }
  const Worker* known = state.FindWorker(id);
  if (known != nullptr && event.worker.incarnation < known->row.incarnation) {
    draft.Stale(StaleKind::kIncarnation);
    draft.decision.status = FailedPrecondition(
        StrCat("superseded: incarnation ", event.worker.incarnation, " of worker ",
               id.value.ToString(), " is older than ", known->row.incarnation));
    return draft.Finish();
  }
  WorkerRow row = event.worker;
  if (known == nullptr) {
    draft.History("worker_registered", id.value, StrCat(row.host, ", pool ", row.pool));
    draft.Add(row);
  } else {
    row.admin = known->row.admin;
    row.cordoned = known->row.cordoned;
    row.cordon_reason = known->row.cordon_reason;
    if (row.instance_id != known->row.instance_id) {
      draft.contact(id).instance_changed = true;
      draft.History("worker_restarted", id.value, row.host);
    }
    draft.worker(id) = row;
  }
  WorkerContact& contact = draft.contact(id);
  contact.contact = Contact::kOnline;
  contact.nonce = event.nonce;
  contact.hb_seq = 0;
  contact.last = now.now;
  contact.applied = {};
  return draft.Finish();
}

// A record of an attempt that has ended already.
void ObserveEnded(Draft& draft, const Attempt& attempt, const MemberReport& report,
                  HeartbeatAnswer* answer) {
  if (report.state != RecordState::kExited && report.state != RecordState::kRefused) return;
  StreamRow& stream = draft.streams(attempt.row.epoch)[report.rank];
  if (!stream.declared_last.has_value()) {
    stream.declared_last = report.last_seq;
    draft.Stale(StaleKind::kLateOutcome);
    draft.History("late_outcome", attempt.row.run.value,
                  StrCat("attempt ", attempt.row.ordinal, ": exit code ", report.exit_code,
                         ", class ", Name(report.end_class)));
  }
  if (stream.acked >= *stream.declared_last) {
    answer->gc.push_back({attempt.row.epoch, report.rank});
  }
}

Decision On(const State& state, const Heartbeat& event, const Now& now) {
  Draft draft(state, now);
  const Worker* worker = state.FindWorker(event.worker);
  if (worker == nullptr || worker->nonce.empty() || worker->nonce != event.nonce) {
    draft.Stale(StaleKind::kNonce);
    draft.decision.status = FailedPrecondition("nonce is not of the newest registration");
    return draft.Finish();
  }
  if (!SWITCHYARD_GUARD(X13, event.incarnation == worker->row.incarnation)) {
    draft.Stale(StaleKind::kIncarnation);
    draft.decision.status = FailedPrecondition(
        StrCat("incarnation ", event.incarnation, " is not ", worker->row.incarnation));
    return draft.Finish();
  }
  if (!SWITCHYARD_GUARD(X35, event.hb_seq > worker->hb_seq)) {
    // Overtaken: what it reports is old, but the worker may have an answer at once.
    draft.Stale(StaleKind::kHbSeq);
    draft.decision.answer = HeartbeatAnswer{.gc = {}, .has_news = true};
    return draft.Finish();
  }
  HeartbeatAnswer answer;
  const Milliseconds due = HeartbeatPeriod(state.workers.size());
  if (worker->hb_seq > 0) {
    answer.delay = std::max(Milliseconds(0), now.now - worker->last - due);
  }
  WorkerContact& contact = draft.contact(event.worker);
  contact.contact = Contact::kOnline;
  contact.hb_seq = event.hb_seq;
  contact.last = now.now;
  contact.applied = event.applied;
  contact.instance_changed = false;

  std::set<Epoch> reported;
  for (const MemberReport& report : event.observed) {
    const Attempt* attempt = state.FindAttempt(report.epoch);
    if (attempt == nullptr) {
      // Epochs of this generation up to the last one were ours: this one has ended and is stored.
      const bool is_ours =
          report.epoch.value <= state.last_epoch && report.epoch.value >> 48 == state.generation;
      if (is_ours) {
        answer.gc.push_back({report.epoch, report.rank});
      } else {
        draft.Stale(StaleKind::kUnknownAttempt);
      }
      continue;
    }
    if (!Matches(*attempt, report.run, report.ordinal, report.rank, event.worker)) {
      draft.Stale(StaleKind::kUnknownAttempt);
      continue;
    }
    reported.insert(report.epoch);
    if (!SWITCHYARD_GUARD(X06, !IsTerminal(attempt->status.state))) {
      ObserveEnded(draft, *attempt, report, &answer);
    } else {
      answer.has_news |= ObserveMember(draft, *attempt, report, event.random);
    }
  }
  const uint64_t applied = event.applied.generation == state.generation
                               ? PackRev(event.applied.boot, event.applied.n)
                               : 0;
  for (const Epoch epoch : worker->attempts) {
    if (reported.contains(epoch)) continue;
    const Attempt& attempt = *state.FindAttempt(epoch);
    if (worker->instance_changed) {
      LoseAttempt(draft, epoch, "the worker's host restarted", event.random);
      answer.has_news = true;
    } else if (applied >= attempt.row.assign_rev) {
      LoseAttempt(draft, epoch, "the worker has no record of it", event.random);
      answer.has_news = true;
    }
  }
  for (const Epoch epoch : worker->ended) {
    // Its payload is gone from the worker: no line will come any more.
    if (reported.contains(epoch) || applied < state.FindAttempt(epoch)->row.assign_rev) continue;
    for (StreamRow& stream : draft.streams(epoch)) stream.sealed = true;
  }
  answer.has_news |= !answer.gc.empty();
  draft.decision.answer = std::move(answer);
  return draft.Finish();
}

// ---------------------------------------------------------------- sweeps and runs

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
      draft.Add(std::move(row));
    }
    draft.Add(std::move(link));
    status.proposed = plan.number;
    ++status.counts[static_cast<size_t>(*found)];
  }
  return reused;
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

Decision On(const State& state, const CancelSweep& event, const Now& now) {
  Draft draft(state, now);
  CancelAnswer answer;
  const Sweep* sweep = state.FindSweep(event.sweep);
  if (sweep != nullptr && sweep->status.state <= SweepState::kPaused) {
    draft.sweep(event.sweep).reason = event.reason;
    draft.SetSweepState(event.sweep, SweepState::kCancelling);
    std::vector<RunId> runs(sweep->live_runs.begin(), sweep->live_runs.end());
    std::ranges::sort(runs);
    for (const RunId id : runs) {
      const Run& run = *state.FindRun(id);
      const bool is_kept = std::ranges::any_of(run.links, [&](const SweepLink& link) {
        return link.sweep != event.sweep &&
               state.FindSweep(link.sweep)->status.state <= SweepState::kPaused;
      });
      if (is_kept || run.status.cancel_req) continue;
      CancelOne(draft, id, event.reason);
      ++answer.runs_affected;
    }
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

Decision On(const State& state, const CancelRun& event, const Now& now) {
  Draft draft(state, now);
  CancelAnswer answer;
  const Run* run = state.FindRun(event.run);
  if (run != nullptr && !IsTerminal(run->status.state) && !run->status.cancel_req) {
    CancelOne(draft, event.run, event.reason);
    answer.runs_affected = 1;
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

// ---------------------------------------------------------------- recording

Decision On(const State& state, const Append& event, const Now& now) {
  Draft draft(state, now);
  const Attempt* attempt = state.FindAttempt(event.epoch);
  if (attempt == nullptr ||
      !Matches(*attempt, event.run, event.ordinal, event.rank, event.worker)) {
    const bool is_sealed = attempt == nullptr && event.epoch.value <= state.last_epoch &&
                           event.epoch.value >> 48 == state.generation;
    draft.Stale(is_sealed ? StaleKind::kSealed : StaleKind::kUnknownAttempt);
    draft.decision.status = FailedPrecondition(
        StrCat("stream of epoch ", event.epoch.value, " rank ", event.rank,
               is_sealed ? " is sealed" : " is not known for this run and worker"));
    return draft.Finish();
  }
  const uint64_t acked = attempt->streams[event.rank].acked;
  AppendAnswer answer{.committed = acked};
  const uint64_t last = event.first_seq + event.n - 1;
  if (event.first_seq > acked + 1) {
    draft.Stale(StaleKind::kGap);
    answer.expect = acked + 1;
    draft.decision.answer = answer;
    return draft.Finish();
  }
  if (!SWITCHYARD_GUARD(X03, last > acked)) {
    draft.decision.answer = answer;
    return draft.Finish();
  }
  answer.accepted_from = acked + 1;
  answer.committed = last;
  draft.streams(event.epoch)[event.rank].acked = last;
  for (const LineFact& line : event.lines) {
    if (line.seq <= acked || event.rank != 0) continue;
    switch (line.kind) {
      case LineFact::Kind::kHello:
        draft.attempt(event.epoch).start_reported = true;
        break;
      case LineFact::Kind::kResume: {
        AttemptStatus& status = draft.attempt(event.epoch);
        status.start_reported = true;
        // As reported: a damaged checkpoint makes the trainer fall back to an older one.
        const bool is_assigned = SWITCHYARD_GUARD(X32, false);
        status.resumed_epoch = is_assigned ? attempt->row.resume_epoch : line.from;
        status.resumed_step = is_assigned ? attempt->row.resume_step : line.step;
        break;
      }
      case LineFact::Kind::kCheckpoint: {
        const Run* run = state.FindRun(attempt->row.run);
        const bool is_current =
            SWITCHYARD_GUARD(X08, !IsTerminal(attempt->status.state) && run != nullptr &&
                                      run->status.current_epoch == event.epoch);
        draft.Add(CheckpointRow{
            .run = attempt->row.run,
            .epoch = event.epoch,
            .step = line.step,
            .state = is_current ? CheckpointState::kPublished : CheckpointState::kOrphan,
            .digest = line.digest,
            .bytes = line.bytes,
            .path = line.path,
            .store = state.FindWorker(attempt->row.worker)->row.checkpoint_store});
        break;
      }
    }
  }
  if (attempt->status.state == AttemptState::kStopping) {
    EvaluateEnd(draft, event.epoch, event.random);
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

Decision On(const State& state, const AppendLog& event, const Now& now) {
  Draft draft(state, now);
  const Attempt* attempt = state.FindAttempt(event.epoch);
  if (attempt == nullptr ||
      !Matches(*attempt, event.run, event.ordinal, event.rank, event.worker)) {
    draft.Stale(StaleKind::kUnknownAttempt);
    draft.decision.status =
        FailedPrecondition(StrCat("output of epoch ", event.epoch.value, " rank ", event.rank,
                                  " is not known for this run and worker, or sealed"));
    return draft.Finish();
  }
  const StreamRow& stream = attempt->streams[event.rank];
  const uint64_t stored =
      event.stream == LogStream::kStdout ? stream.stdout_end : stream.stderr_end;
  const uint64_t end = event.offset + event.size;
  AppendLogAnswer answer{.committed = stored, .accepted_from = 0, .accepted_to = 0};
  if (end > stored) {
    answer.accepted_from = std::max(stored, event.offset);
    answer.accepted_to = end;
    answer.committed = end;
    StreamRow& changed = draft.streams(event.epoch)[event.rank];
    (event.stream == LogStream::kStdout ? changed.stdout_end : changed.stderr_end) = end;
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

// ---------------------------------------------------------------- time

Decision On(const State& state, const Tick& event, const Now& now) {
  Draft draft(state, now);
  const Milliseconds suspect = SuspectAfter(state.workers.size());
  for (const auto& [id, worker] : state.workers) {
    const Milliseconds silent = now.now - worker.last;
    if (silent >= kReplaceAfter) {
      for (const Epoch epoch : worker.attempts) {
        ++draft.decision.leases_expired;
        LoseAttempt(draft, epoch,
                    StrCat("no contact with the worker for ", silent.count() / 1000, " s"),
                    event.random ^ epoch.value);
      }
      if (worker.contact != Contact::kLost) draft.contact(id).contact = Contact::kLost;
    } else if (silent >= suspect && worker.contact == Contact::kOnline) {
      draft.contact(id).contact = Contact::kSuspect;
    }
    for (const Epoch epoch : worker.ended) {
      const Attempt& attempt = *state.FindAttempt(epoch);
      if (attempt.ended_at.has_value() && now.now - *attempt.ended_at >= kSealAfter) {
        for (StreamRow& stream : draft.streams(epoch)) stream.sealed = true;
      }
    }
    for (const Epoch epoch : worker.attempts) {
      const Attempt& attempt = *state.FindAttempt(epoch);
      if (attempt.status.state == AttemptState::kAssigned &&
          now.now - attempt.assigned_at >= kFormTimeout) {
        RaiseIntent(draft, epoch, Intent::kKill, StopReason::kFormTimeout);
      }
      const Run& run = *state.FindRun(attempt.row.run);
      if (run.row.timeout_ms > 0 && attempt.running_since.has_value() &&
          attempt.status.stop_reason == StopReason::kNone &&
          run.status.active_ms +
                  static_cast<uint64_t>((now.now - *attempt.running_since).count()) >=
              run.row.timeout_ms) {
        RaiseIntent(draft, epoch, Intent::kDrain, StopReason::kTimeout);
      }
    }
  }
  for (const RunId id : state.backoff) {
    if (now.now >= state.FindRun(id)->not_before) {
      draft.SetRunState(id, RunState::kQueued, draft.run(id).reason);
    }
  }
  return draft.Finish();
}

Decision On(const State& state, const Schedule&, const Now& now) {
  Draft draft(state, now);
  ScheduleAnswer answer;
  uint64_t epoch = state.last_epoch;
  for (Placement& placement : PlanPlacements(state, now.now, kPlacementsMax)) {
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

}  // namespace

std::string_view Name(StaleKind kind) {
  switch (kind) {
    case StaleKind::kIncarnation:
      return "incarnation";
    case StaleKind::kNonce:
      return "nonce";
    case StaleKind::kHbSeq:
      return "hb_seq";
    case StaleKind::kEpoch:
      return "epoch";
    case StaleKind::kSealed:
      return "sealed";
    case StaleKind::kGap:
      return "gap";
    case StaleKind::kUnknownAttempt:
      return "unknown_attempt";
    case StaleKind::kLateOutcome:
      return "late_outcome";
  }
  return "unspecified";
}

Decision Decide(const State& state, const Event& event, const Now& now) {
  return std::visit([&](const auto& one) { return On(state, one, now); }, event);
}

}  // namespace switchyard::scheduler
