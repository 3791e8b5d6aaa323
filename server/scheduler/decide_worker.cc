// Workers: registrations, heartbeats and what operators ask of them.
#include <algorithm>
#include <set>
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/handlers.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

// Walks one member as reported; a later state implies the earlier ones. True when it changed.
bool ObserveMember(Draft& draft, const Attempt& attempt, const MemberReport& report,
                   uint64_t random) {
  const Epoch epoch = attempt.row.epoch;
  std::vector<MemberRow>& members = draft.members(epoch);
  MemberRow& member = members[report.rank];
  bool changed = false;
  if (!attempt.is_observed) {
    draft.Volatile(AttemptObserved{epoch});
    changed = true;
  }
  // A record that was launched cannot be refused: the worker was through with the attempt, and this
  // coordinator was restored from before that. M9: it has no record of it any more. A9: nor has it
  // the lines that an ended rank is waited for.
  const bool is_gone = report.state == RecordState::kRefused &&
                       member.state != MemberState::kPending &&
                       member.state != MemberState::kPrepared;
  if (is_gone) {
    LoseAttempt(draft, epoch, StrCat("the worker has no record of it: ", report.reason),
                /*is_crash=*/false, random);
    return true;
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
      if (attempt.agent_restarted) draft.Volatile(AgentRestarted{epoch, false});
      return changed;
    case RecordState::kWedged:
      launch();
      if (member.state == MemberState::kLaunched) {
        draft.SetMemberState(member, MemberState::kStopping);
      }
      if (member.state == MemberState::kStopping) {
        draft.SetMemberState(member, MemberState::kWedged);
        draft.SetCordon(attempt.row.worker, true,
                        StrCat("wedged: attempt ", attempt.row.ordinal, " of run ",
                               report.run.value.ToString(), " is alive after SIGKILL"));
        changed = true;
      }
      return changed;
    case RecordState::kRefused:
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
      member.evidence =
          report.reason.empty() ? report.evidence : StrCat(report.evidence, ": ", report.reason);
      draft.SetMemberState(
          member, member.state != MemberState::kWedged &&
                          (report.exit_code == kExitFenced || report.end_class == EndClass::kFenced)
                      ? MemberState::kFenced
                      : MemberState::kExited);
      break;
  }
  draft.streams(epoch)[report.rank].declared_last = report.last_seq;
  AttemptStatus& status = draft.attempt(epoch);
  status.final_step = std::max(status.final_step, report.final_step);
  EvaluateEnd(draft, epoch, random, report.output_tail);
  // Its slots are free.
  draft.WantChanged(attempt.row.worker);
  return true;
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

// C5: what the worker says is gone.
void DeleteCheckpoints(Draft& draft, const Worker& worker, const std::set<CheckpointRef>& gone) {
  for (const CheckpointRef& ref : gone) {
    const auto known = draft.state().doomed.find(ref);
    if (known == draft.state().doomed.end() ||
        known->second.row.store != worker.row.checkpoint_store ||
        known->second.row.state != CheckpointState::kTombstoned) {
      continue;
    }
    CheckpointRow row = known->second.row;
    draft.SetCheckpointState(row, CheckpointState::kDeleted);
    draft.Add(std::move(row));
  }
}

}  // namespace

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
    row.drain_deadline_ms = known->row.drain_deadline_ms;
    row.cordoned = known->row.cordoned;
    row.cordon_reason = known->row.cordon_reason;
    if (row.instance_id != known->row.instance_id) {
      draft.contact(id).instance_changed = true;
      draft.History("worker_restarted", id.value, row.host);
    }
    if (row.incarnation > known->row.incarnation) {
      for (const Epoch epoch : known->attempts) draft.Volatile(AgentRestarted{epoch, true});
    }
    draft.worker(id) = row;
    if (row.admin == AdminState::kRetired) draft.SetAdmin(id, AdminState::kOpen, row.host);
  }
  draft.SetContact(id, Contact::kOnline);
  WorkerContact& contact = draft.contact(id);
  contact.nonce = event.nonce;
  // An agent counts its heartbeats over its registrations: a registration that comes once more must
  // not let in again what was heard.
  if (known == nullptr || row.incarnation > known->row.incarnation) contact.hb_seq = 0;
  contact.last = now.now;
  contact.applied = {};
  contact.is_leaving = false;
  return draft.Finish();
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
  draft.SetContact(event.worker, Contact::kOnline);
  WorkerContact& contact = draft.contact(event.worker);
  contact.hb_seq = event.hb_seq;
  contact.last = now.now;
  contact.applied = event.applied;
  if (event.is_echo_only) {
    draft.decision.answer = std::move(answer);
    return draft.Finish();
  }
  contact.instance_changed = false;
  if (event.is_leaving && !contact.is_leaving) {
    // Before its reports: what it refuses or ends from now on, it does because it leaves.
    contact.is_leaving = true;
    draft.History(
        "worker_leaving", event.worker.value,
        StrCat("a signal drains it, its attempts have ", event.leaving_grace_ms / 1000, " s"));
    for (const Epoch epoch : worker->attempts) {
      RaiseIntent(draft, epoch, Intent::kDrain, StopReason::kDrain, event.leaving_grace_ms);
    }
    answer.has_news = true;
  }

  std::set<Epoch> reported;
  for (const MemberReport& report : event.observed) {
    const Attempt* attempt = state.FindAttempt(report.epoch);
    const MemberName name{.run = report.run,
                          .ordinal = report.ordinal,
                          .epoch = report.epoch,
                          .rank = report.rank,
                          .worker = event.worker};
    if (attempt == nullptr) {
      // Named twice in one heartbeat.
      if (draft.HasAdded(report.epoch)) continue;
      const auto recorded = event.recorded.find(report.epoch);
      switch (SettleAbsent(draft, name,
                           recorded == event.recorded.end() ? nullptr : &recorded->second)) {
        case Absent::kSealed:
          answer.gc.push_back({report.epoch, report.rank});
          break;
        case Absent::kUnknown:
          draft.Stale(StaleKind::kUnknownAttempt);
          break;
        case Absent::kRecovered:
        case Absent::kUnsettled:
          break;
      }
      continue;
    }
    if (!Matches(*attempt, name)) {
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
      LoseAttempt(draft, epoch, "the worker's host restarted", /*is_crash=*/true, event.random);
      answer.has_news = true;
    } else if (applied >= attempt.row.assign_rev) {
      LoseAttempt(draft, epoch, "the worker has no record of it", /*is_crash=*/false, event.random);
      answer.has_news = true;
    }
  }
  for (const Epoch epoch : worker->ended) {
    // Its payload is gone from the worker: no line will come any more.
    if (reported.contains(epoch) || applied < state.FindAttempt(epoch)->row.assign_rev) continue;
    for (StreamRow& stream : draft.streams(epoch)) stream.sealed = true;
  }
  DeleteCheckpoints(draft, *worker, {event.deleted.begin(), event.deleted.end()});
  answer.has_news |= !answer.gc.empty();
  draft.decision.answer = std::move(answer);
  return draft.Finish();
}

