// Ends of attempts, and what they mean for their runs: outcome, retry, poison rules, back-off.
#include <algorithm>
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/handlers.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

constexpr size_t kSignaturesMax = 8;
constexpr size_t kBlamedMax = 32;
constexpr size_t kEarlyFailuresMax = 16;
constexpr size_t kSignatureBytesMax = 200;

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

// Ends that are alike have equal texts. Digits are left out: steps, addresses and times differ.
std::string SignatureOf(const MemberRow& root, EndClass end_class) {
  std::string out = StrCat(Name(end_class), root.signal != 0 ? " signal " : " exit ",
                           root.signal != 0 ? root.signal : root.exit_code, " ");
  for (const char c : root.evidence) {
    if (out.size() >= kSignatureBytesMax) break;
    if (c < '0' || c > '9') out += c;
  }
  return out;
}

bool HasSignature(const AttemptStatus& outcome) {
  return outcome.state == AttemptState::kFailed &&
         (outcome.end_class == EndClass::kInternal || outcome.end_class == EndClass::kUnknown ||
          outcome.end_class == EndClass::kUser);
}

const MemberRow& RootOf(const std::vector<MemberRow>& members) {
  // The first to end; ranks that end after it are collateral.
  return *std::ranges::find_if(members,
                               [](const MemberRow& member) { return IsTerminal(member.state); });
}

WorkerBlame& BlameOf(PoisonEvidence& evidence, WorkerId worker) {
  for (WorkerBlame& blame : evidence.workers) {
    if (blame.worker == worker) return blame;
  }
  if (evidence.workers.size() >= kBlamedMax) evidence.workers.erase(evidence.workers.begin());
  return evidence.workers.emplace_back(WorkerBlame{.worker = worker});
}

// Notes a signature. Not empty: why the run is quarantined.
std::string NoteSignature(PoisonEvidence& evidence, EndSignature end) {
  bool is_same_step = false;
  uint32_t without_progress = 1;
  for (const EndSignature& before : evidence.signatures) {
    if (before.text != end.text) continue;
    const uint64_t apart = before.step > end.step ? before.step - end.step : end.step - before.step;
    is_same_step |= apart <= 1;
    if (before.progress_step == end.progress_step) ++without_progress;
  }
  std::string why;
  if (is_same_step) {
    why = StrCat("the same end twice at step ", end.step);
  } else if (without_progress >= 3) {
    why = StrCat("the same end ", without_progress, " times without a newer checkpoint");
  }
  if (evidence.signatures.size() >= kSignaturesMax) {
    evidence.signatures.erase(evidence.signatures.begin());
  }
  evidence.signatures.push_back(std::move(end));
  return why;
}

// SW4: the breaker counts first attempts that fail alike before their first step.
void CountEarlyFailure(Draft& draft, const Run& run, const std::string& signature) {
  for (const SweepLink& link : run.links) {
    SweepStatus& sweep = draft.sweep(link.sweep);
    if (sweep.state != SweepState::kActive) continue;
    auto known = std::ranges::find(sweep.early_failures, signature, &EarlyFailure::signature);
    if (known == sweep.early_failures.end()) {
      if (sweep.early_failures.size() >= kEarlyFailuresMax) continue;
      known = sweep.early_failures.insert(known, {.signature = signature, .count = 0});
    }
    if (++known->count >= kBreakerFailures) {
      PauseSweep(draft, link.sweep,
                 StrCat("breaker: ", known->count,
                        " first attempts failed alike before their first step: ", signature),
                 /*with_runs=*/false);
    }
  }
}

// W10: failures of several runs in a short time are the worker's.
void CountInfraEnd(Draft& draft, WorkerId id, RunId run) {
  draft.Volatile(InfraEnd{.worker = id, .run = run});
  const Worker* worker = draft.state().FindWorker(id);
  if (worker == nullptr) return;
  std::set<RunId> runs{run};
  for (const auto& [at, other] : worker->infra_ends) {
    if (draft.now().now - at <= kCordonWindow) runs.insert(other);
  }
  if (runs.size() >= kCordonRuns) {
    draft.SetCordon(id, true,
                    StrCat("infrastructure failures of ", runs.size(), " runs in 10 minutes"));
  }
}

// How one attempt ended, as far as retries go by it.
struct End {
  EndClass end_class = EndClass::kNone;
  bool is_crash = false;         // together with its agent or host
  std::string_view output_tail;  // user errors
  uint64_t random = 0;           // for the back-off
};

