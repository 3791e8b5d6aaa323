// The coordinator's shell, its calls: workers, parked heartbeats, recording, proposals, clients.
#include <algorithm>
#include <utility>

#include "server/scheduler/lease_policy.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {

using scheduler::Change;
using scheduler::IsTerminal;
using scheduler::RunState;

// ---------------------------------------------------------------- workers

void Coordinator::Register(scheduler::Register event, Reply<RegisterReply> done) {
  World::WorkerFacts& facts = w_.worker_facts[event.worker.id];
  w_.CountCoordinator();
  facts.heard_at = w_.engine.now();
  facts.heard_running = w_.coordinator_ran;
  Push({.queue = kHeartbeat,
        .decide =
            [this, event, done](Turn& turn) {
              const scheduler::Decision decision = Decide(turn, event);
              World::WorkerFacts& facts = w_.worker_facts[event.worker.id];
              if (event.worker.incarnation < facts.incarnation && decision.status.ok()) {
                w_.Fail("S20", "a registration of an older incarnation was accepted");
              }
              turn.releases.push_back([this, done, status = decision.status, nonce = event.nonce,
                                       worker = event.worker.id,
                                       incarnation = event.worker.incarnation] {
                if (!status.ok()) return done(status);
                World::WorkerFacts& facts = w_.worker_facts[worker];
                if (incarnation > facts.incarnation) facts.hb_seq = 0;
                facts.incarnation = incarnation;
                facts.nonce = nonce;
                done(RegisterReply{
                    .generation = state->generation, .boot = state->boot, .nonce = nonce});
              });
            },
        .refuse = [done](const Status& status) { done(status); }});
}

void Coordinator::Heartbeat(scheduler::Heartbeat event, Reply<agent::Desired> done) {
  World::WorkerFacts& facts = w_.worker_facts[event.worker];
  // One that was overtaken says nothing of the time at which it arrives.
  if (event.nonce == facts.nonce && event.hb_seq > facts.hb_seq) {
    w_.CountCoordinator();
    facts.heard_at = w_.engine.now();
    facts.heard_running = w_.coordinator_ran;
  }
  auto shared = std::make_shared<scheduler::Heartbeat>(std::move(event));
  Push({.queue = kHeartbeat,
        .decide =
            [this, shared, done](Turn& turn) {
              shared->recorded.clear();
              for (const scheduler::MemberReport& report : shared->observed) {
                if (auto recorded = FindRecorded(report.run, report.epoch)) {
                  shared->recorded[report.epoch] = *std::move(recorded);
                }
              }
              World::WorkerFacts& facts = w_.worker_facts[shared->worker];
              const bool is_stale =
                  shared->incarnation < facts.incarnation ||
                  (shared->incarnation == facts.incarnation && shared->nonce == facts.nonce &&
                   shared->hb_seq <= facts.hb_seq);
              const scheduler::Decision decision = Decide(turn, *shared);
              if (is_stale && !decision.changes.empty()) {
                w_.Fail("S20",
                        StrCat("heartbeat ", shared->incarnation, ":", shared->hb_seq, " after ",
                               facts.incarnation, ":", facts.hb_seq, " changed something"));
              }
              if (!decision.status.ok()) {
                turn.releases.push_back([done, status = decision.status] { done(status); });
                return;
              }
              if (SWITCHYARD_GUARD(X22, false)) PublishStaged(turn, shared->worker);
              for (const Change& change : decision.changes) {
                const auto* status = std::get_if<scheduler::AttemptStatus>(&change);
                if (status == nullptr || status->state != scheduler::AttemptState::kLost) continue;
                if (status->reason.find("host restarted") != std::string::npos) {
                  w_.See(Point::lost_instance_changed);
                }
                if (status->reason.find("no record") != std::string::npos) {
                  w_.See(Point::lost_no_record);
                }
                if (status->reason.find("last lines") != std::string::npos) {
                  w_.See(Point::lost_in_stream_wait);
                }
              }
              turn.releases.push_back(
                  [this, shared, done,
                   answer = std::get<scheduler::HeartbeatAnswer>(decision.answer)] {
                    World::WorkerFacts& facts = w_.worker_facts[shared->worker];
                    if (facts.nonce == shared->nonce) {
                      facts.hb_seq = std::max(facts.hb_seq, shared->hb_seq);
                    }
                    ReleaseHeartbeat(shared->worker,
                                     {.incarnation = shared->incarnation,
                                      .hb_seq = shared->hb_seq,
                                      .sent_boottime_ns = shared->sent_boottime_ns},
                                     answer, done);
                  });
            },
        .refuse = [done](const Status& status) { done(status); }});
}

