// The coordinator's shell around the production core: inbox, groups, commits, parked heartbeats,
// proposals. As server/app/reducer.cc does it, on virtual time and the image of committed rows.
#include <algorithm>
#include <utility>

#include "server/scheduler/contacts.h"
#include "server/scheduler/lease_policy.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {

using scheduler::Change;
using scheduler::IsTerminal;
using scheduler::RunState;

namespace {

constexpr size_t kQueueMax = 4096;
constexpr Nanos kPassMax = 3 * kMs;
constexpr Nanos kProbe = kSec;

bool IsVolatile(const Change& change) {
  return std::holds_alternative<scheduler::WorkerContact>(change) ||
         std::holds_alternative<scheduler::AttemptObserved>(change) ||
         std::holds_alternative<scheduler::WantChanged>(change) ||
         std::holds_alternative<scheduler::EndedRunBack>(change) ||
         std::holds_alternative<scheduler::HistoryRow>(change);
}

}  // namespace

std::string ClientCall::body() const {
  return StrCat(static_cast<int>(kind), " ", document, " ", run.value.ToString(), " ",
                sweep.value.ToString(), " ", worker.value.ToString(), " ", static_cast<int>(verb),
                " ", static_cast<int>(worker_verb), " ", deadline_ms);
}

Timestamp Coordinator::Steady() const {
  return {static_cast<int64_t>(w_.engine.now() / kMs) + 1'000'000};
}

scheduler::Now Coordinator::MakeNow() const {
  return {.now = clock_.Now(Steady()), .unix_ms = w_.UnixMs()};
}

void Coordinator::Boot() {
  process.Start();
  w_.CountCoordinator();
  w_.coordinator_counts = !process.is_stopped();
  // Committed data has vanished: an administrator decides; here, to go on from what is left.
  const bool is_behind = !SWITCHYARD_GUARD(X30, w_.image.tail >= w_.sentinel);
  if (is_behind) w_.See(Point::sentinel_caught);
  if (is_behind || w_.needs_restore_decision) {
    if (!SWITCHYARD_GUARD(X28, false)) ++w_.image.generation;
    w_.needs_restore_decision = false;
  }
  w_.sentinel = w_.image.tail;
  ++w_.image.boot;
  for (auto& queue : inbox_) queue.clear();
  parked_.clear();
  contacts_before_.clear();
  woken_.clear();
  proposing_.clear();
  state.reset();
  is_degraded = false;
  clock_ = scheduler::CoreClock(Milliseconds(30000));
  LoadState();
  clock_.Start(Steady());
  last_pass_ = w_.engine.now();
  wake_at_ = 0;
  w_.Trace("coordinator boots ", w_.image.generation, ".", w_.image.boot);
  Wake(w_.engine.now());
}

void Coordinator::Kill() {
  if (!process.is_alive()) return;
  w_.See(Point::coordinator_killed);
  w_.Trace("coordinator killed");
  w_.CountCoordinator();
  w_.coordinator_counts = false;
  process.Kill();
  parked_.clear();
  for (auto& queue : inbox_) queue.clear();
}

void Coordinator::Pause(Nanos duration) {
  if (process.is_stopped()) return;
  w_.CountCoordinator();
  w_.coordinator_counts = false;
  process.Stop();
  w_.engine.At(w_.engine.now() + duration, [this] {
    w_.CountCoordinator();
    w_.coordinator_counts = process.is_alive();
    process.Continue(w_.engine);
  });
}

void Coordinator::LoadState() {
  std::vector<scheduler::WorkerContact> contacts;
  uint64_t rev_n = 0;
  std::optional<Timestamp> loaded_at;
  if (state.has_value()) {
    loaded_at = state->loaded_at;
    contacts = scheduler::ContactsToKeep(*state, std::exchange(contacts_before_, {}));
    rev_n = state->rev_n;
  }
  clock_.StateLoaded(Steady());
  const scheduler::Now now = MakeNow();
  state = scheduler::Restore(w_.image.Load(), now);
  state->rev_n = std::max(state->rev_n, rev_n);
  state->loaded_at = loaded_at.value_or(state->loaded_at);
  for (const scheduler::WorkerContact& contact : contacts) {
    if (!state->workers.contains(contact.worker)) continue;
    const Change changes[] = {contact, scheduler::WantChanged{contact.worker}};
    scheduler::Apply(changes, now, &*state);
    woken_.insert(contact.worker);
  }
  proposing_.clear();
  needs_schedule_ = true;
}