// A user error that the run's policy lists, by its code or by what was written last.
bool IsListed(const RunPolicy& policy, int32_t exit_code, std::string_view output_tail) {
  return std::ranges::find(policy.user_codes, exit_code) != policy.user_codes.end() ||
         std::ranges::any_of(policy.user_texts, [&](const std::string& text) {
           return output_tail.find(text) != std::string_view::npos;
         });
}

// What a run's policy says about one more attempt after a failure of this class; false: none.
bool IsTriedAgain(const Run& run, RunStatus& status, const End& end, int32_t exit_code) {
  const RunPolicy& policy = run.row.policy;
  switch (end.end_class) {
    case EndClass::kInternal:
    case EndClass::kUnknown:
      return status.crash_fail <= policy.crash_budget;
    case EndClass::kUser:
      return status.user_fail <= policy.user_budget && IsListed(policy, exit_code, end.output_tail);
    case EndClass::kOom:
      if (status.alternative >= policy.alternatives.size()) return false;
      ++status.alternative;
      return true;
    default:
      return false;
  }
}

// What a terminal attempt means for its run (R3..R11, in this precedence).
void EndRun(Draft& draft, Epoch epoch, const End& end) {
  const Attempt& attempt = *draft.state().FindAttempt(epoch);
  const AttemptStatus& outcome = draft.attempt(epoch);
  const std::vector<MemberRow>& members = draft.members(epoch);
  const MemberRow& root = RootOf(members);
  RunStatus& status = draft.run(attempt.row.run);
  const RunId id = status.id;
  const Run& run = *draft.state().FindRun(id);
  if (attempt.running_since.has_value()) {
    const auto ms = static_cast<uint64_t>((draft.now().now - *attempt.running_since).count());
    status.active_ms += ms;
    const uint64_t slot_ms = ms * SlotsOf(members);
    for (const SweepLink& link : run.links) draft.sweep(link.sweep).slot_ms += slot_ms;
  }
  draft.History(StrCat("attempt_", Name(outcome.state)), id.value,
                StrCat("attempt ", attempt.row.ordinal, ": ", outcome.reason));
  const uint64_t published = draft.PublishedStep(id);
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
    ++BlameOf(status.evidence, attempt.row.worker).infra_ends;
    if (outcome.state == AttemptState::kFailed) CountInfraEnd(draft, attempt.row.worker, id);
  } else if (outcome.state == AttemptState::kPreempted) {
    ++status.infra_streak;
  } else if (outcome.state == AttemptState::kFailed) {
    if (outcome.end_class == EndClass::kUser) ++status.user_fail;
    if (outcome.end_class == EndClass::kInternal || outcome.end_class == EndClass::kUnknown) {
      ++status.crash_fail;
    }
  }
  std::string poison;
  if (HasSignature(outcome)) {
    const std::string signature = SignatureOf(root, outcome.end_class);
    const uint64_t step = std::max(outcome.final_step, attempt.step);
    poison = NoteSignature(
        status.evidence, {.text = signature, .step = step, .progress_step = status.progress_step});
    if (attempt.row.ordinal == 1 && step < 1) CountEarlyFailure(draft, run, signature);
  }
  if (end.is_crash) {
    ++BlameOf(status.evidence, attempt.row.worker).crashes;
    if (++status.evidence.crashes >= kCrashesMax) {
      poison = StrCat("its agent or host went down with it ", status.evidence.crashes, " times");
    }
  }
  if (poison.empty() && !SWITCHYARD_GUARD(X40, status.infra_streak < kInfraStreakMax)) {
    poison = StrCat("no progress over ", status.infra_streak, " attempts");
  }
  const auto back_off = [&](Milliseconds wait) {
    status.not_before_ms = draft.now().unix_ms + wait.count();
    draft.SetRunState(id, RunState::kBackoff, outcome.reason);
  };
  if (outcome.state == AttemptState::kSucceeded) {
    draft.SetRunState(id, RunState::kSucceeded, "");
  } else if (status.cancel_req) {
    draft.SetRunState(id, RunState::kCancelled, outcome.reason);
  } else if (status.prune_req) {
    draft.SetRunState(id, RunState::kStoppedEarly, outcome.reason);
  } else if (!poison.empty()) {
    draft.SetRunState(id, RunState::kQuarantined, StrCat(poison, ": ", outcome.reason));
  } else if (outcome.state == AttemptState::kFailed && !is_infra &&
             !IsTriedAgain(run, status, end, root.exit_code)) {
    draft.SetRunState(id, RunState::kFailed, outcome.reason);
  } else if (status.pause_req) {
    draft.SetRunState(id, RunState::kPaused, "paused");
  } else if (is_infra) {
    back_off(InfraBackoff(status.infra_streak, end.random));
  } else if (outcome.state == AttemptState::kFailed) {
    back_off(FailureBackoff(std::max(status.crash_fail, status.user_fail), end.random));
  } else {
    draft.SetRunState(id, RunState::kQueued, outcome.reason);
  }
  if (IsTerminal(status.state)) KeepCheckpoints(draft, id, /*is_terminal=*/true);
}