std::optional<scheduler::RecordedAttempt> Coordinator::FindRecorded(RunId run, Epoch epoch) const {
  if (!scheduler::IsLookedUp(*state, epoch)) return std::nullopt;
  scheduler::RecordedAttempt recorded{.is_stored = w_.image.attempts.contains(epoch), .run = {}};
  if (const auto known = w_.image.runs.find(run); known != w_.image.runs.end()) {
    recorded.run = known->second;
  }
  return recorded;
}

// Without C2: what lies in the store counts as soon as it is there.
void Coordinator::PublishStaged(Turn& turn, WorkerId worker) {
  for (const auto& [path, file] : w_.stores[w_.HostOf(worker).store]) {
    const scheduler::Attempt* attempt = state->FindAttempt(file.epoch);
    if (attempt == nullptr || attempt->row.worker != worker || IsTerminal(attempt->status.state) ||
        w_.image.checkpoints[file.run].contains({file.epoch, file.step})) {
      continue;
    }
    const Change change = scheduler::CheckpointRow{.run = file.run,
                                                   .epoch = file.epoch,
                                                   .step = file.step,
                                                   .digest = {},
                                                   .path = path,
                                                   .store = w_.HostOf(worker).store};
    scheduler::Apply(std::span(&change, 1), turn.now, &*state);
    turn.rows.emplace_back(change);
  }
}

bool Coordinator::HasNews(const scheduler::Worker& worker) const {
  return worker.applied.generation != state->generation || worker.applied.boot != state->boot ||
         worker.want_rev > worker.applied.n;
}

Result<agent::Desired> Coordinator::BuildDesired(WorkerId id, const Echo& echo,
                                                 const std::vector<scheduler::AttemptRef>& gc) {
  const scheduler::Rev rev = scheduler::NextRev(&*state);
  agent::Desired out{.rev = {.generation = rev.generation, .boot = rev.boot, .n = rev.n},
                     .echo_incarnation = echo.incarnation,
                     .echo_sent_boottime_ns = echo.sent_boottime_ns,
                     .want = {},
                     .gc = {}};
  World::WorkerFacts& facts = w_.worker_facts[id];
  if (echo.incarnation == facts.incarnation) {
    facts.echoed = std::max(facts.echoed, echo.sent_boottime_ns);
  }
  for (const scheduler::AttemptRef& ref : gc) out.gc.push_back({ref.epoch.value, ref.rank});
  for (const scheduler::Wanted& wanted : scheduler::WantedOf(*state, id)) {
    const scheduler::Attempt& attempt = *wanted.attempt;
    const auto stored = w_.image.attempts.find(attempt.row.epoch);
    if (stored == w_.image.attempts.end()) {
      w_.Fail("S16", StrCat("attempt ", attempt.row.epoch.value, " was sent and is not stored"));
    } else if (attempt.status.intent > stored->second.status.intent) {
      w_.Fail("S15",
              StrCat("intent of ", attempt.row.epoch.value, " was sent before it is stored"));
    }
    out.want.push_back({.key = {attempt.row.epoch.value, wanted.rank},
                        .run_id = attempt.row.run.value.ToString(),
                        .ordinal = attempt.row.ordinal,
                        .slots = attempt.members[wanted.rank].slots,
                        .intent = static_cast<agent::Intent>(attempt.status.intent),
                        .grace_ms = wanted.grace_ms,
                        .lease_ms = wanted.lease_ms,
                        .has_spec = !attempt.is_observed});
    Host& host = w_.HostOf(id);
    if (host.sleep_at_launch > 0 && !w_.attempt_facts[attempt.row.epoch].has_record) {
      host.Pause(std::exchange(host.sleep_at_launch, 0));
    }
  }
  return out;
}