void Coordinator::Push(Input input) {
  if (inbox_[input.queue].size() >= kQueueMax) {
    input.refuse(Unavailable("queue full"));
    return;
  }
  inbox_[input.queue].push_back(std::move(input));
  Wake(w_.engine.now() + w_.random.Below(kPassMax));
}

void Coordinator::Wake(Nanos at) {
  if (wake_at_ > w_.engine.now() && wake_at_ <= at) return;
  wake_at_ = std::max(at, w_.engine.now() + 1);
  process.Post(w_.engine, wake_at_, [this, planned = wake_at_] {
    if (planned == wake_at_) Pass();
  });
}

// By priority of the queues, until a barrier.
std::vector<Coordinator::Input> Coordinator::TakeGroup() {
  std::vector<Input> group;
  for (auto& queue : inbox_) {
    while (!queue.empty() && group.size() < w_.group_max) {
      if (queue.front().is_barrier && !group.empty()) return group;
      group.push_back(std::move(queue.front()));
      queue.pop_front();
      if (group.back().is_barrier) return group;
    }
  }
  return group;
}

void Coordinator::Pass() {
  const Timestamp steady = Steady();
  if (w_.engine.now() - last_pass_ > 1500 * kMs) w_.See(Point::late_pass);
  last_pass_ = w_.engine.now();
  clock_.Pass(steady);
  const uint64_t life = process.life();
  // A late tick comes after what has arrived meanwhile. Without that guard it does not wait.
  const bool tick_first = SWITCHYARD_GUARD(X26, false) && clock_.TakeTick(steady, false);
  if (tick_first) {
    RunTick();
    if (process.life() != life) return;
  }
  std::vector<Input> group = TakeGroup();
  if (!group.empty()) {
    RunGroup(std::move(group));
    if (process.life() != life) return;
  }
  const bool has_heartbeats = !inbox_[kHeartbeat].empty();
  if (has_heartbeats && clock_.UntilTick(steady) == Milliseconds(0)) w_.See(Point::tick_held_back);
  if (clock_.TakeTick(steady, has_heartbeats)) {
    RunTick();
    if (process.life() != life) return;
    if (w_.random.Chance(0.02)) MergeChunks();
    if (process.life() != life) return;
  }
  const bool is_more =
      std::ranges::any_of(inbox_, [](const auto& queue) { return !queue.empty(); });
  wake_at_ = 0;
  Wake(w_.engine.now() +
       (is_more ? 1 : static_cast<Nanos>(clock_.UntilTick(Steady()).count()) * kMs + kMs / 10));
}

