// What people ask of sweeps, runs, workers and checkpoints.
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "server/app/reducer.h"

namespace switchyard::app {
namespace {

using server_metrics::QueueClass;

constexpr int64_t kIdemMs = int64_t{7} * 24 * 3600 * 1000;

// What was asked, in one text: equal for equal requests.
std::string BodyOf(const api::SteerInput& input) {
  std::string out;
  if (input.sweep.has_value()) {
    out = StrCat("sweep ", input.sweep->value.ToString(), " ", Name(input.verb));
  } else if (input.run.has_value()) {
    out = StrCat("run ", input.run->value.ToString(), " ", Name(input.verb));
  } else {
    out = StrCat("worker ", input.worker->value.ToString(), " ", Name(input.worker_verb), " ",
                 input.deadline_ms.value_or(0));
  }
  return StrCat(out, " ", input.priority, " ", input.reason);
}

// Runs that may be made anew: ended without success. (FAILED by a guard stands: R1.)
bool MayBeRetried(scheduler::RunState state) {
  using enum scheduler::RunState;
  return state == kFailed || state == kCancelled || state == kQuarantined || state == kStoppedEarly;
}

}  // namespace

Result<std::optional<std::string>> Reducer::FindReply(const Turn& turn,
                                                      const std::string& request_id,
                                                      const std::string& body_hash) {
  if (request_id.empty()) return std::optional<std::string>();
  const Result<store::IdemRow> known = store_->FindIdem(request_id, turn.now().unix_ms);
  if (known.status().code() == Code::kNotFound) return std::optional<std::string>();
  if (!known.ok()) return known.status();
  if (known->body_hash != body_hash) {
    return AlreadyExists(StrCat("request id ", request_id, " was used for another request"));
  }
  return std::optional<std::string>(known->reply);
}

void Reducer::Remember(Turn& turn, const std::string& request_id, std::string_view method,
                       const std::string& body_hash, std::string reply) {
  if (request_id.empty()) return;
  turn.Write(scheduler::IdemRow{.request_id = request_id,
                                .method = std::string(method),
                                .body_hash = body_hash,
                                .reply = std::move(reply),
                                .expires_ms = turn.now().unix_ms + kIdemMs});
}

void Reducer::Steer(api::SteerInput input, api::Callback<uint64_t> done) {
  auto shared = std::make_shared<const api::SteerInput>(std::move(input));
  inbox_.Push({.queue = QueueClass::kMutation,
               .is_barrier = !shared->request_id.empty(),
               .decide =
                   [this, shared, done](Turn& turn) {
                     Result<uint64_t> affected = DecideSteer(turn, *shared);
                     SWITCHYARD_FAILPOINT("steer.decided");
                     turn.Release([done, affected] { done(affected); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

Result<uint64_t> Reducer::DecideSteer(Turn& turn, const api::SteerInput& input) {
  const std::string body_hash = Sha256Hex(BodyOf(input));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<std::string> known,
                              FindReply(turn, input.request_id, body_hash));
  if (known.has_value()) return ParseUint64(*known).value_or(0);
  scheduler::Event event;
  if (input.sweep.has_value()) {
    event = scheduler::SteerSweep{.sweep = *input.sweep,
                                  .verb = input.verb,
                                  .reason = input.reason,
                                  .priority = input.priority};
  } else if (input.run.has_value()) {
    event = scheduler::SteerRun{
        .run = *input.run, .verb = input.verb, .reason = input.reason, .priority = input.priority};
  } else {
    event = scheduler::SteerWorker{.worker = *input.worker,
                                   .verb = input.worker_verb,
                                   .reason = input.reason,
                                   .deadline_ms = input.deadline_ms,
                                   .random = NewUuidV4().low};
  }
  const scheduler::Decision decision = turn.Decide(event);
  SWITCHYARD_RETURN_IF_ERROR(decision.status);
  const uint64_t affected = std::get<scheduler::SteerAnswer>(decision.answer).runs_affected;
  Remember(turn, input.request_id, "Steer", body_hash, std::to_string(affected));
  return affected;
}

void Reducer::Retry(api::RetryInput input, api::Callback<api::RetryReply> done) {
  auto shared = std::make_shared<const api::RetryInput>(std::move(input));
  // It reads committed rows.
  inbox_.Push({.queue = QueueClass::kMutation,
               .is_barrier = true,
               .decide =
                   [this, shared, done](Turn& turn) {
                     Result<api::RetryReply> reply = DecideRetry(turn, *shared);
                     turn.Release([done, reply = std::move(reply)] { done(reply); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

Result<std::optional<scheduler::RetryRuns::Retried>> Reducer::PlanRetry(const Turn& turn,
                                                                        RunId run) {
  using Retried = scheduler::RetryRuns::Retried;
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo info, store_->FindRun(run.value.ToString()));
  if (!MayBeRetried(info.status.state)) return std::optional<Retried>();
  const std::string keys[] = {info.row.run_key};
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::optional<store::ValidRun>> valid,
                              store_->FindValidRuns(info.row.project, keys));
  if (valid[0].has_value()) return std::optional<Retried>();
  SWITCHYARD_ASSIGN_OR_RETURN(store::RunDocument document, store_->GetRunDocument(run));
  Retried out{.run = info.row, .cell = info.link.cell, .columns = info.link.columns};
  out.run.id = {NewUuidV7()};
  out.run.parent = run;
  out.run.priority = info.status.priority;
  out.run.spec = std::move(document.spec);
  out.run.attempt_spec = std::move(document.attempt_spec);
  out.run.created_ms = turn.now().unix_ms;
  return std::optional<Retried>(std::move(out));
}

Result<api::RetryReply> Reducer::DecideRetry(Turn& turn, const api::RetryInput& input) {
  std::string body = StrCat("retry ", input.sweep.value.ToString());
  for (const RunId run : input.runs) body += StrCat(" ", run.value.ToString());
  const std::string body_hash = Sha256Hex(body);
  api::RetryReply reply;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<std::string> known,
                              FindReply(turn, input.request_id, body_hash));
  if (known.has_value()) {
    const size_t space = known->find(' ');
    reply.runs_made = ParseUint64(known->substr(0, space)).value_or(0);
    SWITCHYARD_ASSIGN_OR_RETURN(reply.sweep,
                                store_->FindSweep(known->substr(space + 1), /*with_spec=*/false));
    return reply;
  }
  SWITCHYARD_ASSIGN_OR_RETURN(store::SweepInfo sweep,
                              store_->FindSweep(input.sweep.value.ToString(), /*with_spec=*/true));
  scheduler::RetryRuns event{.sweep = input.sweep, .child = {}, .runs = {}};
  for (const RunId run : input.runs) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::optional<scheduler::RetryRuns::Retried> retried,
                                PlanRetry(turn, run));
    if (retried.has_value()) event.runs.push_back(*std::move(retried));
  }
  const bool is_live = sweep.status.state <= scheduler::SweepState::kPaused;
  if (event.runs.empty()) {
    reply.sweep = std::move(sweep);
    return reply;
  }
  if (!is_live) {
    scheduler::SweepRow child = sweep.row;
    child.id = {NewUuidV7()};
    child.parent = input.sweep;
    // Not the sweep of a document: submitting that again finds the parent.
    child.spec_hash = StrCat("retry:", child.id.value.ToString());
    child.cells = 0;
    child.runs = 0;
    child.is_drawn = false;
    child.created_ms = turn.now().unix_ms;
    for (uint64_t suffix = 2;; ++suffix) {
      child.name = StrCat(child.base_name, ".", suffix);
      SWITCHYARD_ASSIGN_OR_RETURN(const bool is_taken, store_->IsSweepNameTaken(child.name));
      if (!is_taken) break;
    }
    event.child = std::move(child);
  }
  const scheduler::Decision decision = turn.Decide(event);
  SWITCHYARD_RETURN_IF_ERROR(decision.status);
  const auto& answer = std::get<scheduler::RetryAnswer>(decision.answer);
  reply.runs_made = answer.made;
  if (const scheduler::Sweep* into = state_.FindSweep(answer.sweep)) {
    reply.sweep = {.row = into->row, .status = into->status};
  }
  Remember(turn, input.request_id, "Retry", body_hash,
           StrCat(answer.made, " ", answer.sweep.value.ToString()));
  return reply;
}

void Reducer::Pin(scheduler::PinCheckpoint event, api::Callback<uint64_t> done) {
  inbox_.Push({.queue = QueueClass::kMutation,
               .decide =
                   [event, done](Turn& turn) {
                     const scheduler::Decision decision = turn.Decide(event);
                     turn.Release([done, status = decision.status] {
                       if (!status.ok()) return done(status);
                       done(uint64_t{1});
                     });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

}  // namespace switchyard::app