Decision On(const State& state, const SteerWorker& event, const Now& now) {
  Draft draft(state, now);
  const Worker* worker = state.FindWorker(event.worker);
  if (worker == nullptr) {
    draft.decision.status =
        NotFound(StrCat("no worker ", event.worker.value.ToString(), " has registered"));
    return draft.Finish();
  }
  SteerAnswer answer;
  const auto refuse = [&](std::string_view why) {
    draft.decision.status = FailedPrecondition(
        StrCat("worker ", worker->row.host, " (", event.worker.value.ToString(), ") ", why));
  };
  switch (event.verb) {
    case WorkerVerb::kDrain: {
      if (worker->row.admin == AdminState::kRetired) {
        refuse("is retired");
        break;
      }
      const uint32_t grace_ms = event.deadline_ms.value_or(kGraceMs);
      if (worker->row.admin == AdminState::kOpen) {
        draft.SetAdmin(event.worker, AdminState::kDraining, event.reason);
      }
      if (event.deadline_ms.has_value() && worker->row.admin != AdminState::kDrained) {
        draft.worker(event.worker).drain_deadline_ms = now.unix_ms + *event.deadline_ms;
      }
      for (const Epoch epoch : worker->attempts) {
        RaiseIntent(draft, epoch, Intent::kDrain, StopReason::kDrain, grace_ms);
        ++answer.runs_affected;
      }
      break;
    }
    case WorkerVerb::kUndrain:
      if (worker->row.admin == AdminState::kDraining || worker->row.admin == AdminState::kDrained) {
        draft.SetAdmin(event.worker, AdminState::kOpen, event.reason);
      }
      break;
    case WorkerVerb::kCordon:
      draft.SetCordon(event.worker, true, event.reason.empty() ? "operator" : event.reason);
      break;
    case WorkerVerb::kUncordon:
      draft.SetCordon(event.worker, false, event.reason);
      break;
    case WorkerVerb::kFence:
      if (worker->contact == Contact::kOnline) {
        refuse("is in contact: drain it instead");
        break;
      }
      draft.History("worker_fenced", event.worker.value, event.reason);
      for (const Epoch epoch : worker->attempts) {
        LoseAttempt(draft, epoch, "an operator confirmed that its processes are gone",
                    /*is_crash=*/false, event.random ^ epoch.value);
        ++answer.runs_affected;
      }
      break;
  }
  draft.decision.answer = answer;
  return draft.Finish();
}

}  // namespace switchyard::scheduler