scheduler::Decision Coordinator::Decide(Turn& turn, const scheduler::Event& event) {
  scheduler::Decision decision = scheduler::Decide(*state, event, turn.now);
  for (const scheduler::StaleKind kind : decision.stale) {
    switch (kind) {
      case scheduler::StaleKind::kIncarnation:
      case scheduler::StaleKind::kEpoch:
        break;
      case scheduler::StaleKind::kNonce:
        w_.See(Point::stale_nonce);
        break;
      case scheduler::StaleKind::kHbSeq:
        w_.See(Point::stale_hb_seq);
        break;
      case scheduler::StaleKind::kSealed:
        w_.See(Point::sealed_stream);
        break;
      case scheduler::StaleKind::kGap:
        w_.See(Point::gap_answered);
        break;
      case scheduler::StaleKind::kUnknownAttempt:
        w_.See(Point::unknown_attempt);
        break;
      case scheduler::StaleKind::kLateOutcome:
        w_.See(Point::late_outcome);
        break;
    }
  }
  for (const Change& change : decision.changes) {
    if (const auto* contact = std::get_if<scheduler::WorkerContact>(&change)) {
      const scheduler::Worker* worker = state->FindWorker(contact->worker);
      if (worker != nullptr) {
        contacts_before_.try_emplace(contact->worker, scheduler::ContactOf(*worker));
        if (worker->contact != contact->contact) {
          needs_schedule_ = true;
          if (contact->contact == scheduler::Contact::kSuspect) w_.See(Point::suspect);
          if (contact->contact == scheduler::Contact::kOnline) {
            if (worker->contact == scheduler::Contact::kSuspect) w_.See(Point::back_from_suspect);
            if (worker->contact == scheduler::Contact::kLost) w_.See(Point::back_from_lost);
          }
        }
      }
    } else if (const auto* want = std::get_if<scheduler::WantChanged>(&change)) {
      woken_.insert(want->worker);
    } else if (std::holds_alternative<scheduler::EndedRunBack>(change)) {
      w_.See(Point::ended_run_back);
    } else if (std::holds_alternative<scheduler::RunStatus>(change) ||
               std::holds_alternative<scheduler::SweepStatus>(change) ||
               std::holds_alternative<scheduler::MemberRow>(change) ||
               std::holds_alternative<scheduler::WorkerRow>(change)) {
      needs_schedule_ = true;
    }
  }
  scheduler::Apply(decision.changes, turn.now, &*state);
  for (const Change& change : decision.changes) {
    if (!IsVolatile(change)) turn.rows.emplace_back(change);
  }
  return decision;
}

void Coordinator::RunGroup(std::vector<Input> group) {
  const bool was_degraded = is_degraded;
  Turn turn{.now = MakeNow()};
  for (Input& input : group) input.decide(turn);
  if (needs_schedule_ && !was_degraded) {
    needs_schedule_ = false;
    if (state->queued > 0) {
      const scheduler::Decision decision = Decide(turn, scheduler::Schedule{});
      const auto* answer = std::get_if<scheduler::ScheduleAnswer>(&decision.answer);
      needs_schedule_ = answer != nullptr && answer->placed >= scheduler::kPlacementsMax;
    }
  }
  const auto release = [&] {
    for (const Work& reply : turn.releases) {
      if (w_.CrashesAt(Site::kBetweenReplies, this)) {
        w_.See(Point::crash_between_replies);
        return false;
      }
      reply();
    }
    return true;
  };
  const bool before_commit = SWITCHYARD_GUARD(X04, false);
  if (before_commit && !release()) return;
  switch (Commit(turn)) {
    case Committed::kDied:
      return;
    case Committed::kYes:
      if (!before_commit && !release()) return;
      WakeParked();
      RequestProposals();
      return;
    case Committed::kNo:
      break;
  }
  w_.See(Point::overlay_rollback);
  // The answers were computed on rows that do not exist.
  if (SWITCHYARD_GUARD(X36, false)) {
    if (!before_commit) release();
    return;
  }
  const size_t inputs = group.size();
  for (Input& input : group) {
    const bool is_alone = is_degraded && input.queue == kHeartbeat && (inputs > 1 || !was_degraded);
    if (is_alone) {
      std::vector<Input> one;
      one.push_back(std::move(input));
      const uint64_t life = process.life();
      RunGroup(std::move(one));
      if (process.life() != life) return;
    } else if (input.refuse) {
      input.refuse(Unavailable("the coordinator cannot write now"));
    }
  }
}

Coordinator::Committed Coordinator::Commit(Turn& turn) {
  if (!turn.rows.empty()) {
    if (w_.CrashesAt(Site::kBeforeCommit, this)) {
      w_.See(Point::crash_before_commit);
      return Committed::kDied;
    }
    if (fail_next_sync) {
      // The outcome is unknown: the process ends, the rows are there or not.
      fail_next_sync = false;
      w_.See(Point::commit_outcome_unknown);
      if (w_.random.Chance(0.5)) w_.CommitRows(turn.rows);
      Kill();
      w_.engine.At(w_.engine.now() + kSec, [this] {
        if (!process.is_alive()) Boot();
      });
      return Committed::kDied;
    }
    if (w_.engine.now() < disk_full_until) {
      is_degraded = true;
      LoadState();
      return Committed::kNo;
    }
    w_.CommitRows(turn.rows);
    // Told to nobody yet: written before the replies leave.
    w_.sentinel = w_.image.tail;
    is_degraded = false;
    if (w_.CrashesAt(Site::kAfterCommit, this)) {
      w_.See(Point::crash_after_commit);
      return Committed::kDied;
    }
  } else if (is_degraded) {
    w_.See(Point::degraded_echo);
  }
  contacts_before_.clear();
  return Committed::kYes;
}

