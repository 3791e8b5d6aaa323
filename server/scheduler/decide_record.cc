// Recording: lines and output of attempts, checkpoints and their retention.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/handlers.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

// C2, C3.
void StoreCheckpoint(Draft& draft, const Attempt& attempt, const LineFact& line) {
  const Run* run = draft.state().FindRun(attempt.row.run);
  const bool is_current =
      SWITCHYARD_GUARD(X08, !IsTerminal(attempt.status.state) && run != nullptr &&
                                run->status.current_epoch == attempt.row.epoch);
  CheckpointRow row{.run = attempt.row.run,
                    .epoch = attempt.row.epoch,
                    .step = line.step,
                    .state = CheckpointState::kStaged,
                    .digest = line.digest,
                    .bytes = line.bytes,
                    .path = line.path,
                    .store = draft.state().FindWorker(attempt.row.worker)->row.checkpoint_store,
                    .pinned = false,
                    .score = line.score,
                    .state_ms = 0};
  draft.SetCheckpointState(row,
                           is_current ? CheckpointState::kPublished : CheckpointState::kOrphan);
  if (!is_current) {
    draft.Add(std::move(row));
    return;
  }
  // Two lines of one step name the same directory.
  std::vector<CheckpointRow>& rows = draft.checkpoints(attempt.row.run);
  const bool is_known = std::ranges::any_of(rows, [&](const CheckpointRow& other) {
    return other.epoch == row.epoch && other.step == row.step;
  });
  if (is_known) return;
  rows.push_back(std::move(row));
  KeepCheckpoints(draft, attempt.row.run, /*is_terminal=*/false);
}

// C6: an attempt that reports another start than it was given could not load that checkpoint.
void CheckResume(Draft& draft, const Attempt& attempt, const Append& event) {
  const std::vector<LineFact>& lines = event.lines;
  if (attempt.row.resume_epoch.value == 0 || lines.empty()) return;
  const bool is_first = lines.front().kind == LineFact::Kind::kHello && lines.front().seq == 1;
  if (!is_first) return;
  for (const LineFact& line : lines) {
    const bool is_as_given = line.kind == LineFact::Kind::kResume &&
                             line.from == attempt.row.resume_epoch &&
                             line.step == attempt.row.resume_step;
    if (is_as_given) return;
  }
  // A batch may end before the resume line; with points behind it, there is none.
  const bool has_resume = std::ranges::any_of(
      lines, [](const LineFact& line) { return line.kind == LineFact::Kind::kResume; });
  if (!has_resume && event.last_step == 0) return;
  for (CheckpointRow& row : draft.checkpoints(attempt.row.run)) {
    if (row.epoch == attempt.row.resume_epoch && row.step == attempt.row.resume_step &&
        row.state == CheckpointState::kPublished) {
      draft.SetCheckpointState(row, CheckpointState::kCorrupt);
      draft.History(
          "checkpoint_corrupt", attempt.row.run.value,
          StrCat("step ", row.step, " could not be loaded by attempt ", attempt.row.ordinal));
    }
  }
}

// What it belongs to is in memory. Else the status of the decision says why not, or the attempt is
// added and what was sent has to come again.
template <typename Event>
bool IsOpen(Draft& draft, const Event& event) {
  const MemberName name{.run = event.run,
                        .ordinal = event.ordinal,
                        .epoch = event.epoch,
                        .rank = event.rank,
                        .worker = event.worker};
  const Attempt* attempt = draft.state().FindAttempt(event.epoch);
  if (attempt != nullptr && Matches(*attempt, name)) return true;
  const Absent absent =
      attempt != nullptr ? Absent::kUnknown
                         : SettleAbsent(draft, name, event.recorded ? &*event.recorded : nullptr);
  const std::string stream = StrCat("stream of epoch ", event.epoch.value, " rank ", event.rank);
  switch (absent) {
    case Absent::kSealed:
      draft.Stale(StaleKind::kSealed);
      draft.decision.status = FailedPrecondition(StrCat(stream, " is sealed"));
      break;
    case Absent::kUnknown:
      draft.Stale(StaleKind::kUnknownAttempt);
      draft.decision.status =
          FailedPrecondition(StrCat(stream, " is not known for this run and worker"));
      break;
    case Absent::kUnsettled:
      draft.decision.status =
          Unavailable(StrCat(stream, " cannot be looked up now; it may be known soon"));
      break;
    case Absent::kRecovered:
      break;
  }
  return false;
}

}  // namespace