void Coordinator::ReleaseHeartbeat(WorkerId id, const Echo& echo,
                                   const scheduler::HeartbeatAnswer& answer,
                                   const Reply<agent::Desired>& done) {
  if (const auto older = parked_.find(id); older != parked_.end()) {
    const Parked parked = std::move(older->second);
    parked_.erase(older);
    w_.See(Point::parked_pushed_out);
    parked.done(BuildDesired(id, parked.echo, {}));
  }
  const scheduler::Worker* worker = state->FindWorker(id);
  if (worker == nullptr || answer.has_news || HasNews(*worker)) {
    done(BuildDesired(id, echo, answer.gc));
    return;
  }
  w_.See(Point::parked_reply);
  parked_[id] = {.echo = echo,
                 .done = done,
                 .until = Steady() + scheduler::HeartbeatPeriod(state->workers.size()) * 4 / 5};
}

void Coordinator::WakeParked() {
  for (const WorkerId id : std::exchange(woken_, {})) {
    const auto found = parked_.find(id);
    if (found == parked_.end()) continue;
    const scheduler::Worker* worker = state->FindWorker(id);
    if (worker != nullptr && !HasNews(*worker)) continue;
    const Parked parked = std::move(found->second);
    parked_.erase(found);
    parked.done(BuildDesired(id, parked.echo, {}));
  }
}

void Coordinator::EndParked() {
  const Timestamp now = Steady();
  for (auto it = parked_.begin(); it != parked_.end();) {
    if (it->second.until > now) {
      ++it;
      continue;
    }
    const WorkerId id = it->first;
    const Parked parked = std::move(it->second);
    it = parked_.erase(it);
    parked.done(BuildDesired(id, parked.echo, {}));
  }
}

// ---------------------------------------------------------------- recording

void Coordinator::Append(scheduler::Append event, std::vector<Line> lines,
                         Reply<AppendReply> done) {
  auto shared = std::make_shared<std::pair<scheduler::Append, std::vector<Line>>>(std::move(event),
                                                                                  std::move(lines));
  const auto refuse = [this, shared, done](const Status& status) {
    w_.See(Point::append_refused_degraded);
    // An acknowledgement of what could not be written.
    if (SWITCHYARD_GUARD(X37, false)) {
      done(AppendReply{.committed = shared->first.first_seq + shared->first.n - 1,
                       .expect = 0,
                       .durable = 0,
                       .has_credit = true});
      return;
    }
    done(status);
  };
  Push({.queue = kAppend,
        .decide =
            [this, shared, done](Turn& turn) {
              scheduler::Append& event = shared->first;
              event.recorded = FindRecorded(event.run, event.epoch);
              const scheduler::Decision decision = Decide(turn, event);
              if (!decision.status.ok()) {
                turn.releases.push_back([done, status = decision.status] { done(status); });
                return;
              }
              const auto& answer = std::get<scheduler::AppendAnswer>(decision.answer);
              if (answer.accepted_from != 0) {
                NewLines rows{.epoch = event.epoch, .first_seq = answer.accepted_from, .lines = {}};
                if (answer.accepted_from > event.first_seq) w_.See(Point::partly_duplicate_batch);
                const uint64_t skip = std::min<uint64_t>(answer.accepted_from - event.first_seq,
                                                         shared->second.size());
                rows.lines.assign(shared->second.begin() + static_cast<int64_t>(skip),
                                  shared->second.end());
                // Lines go in front of the status that says that they are there.
                turn.rows.emplace_back(std::move(rows));
              } else if (answer.expect == 0) {
                w_.See(Point::duplicate_batch);
              }
              AppendReply reply{.committed = answer.committed,
                                .expect = answer.expect,
                                .durable = 0,
                                .has_credit = !w_.random.Chance(w_.short_credits)};
              if (!reply.has_credit) w_.See(Point::credits_short);
              if (w_.backup.has_value()) {
                const auto saved = w_.backup->attempts.find(event.epoch);
                if (saved != w_.backup->attempts.end()) reply.durable = saved->second.lines.size();
              }
              turn.releases.push_back([done, reply] { done(reply); });
            },
        .refuse = refuse});
}

