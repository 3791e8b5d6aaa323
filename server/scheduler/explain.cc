#include "server/scheduler/explain.h"

#include "common/base/strings.h"
#include "server/scheduler/plan.h"

namespace switchyard::scheduler {
namespace {

std::string Seconds(Milliseconds span) {
  return StrCat(span.count() / 1000, ".", span.count() % 1000 / 100, " s");
}

// Runs that a pass looks at before this one, by priority and age: fair share may change the order.
uint64_t CountAhead(const State& state, const Run& run) {
  const QueueKey own = QueueKeyOf(run);
  uint64_t ahead = 0;
  for (const auto& [key, line] : state.queue) {
    if (key.priority > own.priority) ahead += line.size();
    if (key.priority != own.priority) continue;
    for (const QueueEntry& entry : line) {
      if (QueueEntry{run.queue_order, run.row.id} <= entry) break;
      ++ahead;
    }
  }
  return ahead;
}

}  // namespace

std::vector<std::string> Explain(const State& state, const Run& run, Timestamp now) {
  std::vector<std::string> out;
  const RunStatus& status = run.status;
  switch (status.state) {
    case RunState::kQueued:
      out.push_back(StrCat(
          "queued for ", Seconds(now - run.queued_since), " with priority ", status.priority, ", ",
          CountAhead(state, run), " runs ahead by priority and age; project ", run.row.project,
          " has used ", static_cast<int64_t>(state.UsageOf(run.row.project, now) / 3600),
          " slot hours lately (those with less come first)"));
      out.push_back(ExplainWait(state, run, now));
      if (!status.reason.empty()) out.push_back(StrCat("its last attempt: ", status.reason));
      return out;
    case RunState::kBackoff:
      out.push_back(StrCat("waits ", Seconds(std::max(Milliseconds(0), run.not_before - now)),
                           " before the next attempt, after ", status.infra_streak,
                           " infrastructure ends and ", status.crash_fail + status.user_fail,
                           " failures in a row without a newer checkpoint"));
      out.push_back(StrCat("its last attempt: ", status.reason));
      return out;
    case RunState::kActive: {
      const Attempt* attempt = state.FindAttempt(status.current_epoch);
      if (attempt == nullptr) return {"active"};
      const Worker* worker = state.FindWorker(attempt->row.worker);
      std::string slots;
      for (const uint32_t slot : attempt->members[0].slots) slots += StrCat(" ", slot);
      out.push_back(StrCat("attempt ", attempt->row.ordinal, " (epoch ", attempt->row.epoch.value,
                           ") is ", Name(attempt->status.state), " on ",
                           worker != nullptr ? worker->row.host : "an unknown worker", ", slots",
                           slots, ": the narrowest worker with free slots"));
      if (attempt->row.resume_epoch.value != 0) {
        out.push_back(StrCat("resumes from step ", attempt->row.resume_step));
      }
      if (worker != nullptr && worker->contact != Contact::kOnline) {
        out.push_back(StrCat("no contact with its worker for ", Seconds(now - worker->last)));
      }
      if (attempt->status.stop_reason != StopReason::kNone) {
        out.push_back(StrCat("is being stopped: ", Name(attempt->status.stop_reason)));
      }
      const StreamRow& stream = attempt->streams[0];
      if (IsTerminal(attempt->members[0].state)) {
        out.push_back(StrCat("its trainer has ended; ", stream.acked, " of ",
                             stream.declared_last.value_or(0),
                             " lines are stored, the last one comes behind its output"));
      }
      return out;
    }
    case RunState::kPaused:
      return {"paused"};
    case RunState::kSucceeded:
    case RunState::kStoppedEarly:
    case RunState::kFailed:
    case RunState::kCancelled:
    case RunState::kQuarantined:
      return ExplainEnd(status);
  }
  return out;
}

std::vector<std::string> ExplainEnd(const RunStatus& status) {
  std::vector<std::string> out{StrCat(Name(status.state), " after ", status.attempts,
                                      status.attempts == 1 ? " attempt" : " attempts")};
  if (!status.reason.empty()) out.push_back(status.reason);
  if (status.state == RunState::kFailed) {
    out.push_back("this class of end is not tried again");
  }
  return out;
}

}  // namespace switchyard::scheduler