void KeepCheckpoints(Draft& draft, RunId id, bool is_terminal) {
  const RunPolicy& policy = draft.state().FindRun(id)->row.policy;
  std::vector<CheckpointRow>& rows = draft.checkpoints(id);
  std::vector<CheckpointRow*> published;
  for (CheckpointRow& row : rows) {
    if (row.state == CheckpointState::kPublished) published.push_back(&row);
  }
  // An ended run resumes no more: its newest one and its best are results.
  const size_t keep_last = is_terminal ? 1 : std::max<size_t>(1, policy.keep_last);
  const size_t keep_best = is_terminal ? std::min<size_t>(1, policy.keep_best) : policy.keep_best;
  std::vector<const CheckpointRow*> scored;
  for (const CheckpointRow* row : published) {
    if (row->score.has_value() && std::isfinite(*row->score)) scored.push_back(row);
  }
  std::ranges::stable_sort(scored, [&](const CheckpointRow* a, const CheckpointRow* b) {
    return policy.is_maximized ? *a->score > *b->score : *a->score < *b->score;
  });
  if (scored.size() > keep_best) scored.resize(keep_best);
  for (size_t i = 0; i + keep_last < published.size(); ++i) {
    CheckpointRow* row = published[i];
    if (row->pinned || std::ranges::find(scored, row) != scored.end() ||
        std::ranges::find(policy.keep_steps, row->step) != policy.keep_steps.end()) {
      continue;
    }
    draft.SetCheckpointState(*row, CheckpointState::kSuperseded);
  }
}

Decision On(const State& state, const PinCheckpoint& event, const Now& now) {
  Draft draft(state, now);
  const CheckpointRef& ref = event.checkpoint;
  const Run* run = state.FindRun(ref.run);
  if (run != nullptr) {
    for (CheckpointRow& row : draft.checkpoints(ref.run)) {
      if (row.epoch != ref.epoch || row.step != ref.step) continue;
      row.pinned = event.pinned;
      if (!event.pinned) KeepCheckpoints(draft, ref.run, IsTerminal(run->status.state));
      return draft.Finish();
    }
  }
  const auto doomed = state.doomed.find(ref);
  if (doomed != state.doomed.end() && doomed->second.row.state == CheckpointState::kSuperseded) {
    CheckpointRow row = doomed->second.row;
    row.pinned = event.pinned;
    if (event.pinned) draft.SetCheckpointState(row, CheckpointState::kPublished);
    draft.Add(std::move(row));
    return draft.Finish();
  }
  draft.decision.status = FailedPrecondition(
      StrCat("the checkpoint at step ", ref.step, " of epoch ", ref.epoch.value, " of run ",
             ref.run.value.ToString(), " is not kept any more, or its run has ended"));
  return draft.Finish();
}

Decision On(const State& state, const Append& event, const Now& now) {
  Draft draft(state, now);
  const Attempt* attempt = state.FindAttempt(event.epoch);
  if (!IsOpen(draft, event)) {
    // From the first line on: of an attempt that is known again nothing is stored.
    if (draft.HasAdded(event.epoch)) draft.decision.answer = AppendAnswer{.expect = 1};
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
        draft.attempt(event.epoch).start_reported = !IsRecovered(*attempt);
        break;
      case LineFact::Kind::kResume: {
        AttemptStatus& status = draft.attempt(event.epoch);
        status.start_reported = !IsRecovered(*attempt);
        // As reported: a damaged checkpoint makes the trainer fall back to an older one.
        const bool is_assigned = SWITCHYARD_GUARD(X32, false);
        status.resumed_epoch = is_assigned ? attempt->row.resume_epoch : line.from;
        status.resumed_step = is_assigned ? attempt->row.resume_step : line.step;
        break;
      }
      case LineFact::Kind::kCheckpoint:
        StoreCheckpoint(draft, *attempt, line);
        break;
    }
  }
  CheckResume(draft, *attempt, event);
  if (event.last_step > attempt->step) {
    draft.Volatile(AttemptStep{.epoch = event.epoch, .step = event.last_step});
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
  if (!IsOpen(draft, event)) {
    // Nothing is stored: it comes again from its beginning.
    if (draft.HasAdded(event.epoch)) draft.decision.answer = AppendLogAnswer{};
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

}  // namespace switchyard::scheduler
