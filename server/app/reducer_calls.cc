// Calls of workers and clients, and parked heartbeats.
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"
#include "server/app/reducer.h"
#include "server/scheduler/explain.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::app {
namespace {

using server_metrics::QueueClass;

// A parked reply waits at most 0.8 of the heartbeat period.
Milliseconds ParkFor(size_t workers) { return scheduler::HeartbeatPeriod(workers) * 4 / 5; }

}  // namespace

// ---------------------------------------------------------------- workers

void Reducer::Register(scheduler::Register event, api::Callback<api::RegisterReply> done) {
  inbox_.Push({.queue = QueueClass::kHeartbeat,
               .decide =
                   [this, event, done](Turn& turn) {
                     const scheduler::Decision decision = turn.Decide(event);
                     SWITCHYARD_FAILPOINT("register.decided");
                     turn.Release([this, done, status = decision.status, nonce = event.nonce] {
                       if (!status.ok()) return done(status);
                       done(api::RegisterReply{
                           .generation = state_.generation,
                           .boot = state_.boot,
                           .nonce = nonce,
                           .heartbeat_ms = static_cast<uint32_t>(
                               scheduler::HeartbeatPeriod(state_.workers.size()).count()),
                           .cluster_id = state_.cluster_id});
                     });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

void Reducer::Heartbeat(scheduler::Heartbeat event, api::Callback<api::Desired> done) {
  auto shared = std::make_shared<const scheduler::Heartbeat>(std::move(event));
  inbox_.Push({.queue = QueueClass::kHeartbeat,
               .decide =
                   [this, shared, done](Turn& turn) {
                     scheduler::Heartbeat event = *shared;
                     event.is_echo_only = degraded_ >= 0;
                     for (const scheduler::MemberReport& report : event.observed) {
                       if (event.is_echo_only) break;
                       if (auto recorded = FindRecorded(report.run, report.epoch)) {
                         event.recorded[report.epoch] = *std::move(recorded);
                       }
                     }
                     const scheduler::Decision decision = turn.Decide(std::move(event));
                     SWITCHYARD_FAILPOINT("heartbeat.decided");
                     if (!decision.status.ok()) {
                       turn.Release([done, status = decision.status] { done(status); });
                       return;
                     }
                     turn.Release([this, shared, done,
                                   answer = std::get<scheduler::HeartbeatAnswer>(decision.answer)] {
                       ReleaseHeartbeat(shared->worker,
                                        {.incarnation = shared->incarnation,
                                         .hb_seq = shared->hb_seq,
                                         .sent_boottime_ns = shared->sent_boottime_ns},
                                        answer, done);
                     });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

bool Reducer::HasNews(const scheduler::Worker& worker) const {
  return worker.applied.generation != state_.generation || worker.applied.boot != state_.boot ||
         worker.want_rev > worker.applied.n;
}

Result<api::Desired> Reducer::BuildDesired(WorkerId id, const Echo& echo,
                                           std::vector<scheduler::AttemptRef> gc) {
  api::Desired out;
  out.rev = scheduler::NextRev(&state_);
  out.echo_incarnation = echo.incarnation;
  out.echo_hb_seq = echo.hb_seq;
  out.echo_sent_boottime_ns = echo.sent_boottime_ns;
  out.gc = std::move(gc);
  out.gc_checkpoints = scheduler::TombstonesOf(state_, id);
  out.workers = static_cast<uint32_t>(state_.workers.size());
  out.heartbeat_ms =
      static_cast<uint32_t>(scheduler::HeartbeatPeriod(state_.workers.size()).count());
  for (const scheduler::Wanted& wanted : scheduler::WantedOf(state_, id)) {
    const scheduler::Attempt& attempt = *wanted.attempt;
    const scheduler::Run* run = state_.FindRun(attempt.row.run);
    if (run == nullptr) continue;
    api::WantedAttempt one{.run = attempt.row.run,
                           .ordinal = attempt.row.ordinal,
                           .epoch = attempt.row.epoch,
                           .rank = wanted.rank,
                           .run_key = run->row.run_key,
                           .slots = attempt.members[wanted.rank].slots,
                           .kind = run->row.need.kind,
                           .resume_path = attempt.row.resume_path,
                           .run_spec = {},
                           .attempt_spec = {},
                           .intent = attempt.status.intent,
                           .grace_ms = wanted.grace_ms,
                           .lease_ms = wanted.lease_ms};
    if (!attempt.is_observed) {
      const store::RunDocument* document = FindDocument(attempt.row.run);
      // Without it the worker would start nothing sensible, and without the entry it would stop
      // what it runs.
      if (document == nullptr) {
        return Unavailable(
            StrCat("the document of run ", attempt.row.run.value.ToString(), " cannot be read"));
      }
      one.run_spec = document->spec;
      one.attempt_spec = document->attempt_spec;
    }
    out.want.push_back(std::move(one));
  }
  return out;
}

void Reducer::ReleaseHeartbeat(WorkerId id, const Echo& echo,
                               const scheduler::HeartbeatAnswer& answer,
                               const api::Callback<api::Desired>& done) {
  // A newer heartbeat releases the one that is parked.
  if (const auto older = parked_.find(id); older != parked_.end()) {
    const Parked parked = std::move(older->second);
    parked_.erase(older);
    parked.done(BuildDesired(id, parked.echo, {}));
  }
  const scheduler::Worker* worker = state_.FindWorker(id);
  if (worker == nullptr || answer.has_news || HasNews(*worker) || is_draining_) {
    done(BuildDesired(id, echo, answer.gc));
    return;
  }
  parked_[id] = {
      .echo = echo, .done = done, .until = MonotonicNow() + ParkFor(state_.workers.size())};
}

void Reducer::WakeParked() {
  for (const WorkerId id : std::exchange(woken_, {})) {
    const auto found = parked_.find(id);
    if (found == parked_.end()) continue;
    const scheduler::Worker* worker = state_.FindWorker(id);
    if (worker != nullptr && !HasNews(*worker)) continue;
    const Parked parked = std::move(found->second);
    parked_.erase(found);
    parked.done(BuildDesired(id, parked.echo, {}));
  }
}

void Reducer::EndParked(bool all) {
  const Timestamp now = MonotonicNow();
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (!all && it->second.until > now) {
      ++it;
      continue;
    }
    const WorkerId id = it->first;
    const Parked parked = std::move(it->second);
    it = parked_.erase(it);
    parked.done(BuildDesired(id, parked.echo, {}));
  }
}

// ---------------------------------------------------------------- clients

void Reducer::Submit(api::SubmitInput input, api::Callback<api::SubmitReply> done) {
  auto shared = std::make_shared<const api::SubmitInput>(std::move(input));
  inbox_.Push({.queue = QueueClass::kMutation,
               .bytes = shared->expansion->sweep().spec.size(),
               .is_barrier = true,
               .decide =
                   [this, shared, done](Turn& turn) {
                     Result<api::SubmitReply> reply = DecideSubmit(turn, *shared);
                     SWITCHYARD_FAILPOINT("submit.decided");
                     turn.Release([done, reply = std::move(reply)] { done(reply); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

Result<api::SubmitReply> Reducer::DecideSubmit(Turn& turn, const api::SubmitInput& input) {
  const scheduler::SweepRow& document = input.expansion->sweep();
  api::SubmitReply reply;
  const std::string body = StrCat("submit ", document.project, " ", document.spec_hash);
  // The same document is the same sweep; only a rerun needs to be told apart by its request.
  const bool is_remembered = input.rerun && !input.request_id.empty();
  const std::string body_hash = Sha256Hex(body);
  if (is_remembered) {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::optional<std::string> known,
                                FindReply(turn, input.request_id, body_hash));
    if (known.has_value()) {
      SWITCHYARD_ASSIGN_OR_RETURN(reply.sweep, store_->FindSweep(*known, /*with_spec=*/false));
      return reply;
    }
  }
  const Result<store::SweepInfo> same =
      store_->FindSweepByHash(document.project, document.spec_hash);
  if (!same.ok() && same.status().code() != Code::kNotFound) return same.status();
  if (same.ok() && !input.rerun) {
    reply.sweep = *same;
    reply.existed = true;
    for (size_t i = 1; i < scheduler::kRunStates; ++i) {
      if (scheduler::IsTerminal(static_cast<scheduler::RunState>(i))) {
        reply.reused += same->status.counts[i];
      }
    }
    return reply;
  }
  scheduler::SubmitSweep event{.sweep = document, .first = input.first};
  event.sweep.id = {NewUuidV7()};
  event.sweep.created_ms = turn.now().unix_ms;
  event.sweep.rerun = input.rerun ? (same.ok() ? same->row.rerun : 0) + 1 : 0;
  for (uint64_t suffix = 2;; ++suffix) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool is_taken, store_->IsSweepNameTaken(event.sweep.name));
    if (!is_taken) break;
    event.sweep.name = StrCat(event.sweep.base_name, ".", suffix);
  }
  SWITCHYARD_RETURN_IF_ERROR(FindStored(document.project, input.rerun, &event.first));
  SWITCHYARD_ASSIGN_OR_RETURN(const auto needs, strategies_.FindNeeds(*input.expansion));
  const scheduler::Decision decision = turn.Decide(event);
  SWITCHYARD_RETURN_IF_ERROR(decision.status);
  if (state_.FindSweep(event.sweep.id) != nullptr) {
    expansions_[event.sweep.id] = input.expansion;
    if (event.sweep.is_drawn) {
      SWITCHYARD_RETURN_IF_ERROR(strategies_.Start(event.sweep.id, input.expansion, needs));
    }
  }
  if (is_remembered) {
    Remember(turn, input.request_id, "SubmitSweep", body_hash, event.sweep.id.value.ToString());
  }
  reply.sweep.row = std::move(event.sweep);
  reply.sweep.row.spec.clear();
  for (const scheduler::Change& change : decision.changes) {
    const auto* status = std::get_if<scheduler::SweepStatus>(&change);
    if (status != nullptr && status->id == reply.sweep.row.id) reply.sweep.status = *status;
  }
  reply.reused = std::get<scheduler::ProposeAnswer>(decision.answer).reused;
  return reply;
}

void Reducer::Explain(RunId run, api::Callback<std::vector<std::string>> done) {
  inbox_.Push({.queue = QueueClass::kMutation,
               .writes = false,
               .decide =
                   [this, run, done](Turn& turn) {
                     std::vector<std::string> lines;
                     if (const scheduler::Run* known = state_.FindRun(run)) {
                       lines = scheduler::Explain(state_, *known, turn.now().now);
                     }
                     turn.Release([done, lines] { done(lines); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

void Reducer::ListWorkers(api::Callback<std::vector<api::WorkerInfo>> done) {
  inbox_.Push({.queue = QueueClass::kMutation,
               .writes = false,
               .decide =
                   [this, done](Turn& turn) {
                     std::vector<api::WorkerInfo> out;
                     for (const auto& [id, worker] : state_.workers) {
                       api::WorkerInfo info{
                           .row = worker.row,
                           .state = std::string(server_metrics::ShownState(worker)),
                           .slots_busy = static_cast<uint32_t>(worker.held.size()),
                           .last_contact_ms_ago = worker.contact == scheduler::Contact::kUnknown
                                                      ? -1
                                                      : (turn.now().now - worker.last).count(),
                           .runs = {}};
                       for (const Epoch epoch : worker.attempts) {
                         info.runs.push_back(state_.FindAttempt(epoch)->row.run);
                       }
                       out.push_back(std::move(info));
                     }
                     turn.Release([done, out = std::move(out)] { done(out); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

void Reducer::GetInfo(api::Callback<api::CoordinatorInfo> done) {
  inbox_.Push({.queue = QueueClass::kMutation,
               .writes = false,
               .decide =
                   [this, done](Turn& turn) {
                     api::CoordinatorInfo info{.cluster_id = state_.cluster_id,
                                               .generation = state_.generation,
                                               .boot = state_.boot,
                                               .state = "serving",
                                               .stats = store_->Stats(),
                                               .metrics_address = {}};
                     if (is_draining_) info.state = "draining";
                     if (degraded_ >= 0) {
                       info.state = degraded_ == 0   ? "degraded(disk_full)"
                                    : degraded_ == 1 ? "degraded(disk_low)"
                                                     : "degraded(read_error)";
                     }
                     {
                       const std::lock_guard lock(shared_mu_);
                       info.metrics_address = metrics_address_;
                     }
                     turn.Release([done, info = std::move(info)] { done(info); });
                   },
               .refuse = [done](const Status& status) { done(status); }});
}

}  // namespace switchyard::app