// Idle work of the store.
void Coordinator::MergeChunks() {
  if (is_degraded || w_.engine.now() < disk_full_until) return;
  for (auto& [epoch, attempt] : w_.image.attempts) {
    if (attempt.chunks.size() < 4) continue;
    w_.See(Point::chunks_merged);
    const ChunkDelete gone{.epoch = epoch, .count = 3};
    const ChunkInsert merged{.epoch = epoch,
                             .chunk = {attempt.chunks[0].first, attempt.chunks[2].second}};
    if (SWITCHYARD_GUARD(X31, false)) {
      w_.CommitRows({gone});
      if (w_.CrashesAt(Site::kAfterCommit, this)) return;
      w_.CommitRows({merged});
    } else {
      w_.CommitRows({gone, merged});
    }
    w_.sentinel = w_.image.tail;
    return;
  }
}

// ---------------------------------------------------------------- clients

std::string ClientCall::body() const {
  return StrCat(static_cast<int>(kind), " ", document, " ", run.value.ToString(), " ",
                sweep.value.ToString(), " ", worker.value.ToString(), " ", static_cast<int>(verb),
                " ", static_cast<int>(worker_verb), " ", deadline_ms);
}

std::vector<scheduler::PlannedRun> Coordinator::Plan(const Document& document, uint64_t first,
                                                     uint64_t count) {
  std::vector<scheduler::PlannedRun> runs;
  for (uint64_t number = first; number < first + count && number <= document.runs; ++number) {
    const uint64_t cell = document.first_cell + number - 1;
    scheduler::PlannedRun plan{
        .run = {}, .number = number, .cell = cell, .columns = {}, .stored = {}};
    plan.run.id = {Uuid::V7(w_.UnixMs(), w_.random.Next(), w_.random.Next())};
    plan.run.project = "p";
    plan.run.run_key = StrCat("cell", cell);
    plan.run.seed = cell;
    plan.run.priority = document.priority;
    plan.run.need.count = document.slots;
    plan.run.max_parallel = document.max_parallel;
    plan.run.timeout_ms = document.timeout_ms;
    if (document.is_exclusive) plan.run.policy.profile = scheduler::Profile::kExclusive;
    plan.run.steps_total = document.steps;
    const auto valid = w_.image.FindValidRun(plan.run.run_key);
    if (valid.has_value()) plan.stored = *valid;
    runs.push_back(std::move(plan));
  }
  return runs;
}

void Coordinator::RequestProposals() {
  if (state->queued >= scheduler::kQueuedMax) return;
  for (const auto& [id, sweep] : state->sweeps) {
    if (sweep.status.state != scheduler::SweepState::kActive ||
        sweep.status.proposed >= sweep.row.runs || proposing_.contains(id)) {
      continue;
    }
    proposing_.insert(id);
    const uint64_t first = sweep.status.proposed + 1;
    const uint64_t document = sweep.row.cells;
    // Another thread expands the document; much may happen meanwhile.
    process.Post(
        w_.engine, w_.engine.now() + w_.random.Below(2 * kSec), [this, id = id, first, document] {
          Push({.queue = kMutation,
                .is_barrier = true,
                .decide =
                    [this, id, first, document](Turn& turn) {
                      proposing_.erase(id);
                      const scheduler::Sweep* sweep = state->FindSweep(id);
                      if (sweep == nullptr) return;
                      if (sweep->status.state != scheduler::SweepState::kActive) {
                        w_.See(Point::proposal_after_cancel);
                      }
                      const scheduler::Decision decision = Decide(
                          turn, scheduler::Propose{.sweep = id,
                                                   .runs = Plan(w_.documents[document], first, 2)});
                      if (std::get<scheduler::ProposeAnswer>(decision.answer).reused > 0) {
                        w_.See(Point::run_linked_twice);
                      }
                    },
                .refuse = [this, id](const Status&) { proposing_.erase(id); }});
        });
  }
}