void EndAttempt(Draft& draft, Epoch epoch, AttemptState to, const End& end) {
  AttemptStatus& status = draft.attempt(epoch);
  status.end_class = end.end_class;
  status.reason = EndReason(RootOf(draft.members(epoch)), status);
  draft.SetAttemptState(epoch, to);
  EndRun(draft, epoch, end);
}

}  // namespace

void RaiseIntent(Draft& draft, Epoch epoch, Intent intent, StopReason reason, uint32_t grace_ms) {
  AttemptStatus& status = draft.attempt(epoch);
  if (IsTerminal(status.state)) return;
  std::vector<MemberRow>& members = draft.members(epoch);
  const bool all_ended = std::ranges::all_of(
      members, [](const MemberRow& member) { return IsTerminal(member.state); });
  // It waits for its stream: nothing is left to stop, and finished work wins.
  if (all_ended) return;
  if (status.stop_reason == StopReason::kNone) status.stop_reason = reason;
  const bool is_first = status.intent == Intent::kRun;
  // A weaker one takes nothing back, and still may want it to end earlier.
  if (!SWITCHYARD_GUARD(X34, intent >= status.intent)) intent = status.intent;
  if (!is_first && grace_ms >= status.grace_ms && intent == status.intent) return;
  status.grace_ms = is_first ? grace_ms : std::min(status.grace_ms, grace_ms);
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

void EvaluateEnd(Draft& draft, Epoch epoch, uint64_t random, std::string_view output_tail) {
  AttemptStatus& status = draft.attempt(epoch);
  if (IsTerminal(status.state)) return;
  const std::vector<MemberRow>& members = draft.members(epoch);
  const std::vector<StreamRow>& streams = draft.streams(epoch);
  bool all_ok = true;
  bool streams_complete = true;
  for (size_t i = 0; i < members.size(); ++i) {
    if (!IsTerminal(members[i].state)) return;
    // `complete` is what exit.json says: a signal behind it (a crash in teardown) takes nothing
    // back.
    all_ok &= members[i].state == MemberState::kExited && members[i].exit_code == 0 &&
              members[i].complete;
    streams_complete &=
        streams[i].declared_last.has_value() && streams[i].acked >= *streams[i].declared_last;
  }
  const MemberRow& root = RootOf(members);
  const auto end = [&](AttemptState to, EndClass end_class) {
    // Found dead by an agent that had itself just started anew: they went down together.
    const bool is_crash = draft.state().FindAttempt(epoch)->agent_restarted &&
                          root.state == MemberState::kExited &&
                          root.evidence.rfind("agent", 0) != 0 &&
                          (end_class == EndClass::kInfra || end_class == EndClass::kUnknown);
    EndAttempt(draft, epoch, to,
               {.end_class = end_class,
                .is_crash = is_crash,
                .output_tail = output_tail,
                .random = random});
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
  // The reason decides, not how hard it was stopped: a kill for another cause is no cancel.
  const bool by_intent = SWITCHYARD_GUARD(X25, false);
  switch (by_intent && status.intent == Intent::kKill ? StopReason::kKill : status.stop_reason) {
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
      // Never launched, or ended by its stop deadline.
      if (root.state == MemberState::kRefused || root.state == MemberState::kFenced ||
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

void LoseAttempt(Draft& draft, Epoch epoch, std::string_view why, bool is_crash, uint64_t random) {
  AttemptStatus& status = draft.attempt(epoch);
  if (IsTerminal(status.state)) return;
  bool any_lost = false;
  for (MemberRow& member : draft.members(epoch)) {
    if (IsTerminal(member.state)) continue;
    member.evidence = why;
    draft.SetMemberState(member, MemberState::kLost);
    any_lost = true;
  }
  const bool has_request = status.stop_reason == StopReason::kCancel ||
                           status.stop_reason == StopReason::kKill ||
                           status.stop_reason == StopReason::kTimeout;
  if (any_lost && has_request) return EvaluateEnd(draft, epoch, random);
  status.end_class = EndClass::kInfra;
  // Without a rank that was lost it waited for its stream: its record is incomplete.
  status.reason =
      any_lost ? StrCat("lost: ", why) : StrCat("lost before its last lines arrived: ", why);
  draft.SetAttemptState(epoch, AttemptState::kLost);
  EndRun(draft, epoch, {.end_class = status.end_class, .is_crash = is_crash, .random = random});
}

}  // namespace switchyard::scheduler
