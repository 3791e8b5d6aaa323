// The coordinator's shell around the production core: inbox, groups, commits, time. As
// server/app/reducer.cc does it, on virtual time and the image of committed rows.
#include <algorithm>
#include <utility>

#include "server/scheduler/contacts.h"
#include "server/scheduler/lease_policy.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {

using scheduler::Change;

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

}  // namespace switchyard::simulation