void Coordinator::Client(const ClientCall& call, Reply<uint64_t> done) {
  Push({.queue = kMutation,
        .is_barrier = true,
        .decide =
            [this, call, done](Turn& turn) {
              const Result<uint64_t> reply = DecideClient(turn, call);
              turn.releases.push_back([done, reply] { done(reply); });
            },
        .refuse = [done](const Status& status) { done(status); }});
}

Result<uint64_t> Coordinator::DecideClient(Turn& turn, const ClientCall& call) {
  const std::string body = call.body();
  if (const auto known = w_.image.idem.find(call.request_id); known != w_.image.idem.end()) {
    if (!SWITCHYARD_GUARD(X29, known->second.body == body)) {
      w_.See(Point::request_id_with_other_body);
      return AlreadyExists("request id was used for another request");
    }
    w_.See(Point::cancel_retried_same_reply);
    return known->second.reply;
  }
  uint64_t reply = 0;
  switch (call.kind) {
    case ClientCall::Kind::kSubmit: {
      const Document& document = w_.documents[call.document];
      scheduler::SubmitSweep event;
      event.sweep.id = {Uuid::V7(w_.UnixMs(), w_.random.Next(), w_.random.Next())};
      event.sweep.project = "p";
      event.sweep.name = StrCat("s", w_.requests, "-", call.request_id);
      event.sweep.spec_hash = StrCat("d", call.document);
      event.sweep.cells = call.document;
      event.sweep.runs = document.runs;
      event.first = Plan(document, 1, 2);
      const scheduler::Decision decision = Decide(turn, event);
      SWITCHYARD_RETURN_IF_ERROR(decision.status);
      if (std::get<scheduler::ProposeAnswer>(decision.answer).reused > 0) {
        w_.See(Point::run_linked_twice);
      }
      reply = event.sweep.id.value.low;
      break;
    }
    case ClientCall::Kind::kSteerRun: {
      if (const scheduler::Run* run = state->FindRun(call.run); run != nullptr && call.IsEnd()) {
        if (run->status.state == RunState::kQueued) w_.See(Point::cancel_while_queued);
        if (run->status.state == RunState::kActive) w_.See(Point::cancel_while_active);
        if (run->status.state == RunState::kBackoff) w_.See(Point::cancel_in_backoff);
      }
      const scheduler::Decision decision =
          Decide(turn, scheduler::SteerRun{.run = call.run,
                                           .verb = call.verb,
                                           .reason = "simulated",
                                           .priority = static_cast<int32_t>(call.document)});
      SWITCHYARD_RETURN_IF_ERROR(decision.status);
      reply = std::get<scheduler::SteerAnswer>(decision.answer).runs_affected;
      break;
    }
    case ClientCall::Kind::kSteerSweep: {
      if (const scheduler::Sweep* sweep = state->FindSweep(call.sweep)) {
        for (const RunId run : sweep->live_runs) {
          if (state->FindRun(run)->links.size() > 1) w_.See(Point::run_kept_by_other_sweep);
        }
      }
      const scheduler::Decision decision =
          Decide(turn, scheduler::SteerSweep{.sweep = call.sweep,
                                             .verb = call.verb,
                                             .reason = "simulated",
                                             .priority = static_cast<int32_t>(call.document)});
      SWITCHYARD_RETURN_IF_ERROR(decision.status);
      reply = std::get<scheduler::SteerAnswer>(decision.answer).runs_affected;
      break;
    }
    case ClientCall::Kind::kSteerWorker: {
      scheduler::SteerWorker event{.worker = call.worker,
                                   .verb = call.worker_verb,
                                   .reason = "simulated",
                                   .deadline_ms = {},
                                   .random = w_.random.Next()};
      if (call.deadline_ms > 0) event.deadline_ms = call.deadline_ms;
      const scheduler::Decision decision = Decide(turn, event);
      SWITCHYARD_RETURN_IF_ERROR(decision.status);
      if (call.worker_verb == scheduler::WorkerVerb::kDrain) w_.See(Point::worker_drained);
      reply = std::get<scheduler::SteerAnswer>(decision.answer).runs_affected;
      break;
    }
  }
  turn.rows.emplace_back(IdemEntry{.request_id = call.request_id, .body = body, .reply = reply});
  return reply;
}

}  // namespace switchyard::simulation