void Coordinator::RunTick() {
  const Nanos now = w_.engine.now();
  std::vector<Input> group;
  const auto refuse = [](const Status&) {};
  needs_schedule_ |= clock_.TakeReview(Steady());
  if (!clock_.MayExpire(Steady())) w_.See(Point::restart_grace_held);
  if (clock_.MayExpire(Steady()) && !is_degraded) {
    group.push_back(
        {.queue = kMutation,
         .decide =
             [this](Turn& turn) {
               const scheduler::Decision decision =
                   Decide(turn, scheduler::Tick{.random = w_.random.Next()});
               if (!decision.has_expired_leases()) return;
               w_.See(Point::lost_by_silence);
               w_.CountCoordinator();
               for (const Change& change : decision.changes) {
                 const auto* attempt = std::get_if<scheduler::AttemptStatus>(&change);
                 if (attempt == nullptr || attempt->state != scheduler::AttemptState::kLost ||
                     attempt->reason.find("no contact") == std::string::npos) {
                   continue;
                 }
                 const scheduler::Attempt* lost = state->FindAttempt(attempt->epoch);
                 if (lost == nullptr) continue;
                 const scheduler::Run* run = state->FindRun(lost->row.run);
                 CheckLostBySilence(*lost, run == nullptr ? scheduler::Profile::kResilient
                                                          : run->row.policy.profile);
               }
             },
         .refuse = refuse});
  } else if (is_degraded && now - last_probe_ >= kProbe) {
    last_probe_ = now;
    group.push_back({.queue = kMutation,
                     .decide =
                         [](Turn& turn) {
                           turn.rows.emplace_back(Change{scheduler::HistoryRow{
                               .at_ms = 0, .kind = "writes_resumed", .ref = {}, .text = {}}});
                         },
                     .refuse = refuse});
  } else if (needs_schedule_ && !is_degraded) {
    group.push_back({.queue = kMutation, .decide = [](Turn&) {}, .refuse = refuse});
  }
  const uint64_t life = process.life();
  if (!group.empty()) RunGroup(std::move(group));
  if (process.life() != life) return;
  EndParked();
  RequestProposals();
}

// L6, and S8 of `exclusive` runs: the coordinator has run long enough without a word from the
// worker, and the process is gone where it was killable within K.
void Coordinator::CheckLostBySilence(const scheduler::Attempt& lost, scheduler::Profile profile) {
  const World::WorkerFacts& facts = w_.worker_facts[lost.row.worker];
  const Nanos silent = w_.coordinator_ran - facts.heard_running;
  const auto least = static_cast<Nanos>(scheduler::ReplaceAfter(profile)->count()) * kMs;
  if (silent + 3 * kSec < least && !mutant::IsRemoved(mutant::X12)) {
    w_.Fail("L6", StrCat("attempt ", lost.row.epoch.value, " lost although its worker was heard ",
                         silent / kMs, " ms of running time ago"));
  }
  if (profile != scheduler::Profile::kExclusive) return;
  w_.See(Point::exclusive_replaced);
  const Trainer* trainer = w_.HostOf(lost.row.worker).FindTrainer({lost.row.epoch.value, 0});
  constexpr Nanos kKillMax = 10 * kSec;
  if (trainer == nullptr || trainer->process.is_stopped() || trainer->slow_exit > kKillMax) return;
  const Nanos awake = std::max(trainer->awake_since, trainer->starved_until);
  if (w_.engine.now() < awake + 2 * kSec + trainer->slow_exit) return;
  w_.Fail("S8", StrCat("attempt ", lost.row.epoch.value,
                       " is declared lost and its process is still there"));
}

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
