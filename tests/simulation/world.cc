#include "tests/simulation/world.h"

#include <algorithm>

namespace switchyard::simulation {

using scheduler::IsTerminal;

namespace {

constexpr size_t kTraceMax = 4000;
constexpr uint64_t kHashEvery = 1000;

uint64_t Mix64(uint64_t hash, uint64_t value) {
  return Random(hash ^ (value + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2))).Next();
}

}  // namespace

World::World(const Options& run_options)
    : options(run_options), random(run_options.seed), coordinator(*this) {}

World::~World() = default;

int64_t World::UnixMs() const { return wall_offset_ms + static_cast<int64_t>(engine.now() / kMs); }

uint64_t World::LineValue(Epoch epoch, uint64_t seq) const {
  return Random(epoch.value * 0x100000001b3ULL + seq).Next();
}

Host& World::HostOf(WorkerId id) {
  for (const auto& host : hosts) {
    if (host->id == id) return *host;
  }
  Fail("S2", "a worker that is none");
  return *hosts[0];
}

void World::Fail(std::string_view invariant, std::string text) {
  if (outcome.failure.has_value()) return;
  outcome.failure = Failure{.invariant = std::string(invariant),
                            .text = StrCat("t=", engine.now() / kMs, " ms: ", text)};
  Trace("VIOLATION ", invariant, ": ", text);
}

void World::TraceLine(std::string text) {
  outcome.trace.push_back(StrCat("t=", engine.now() / kMs, " ", text));
  if (outcome.trace.size() > kTraceMax) outcome.trace.pop_front();
}

Nanos World::Delay() {
  if (has_quiet) return random.Below(20 * kMs);
  return random.Chance(0.9) ? random.Below(std::min<Nanos>(delay_max, 50 * kMs) + 1)
                            : random.Below(delay_max + 1);
}

bool World::IsLost(const Host& host, bool to_coordinator) {
  if (!host.is_up) return true;
  const Nanos cut = to_coordinator ? host.cut_to_coordinator : host.cut_from_coordinator;
  return engine.now() < cut || (loss > 0 && random.Chance(loss));
}

bool World::IsDoubled() { return doubling > 0 && random.Chance(doubling); }

bool World::CrashesAt(Site site, const void* where) {
  if (armed.empty() || has_failed()) return false;
  for (auto it = armed.begin(); it != armed.end(); ++it) {
    if (it->site != site) continue;
    const bool is_agent = site >= Site::kAgentBeforeRecords;
    if (is_agent && where != &hosts[it->host % hosts.size()]->agent) continue;
    if (it->countdown-- > 0) return false;
    const Armed fired = *it;
    armed.erase(it);
    const Nanos down = random.Between(100 * kMs, 8 * kSec);
    if (is_agent) {
      Host& host = *hosts[fired.host % hosts.size()];
      if (fired.is_host_crash) {
        host.Crash(down);
        return true;
      }
      host.agent.Kill();
      engine.At(engine.now() + down, [&host] { host.agent.Boot(); });
    } else {
      coordinator.Kill();
      engine.At(engine.now() + down, [this] {
        if (!coordinator.process.is_alive()) coordinator.Boot();
      });
    }
    return true;
  }
  return false;
}

void World::CountCoordinator() {
  if (coordinator_counts) coordinator_ran += engine.now() - coordinator_ran_at;
  coordinator_ran_at = engine.now();
}

// ---------------------------------------------------------------- the store's faults

// The newest groups are gone, as after a power cut that damaged the log.
void World::LoseTail(uint64_t groups) {
  if (!keeps_wal || wal.empty()) return;
  const uint32_t boot = image.boot;
  const uint32_t generation = image.generation;
  // Never what a backup holds: from that an administrator would restore.
  const uint64_t since_backup = image.tail - (backup.has_value() ? backup->tail : 0);
  const uint64_t lost = std::min<uint64_t>({groups, wal.size(), since_backup});
  wal.resize(wal.size() - lost);
  See(Point::wal_tail_lost);
  std::map<Epoch, uint64_t> had;
  for (const auto& [epoch, attempt] : image.attempts) had[epoch] = attempt.lines.size();
  image = checkpointed;
  image.generation = generation;
  for (const Group& group : wal) {
    for (const Row* row : InOrder(group)) ApplyRow(*row, nullptr);
    ++image.tail;
  }
  image.boot = boot;
  for (const auto& [epoch, lines] : had) {
    const auto kept = image.attempts.find(epoch);
    if (kept == image.attempts.end() || kept->second.lines.size() < lines) {
      attempt_facts[epoch].is_rewound = true;
    }
  }
  for (auto& [epoch, facts] : attempt_facts) facts.published_steps.clear();
  for (const auto& [id, of_run] : image.checkpoints) {
    for (const auto& [key, row] : of_run) {
      if (row.state == scheduler::CheckpointState::kOrphan) continue;
      attempt_facts[row.epoch].published_steps.insert(row.step);
    }
  }
  checkpointed = image;
  wal.clear();
}

void World::RestoreBackup() {
  if (!backup.has_value()) return;
  See(Point::old_backup_restored);
  const uint32_t generation = image.generation;
  std::map<Epoch, uint64_t> had;
  for (const auto& [epoch, attempt] : image.attempts) had[epoch] = attempt.lines.size();
  image = *backup;
  image.generation = generation;
  for (const auto& [epoch, lines] : had) {
    const auto kept = image.attempts.find(epoch);
    if (kept == image.attempts.end() || kept->second.lines.size() < lines) {
      attempt_facts[epoch].is_rewound = true;
    }
  }
  for (auto& [id, facts] : worker_facts) {
    const auto worker = image.workers.find(id);
    const uint64_t stored = worker == image.workers.end() ? 0 : worker->second.incarnation;
    // Heartbeats of another incarnation say nothing of this one's.
    if (stored != facts.incarnation) facts.hb_seq = 0;
    facts.incarnation = stored;
  }
  needs_restore_decision = true;
  sentinel = image.tail;
  checkpointed = image;
  wal.clear();
}

// ---------------------------------------------------------------- set-up

std::string World::NewRequestId() { return StrCat("q", ++requests); }

void World::Setup() {
  const Mix& mix = *FindMix(options.mix);
  fault_phase_ = random.Between(mix.phase_min / kSec, mix.phase_max / kSec) * kSec;
  schedule_ = DrawFaults(mix, options.seed, fault_phase_);
  keeps_wal = std::ranges::any_of(
      schedule_, [](const Fault& fault) { return fault.kind == FaultKind::coordinator_wal_loss; });
  infra_rate = mix.infra_rate;
  // Tiny batches, often: many small acknowledgements.
  if (random.Chance(0.25)) lines_per_batch = random.Between(1, 3);
  // Tiny groups: what belongs together arrives apart.
  if (random.Chance(0.25)) group_max = random.Between(1, 3);
  const uint64_t count = random.Between(2, 4);
  const bool is_shared = random.Chance(0.4);
  for (uint32_t i = 0; i < count; ++i) {
    hosts.push_back(std::make_unique<Host>(*this, i));
    hosts[i]->slots = static_cast<uint32_t>(random.Between(1, 3));
    if (is_shared) hosts[i]->store = "shared";
  }
  const uint64_t kinds = random.Between(2, 4);
  uint64_t cell = 0;
  for (uint64_t i = 0; i < kinds; ++i) {
    Document document{.number = i,
                      .runs = random.Between(2, 6),
                      .first_cell = cell,
                      .steps = random.Between(mix.steps_min, mix.steps_max)};
    if (random.Chance(mix.lease_share)) {
      document.is_exclusive = random.Chance(0.5);
      if (!document.is_exclusive) document.timeout_ms = random.Between(200'000, 560'000);
    }
    if (random.Chance(0.2)) document.slots = 2;
    if (random.Chance(0.2)) document.max_parallel = 2;
    document.priority = static_cast<int32_t>(random.Below(3));
    // Some documents share cells with the one before.
    cell += random.Chance(0.5) ? document.runs : document.runs - 1;
    documents.push_back(document);
  }
  // Runs must fit somewhere.
  hosts[0]->slots = std::max(hosts[0]->slots, 2U);
  coordinator.Boot();
  for (const auto& host : hosts) {
    Host* one = host.get();
    engine.At(engine.now() + random.Below(5 * kSec), [one] { one->agent.Boot(); });
  }
  for (uint64_t i = 0; i < 2; ++i) {
    engine.At(engine.now() + random.Below(20 * kSec),
              [this, i] { IssueClient({.kind = ClientCall::Kind::kSubmit, .document = i}); });
  }
  for (size_t i = 0; i < schedule_.size(); ++i) {
    if (options.left_out.contains(i)) continue;
    ++outcome.faults;
    outcome.schedule.push_back(StrCat("#", i, " ", schedule_[i].ToString()));
    engine.At(schedule_[i].at, [this, i] { Inject(schedule_[i]); });
  }
  // Backups, as an operator would make them.
  for (Nanos at = 2 * kMin; at < fault_phase_; at += 3 * kMin) {
    engine.At(at, [this] { backup = image; });
  }
}

// ---------------------------------------------------------------- clients

void World::IssueClient(ClientCall call) {
  ++open_calls;
  if (call.request_id.empty()) call.request_id = NewRequestId();
  SendClient(call, 0);
}

// Until an answer comes, with the same id.
void World::SendClient(const ClientCall& call, uint32_t attempt) {
  const auto is_done = std::make_shared<bool>(false);
  const auto again = [this, call, attempt, is_done] {
    if (*is_done) return;
    *is_done = true;
    SendClient(call, attempt + 1);
  };
  const Nanos wait = std::min<Nanos>(30 * kSec, kSec << std::min<uint32_t>(attempt, 5));
  engine.At(engine.now() + wait, again);
  if (random.Chance(loss)) return;
  engine.At(engine.now() + Delay(), [this, call, is_done] {
    if (!coordinator.process.is_alive()) return;
    coordinator.process.Post(engine, engine.now(), [this, call, is_done] {
      coordinator.Client(call, [this, call, is_done](const Result<uint64_t>& reply) {
        if (random.Chance(loss)) return;
        // What it promises holds until a restore takes it back.
        const uint32_t generation = image.generation;
        engine.At(engine.now() + Delay(), [this, call, is_done, reply, generation] {
          if (!reply.ok() && reply.status().code() == Code::kUnavailable) return;
          if (*is_done) return;
          *is_done = true;
          --open_calls;
          const auto seen = replies_seen.find(call.request_id);
          if (!reply.ok()) {
            if (reply.status().code() == Code::kAlreadyExists && seen == replies_seen.end()) {
              Fail("S16", "a new request id was refused as used");
            }
            return;
          }
          if (seen != replies_seen.end()) {
            const AckedCall* first = nullptr;
            for (const AckedCall& acked : acked_calls) {
              if (acked.call.request_id == call.request_id) first = &acked;
            }
            if (first != nullptr && first->generation == generation) {
              if (first->call.body() != call.body()) {
                Fail("S16", "a request id was accepted for another body");
              } else if (seen->second != *reply) {
                Fail("S16", "the same request id got another reply");
              }
            }
            return;
          }
          replies_seen[call.request_id] = *reply;
          OnDrained(call);
          acked_calls.push_back({.call = call, .reply = *reply, .generation = generation});
        });
      });
    });
  });
}

// ---------------------------------------------------------------- faults

Trainer* World::PickTrainer(uint64_t arg) {
  std::vector<Trainer*> alive;
  for (const auto& host : hosts) {
    for (Trainer* trainer : host->live) {
      if (trainer->process.is_alive()) alive.push_back(trainer);
    }
  }
  return alive.empty() ? nullptr : alive[arg % alive.size()];
}

// The newest one of a run matters most. Nil: there is none.
RunId World::DamageCheckpoint(uint64_t arg) {
  std::vector<CheckpointFile*> files;
  for (auto& [store, paths] : stores) {
    for (auto& [path, file] : paths) files.push_back(&file);
  }
  if (files.empty()) return {};
  CheckpointFile* chosen = files[arg % files.size()];
  for (CheckpointFile* file : files) {
    if (file->run == chosen->run && file->epoch >= chosen->epoch) chosen = file;
  }
  chosen->is_damaged = true;
  return chosen->run;
}

void World::RestoreAndStart(uint64_t arg, Nanos down) {
  if (!backup.has_value() || !coordinator.process.is_alive()) return;
  coordinator.Kill();
  RestoreBackup();
  // One of those that are forgotten is slow to leave its slot.
  if (Trainer* trainer = PickTrainer(arg >> 24); trainer != nullptr && (arg >> 20) % 4 == 0) {
    trainer->slow_exit = (65 + (arg >> 32) % 60) * kSec;
  }
  engine.At(engine.now() + down, [this] {
    if (!coordinator.process.is_alive()) coordinator.Boot();
  });
}

void World::Inject(const Fault& fault) {
  if (has_quiet) return;
  Trace("fault ", fault.ToString());
  Host& host = *hosts[fault.arg % hosts.size()];
  const uint64_t sub = fault.arg >> 8;
  const Nanos until = engine.now() + fault.duration;
  const auto boot_coordinator = [this] {
    if (!coordinator.process.is_alive()) coordinator.Boot();
  };
  const auto boot_agent = [&host] { host.agent.Boot(); };
  switch (fault.kind) {
    case FaultKind::coordinator_kill:
      coordinator.Kill();
      engine.At(until, boot_coordinator);
      break;
    case FaultKind::coordinator_wal_loss:
      coordinator.Kill();
      LoseTail(1 + sub % 6);
      engine.At(until, boot_coordinator);
      break;
    case FaultKind::coordinator_restore:
      if ((sub >> 44) % 4 == 0) {
        // An attempt falls back to an older checkpoint and is forgotten together with that; the
        // next one falls back to a checkpoint of it.
        const RunId run = DamageCheckpoint(sub);
        for (const auto& one : hosts) {
          for (Trainer* trainer : std::vector<Trainer*>(one->live)) {
            if (trainer->run_ == run) trainer->Exit(0, 11);
          }
        }
        engine.At(engine.now() + (45 + (sub >> 46) % 90) * kSec, [this, sub, fault] {
          if (!has_quiet) RestoreAndStart(sub, fault.duration);
        });
      } else {
        RestoreAndStart(sub, fault.duration);
      }
      break;
    case FaultKind::coordinator_pause:
      coordinator.Pause(fault.duration);
      break;
    case FaultKind::coordinator_disk_full:
      coordinator.disk_full_until = until;
      break;
    case FaultKind::coordinator_sync_error:
      coordinator.fail_next_sync = true;
      break;
    case FaultKind::coordinator_crash_point:
      armed.push_back(
          {.site = static_cast<Site>(sub % 3), .countdown = (sub >> 8) % 20, .host = 0});
      break;
    case FaultKind::agent_kill:
      host.agent.Kill();
      engine.At(until, boot_agent);
      break;
    case FaultKind::agent_stop: {
      host.agent.process.Stop();
      engine.At(until, [this, &host] { host.agent.process.Continue(engine); });
      break;
    }
    case FaultKind::agent_crash_point:
      armed.push_back({.site = static_cast<Site>(3 + sub % 4),
                       .countdown = (sub >> 8) % 6,
                       .host = static_cast<uint32_t>(fault.arg % hosts.size()),
                       .is_host_crash = (sub >> 16) % 4 == 0});
      break;
    case FaultKind::fork_server_kill:
      if (!host.fork_server.process.is_alive()) break;
      See(Point::fork_server_killed);
      host.fork_server.Kill();
      // The agent sees the end of the socket and begins anew.
      engine.At(engine.now() + 5 * kMs, [this, &host] {
        if (!host.agent.process.is_alive()) return;
        host.agent.Kill();
        engine.At(engine.now() + 30 * kMs, [&host] { host.agent.Boot(); });
      });
      break;
    case FaultKind::fork_server_slow:
      host.fork_server.slow_until = until;
      break;
    case FaultKind::fork_server_slow_and_agent_kill: {
      host.fork_server.slow_until = engine.now() + kMin;
      // When a launch is under way.
      armed.push_back({.site = Site::kAgentAfterSpawn,
                       .countdown = 0,
                       .host = static_cast<uint32_t>(fault.arg % hosts.size())});
      break;
    }
    case FaultKind::trainer_kill:
      if (Trainer* trainer = PickTrainer(sub)) trainer->Exit(0, sub % 3 == 0 ? 11 : 9);
      break;
    case FaultKind::trainer_stop:
      if (Trainer* trainer = PickTrainer(sub)) {
        trainer->process.Stop();
        engine.At(until, [this, trainer] {
          trainer->process.Continue(engine);
          trainer->Continue();
        });
      }
      break;
    case FaultKind::trainer_term:
      if (Trainer* trainer = PickTrainer(sub)) trainer->Signal(15);
      break;
    case FaultKind::trainer_fail:
      if (Trainer* trainer = PickTrainer(sub)) {
        constexpr int kCodes[] = {64, 65, 69, 70, 71, 77, 1, -6, -11, 69};
        trainer->fail_with = kCodes[(sub >> 8) % std::size(kCodes)];
      }
      break;
    case FaultKind::trainer_exit_zero:
      // A library that ends the process behind our back.
      if (Trainer* trainer = PickTrainer(sub)) trainer->Exit(0, 0);
      break;
    case FaultKind::watchdog_starved:
      if (Trainer* trainer = PickTrainer(sub)) {
        trainer->starved_until = std::max(trainer->starved_until, until);
      }
      break;
    case FaultKind::step_hung:
      if (Trainer* trainer = PickTrainer(sub)) trainer->is_hung = true;
      break;
    case FaultKind::exit_slow:
      if (Trainer* trainer = PickTrainer(sub)) trainer->slow_exit = fault.duration;
      break;
    case FaultKind::host_crash:
      host.Crash(fault.duration);
      break;
    case FaultKind::host_suspend:
      // With the next attempt on its way: it may wake when that one's lease is over.
      if ((sub >> 20) % 4 == 0) {
        host.sleep_at_launch = fault.duration;
        break;
      }
      [[fallthrough]];
    case FaultKind::host_pause:
      if (host.is_up) host.Pause(fault.duration);
      break;
    case FaultKind::host_disk_full:
      host.disk_full_until = until;
      break;
    case FaultKind::pid_reuse: {
      // An agent that is down finds another process under a dead trainer's number.
      host.agent.Kill();
      Trainer* victim = nullptr;
      for (const auto& trainer : host.trainers) {
        if (trainer->process.is_alive()) victim = trainer.get();
      }
      if (victim != nullptr) {
        victim->Exit(0, 11);
        See(Point::pid_reused);
        engine.At(engine.now() + kSec, [&host, pid = victim->pid()] {
          if (host.FindProcess(pid) == nullptr) host.foreign[pid] = 1;
        });
      }
      engine.At(engine.now() + 3 * kSec, boot_agent);
      break;
    }
    case FaultKind::checkpoint_damage:
      if (!DamageCheckpoint(sub).value.is_nil()) {
        if (Trainer* trainer = PickTrainer(sub >> 4)) trainer->Exit(0, 11);
      }
      break;
    case FaultKind::cut_to_coordinator:
      host.cut_to_coordinator = until;
      engine.At(until, [this] { See(Point::partition_healed); });
      break;
    case FaultKind::cut_from_coordinator:
      host.cut_from_coordinator = until;
      engine.At(until, [this] { See(Point::partition_healed); });
      break;
    case FaultKind::cut_both:
      host.cut_to_coordinator = host.cut_from_coordinator = until;
      engine.At(until, [this] { See(Point::partition_healed); });
      break;
    case FaultKind::loss:
      loss = 0.01 + static_cast<double>(sub % 30) / 100;
      engine.At(until, [this] { loss = 0; });
      break;
    case FaultKind::doubling:
      doubling = 0.01 + static_cast<double>(sub % 30) / 100;
      engine.At(until, [this] { doubling = 0; });
      break;
    case FaultKind::delay:
      delay_max = (1 + sub % 40) * kSec;
      engine.At(until, [this] { delay_max = 20 * kMs; });
      break;
    case FaultKind::clock_rate:
      // Often as far off as it may be.
      host.SetClock(0.99 + static_cast<double>(sub / 2001 % 2 == 0 ? sub % 2001 : sub % 2 * 2000) /
                               100'000);
      break;
    case FaultKind::wall_jump: {
      See(Point::wall_jump);
      constexpr int64_t kDayMs = 86'400'000;
      wall_offset_ms += static_cast<int64_t>(sub % (2 * kDayMs)) - kDayMs;
      break;
    }
    case FaultKind::cancel_run:
    case FaultKind::steer_run: {
      if (image.runs.empty()) break;
      auto run = image.runs.begin();
      std::advance(run, static_cast<int64_t>(sub % image.runs.size()));
      ClientCall call{.kind = ClientCall::Kind::kSteerRun, .run = run->first};
      if (fault.kind == FaultKind::steer_run) {
        constexpr scheduler::Verb kVerbs[] = {scheduler::Verb::kPause,    scheduler::Verb::kResume,
                                              scheduler::Verb::kPause,    scheduler::Verb::kPrune,
                                              scheduler::Verb::kPriority, scheduler::Verb::kKill};
        call.verb = kVerbs[(sub >> 8) % std::size(kVerbs)];
        call.document = (sub >> 16) % 4;
      }
      IssueClient(call);
      break;
    }
    case FaultKind::cancel_sweep:
    case FaultKind::steer_sweep: {
      if (image.sweeps.empty()) break;
      if (fault.kind == FaultKind::cancel_sweep && sub % 3 == 0) {
        // While its runs are still being made.
        IssueClient({.kind = ClientCall::Kind::kSubmit, .document = (sub >> 8) % documents.size()});
        engine.At(engine.now() + sub % (2 * kSec), [this] {
          if (image.sweeps.empty()) return;
          IssueClient(
              {.kind = ClientCall::Kind::kSteerSweep, .sweep = image.sweeps.rbegin()->first});
        });
        break;
      }
      auto sweep = image.sweeps.begin();
      std::advance(sweep, static_cast<int64_t>(sub % image.sweeps.size()));
      ClientCall call{.kind = ClientCall::Kind::kSteerSweep, .sweep = sweep->first};
      if (fault.kind == FaultKind::steer_sweep) {
        constexpr scheduler::Verb kVerbs[] = {scheduler::Verb::kPause, scheduler::Verb::kResume,
                                              scheduler::Verb::kPriority, scheduler::Verb::kKill};
        call.verb = kVerbs[(sub >> 8) % std::size(kVerbs)];
        call.document = (sub >> 16) % 4;
      }
      IssueClient(call);
      break;
    }
    case FaultKind::steer_worker: {
      constexpr scheduler::WorkerVerb kVerbs[] = {
          scheduler::WorkerVerb::kDrain, scheduler::WorkerVerb::kUndrain,
          scheduler::WorkerVerb::kCordon, scheduler::WorkerVerb::kUncordon};
      ClientCall call{.kind = ClientCall::Kind::kSteerWorker, .worker = host.id};
      call.worker_verb = kVerbs[sub % std::size(kVerbs)];
      if ((sub >> 8) % 2 == 0) call.deadline_ms = 1000 + (sub >> 9) % 60'000;
      IssueClient(call);
      // Its agent dies before the deadline, and nobody is left to enforce it.
      if (call.deadline_ms > 0 && (sub >> 32) % 2 == 0) {
        engine.At(engine.now() + call.deadline_ms * kMs / 2, [this, &host] {
          if (!has_quiet) host.agent.Kill();
        });
        // On a host with too much to do no watchdog runs, and the disk is slow.
        const bool is_overloaded = (sub >> 33) % 2 == 0;
        const Nanos normal_at = engine.now() + (is_overloaded ? 2 : 1) * call.deadline_ms * kMs;
        for (Trainer* trainer : host.live) {
          if (!is_overloaded) break;
          trainer->starved_until = std::max(trainer->starved_until, normal_at);
          trainer->slow_sync_until = normal_at;
        }
        engine.At(normal_at + 10 * kSec, boot_agent);
      }
      break;
    }
    case FaultKind::credits_short:
      short_credits = 0.5;
      engine.At(until, [this] { short_credits = 0; });
      break;
    case FaultKind::submit:
      IssueClient({.kind = ClientCall::Kind::kSubmit, .document = sub % documents.size()});
      break;
    case FaultKind::request_id_again: {
      if (acked_calls.empty()) break;
      ClientCall call = acked_calls[sub % acked_calls.size()].call;
      if ((sub >> 8) % 2 == 0) call.document += 1;
      if (call.kind == ClientCall::Kind::kSubmit) call.document %= documents.size();
      IssueClient(call);
      break;
    }
    case FaultKind::kCount:
      break;
  }
}

// From here on nothing fails: what is down comes back, what is stopped goes on.
void World::EndFaults() {
  has_quiet = true;
  quiet_since_ = engine.now();
  armed.clear();
  loss = doubling = short_credits = 0;
  infra_rate = 0;
  drill_at_ = quiet_since_ + random.Between(10, 60) * kSec;
  coordinator.disk_full_until = 0;
  coordinator.fail_next_sync = false;
  while (coordinator.process.is_stopped()) coordinator.process.Continue(engine);
  CountCoordinator();
  coordinator_counts = coordinator.process.is_alive();
  if (!coordinator.process.is_alive()) coordinator.Boot();
  for (const auto& host : hosts) {
    host->cut_to_coordinator = host->cut_from_coordinator = 0;
    host->disk_full_until = host->sleep_at_launch = 0;
    host->fork_server.slow_until = 0;
    while (host->agent.process.is_stopped()) host->agent.process.Continue(engine);
    while (host->fork_server.process.is_stopped()) host->fork_server.process.Continue(engine);
    for (const auto& trainer : host->trainers) {
      trainer->starved_until = trainer->slow_sync_until = 0;
      while (trainer->process.is_stopped()) trainer->process.Continue(engine);
      trainer->Continue();
    }
    if (host->is_up && !host->agent.process.is_alive()) host->agent.Boot();
  }
}

// An operator takes back, now that all is well, what keeps runs from going on.
void World::Operate() {
  if (open_calls > 0 || !coordinator.process.is_alive()) return;
  for (const auto& [id, worker] : image.workers) {
    ClientCall call{.kind = ClientCall::Kind::kSteerWorker, .worker = id};
    if (worker.cordoned) {
      See(Point::worker_cordoned);
      call.worker_verb = scheduler::WorkerVerb::kUncordon;
      IssueClient(call);
    } else if (worker.admin == scheduler::AdminState::kDraining ||
               worker.admin == scheduler::AdminState::kDrained) {
      const bool is_drilled = id == drilled_ && engine.now() < drained_by_ + kMin;
      call.worker_verb = scheduler::WorkerVerb::kUndrain;
      if (!is_drilled) IssueClient(call);
    }
  }
  for (const auto& [id, sweep] : image.sweeps) {
    if (sweep.second.state != scheduler::SweepState::kPaused) continue;
    IssueClient(
        {.kind = ClientCall::Kind::kSteerSweep, .sweep = id, .verb = scheduler::Verb::kResume});
  }
  for (const auto& [id, run] : image.runs) {
    if (IsTerminal(run.second.state)) continue;
    if (run.second.state != scheduler::RunState::kPaused && !run.second.pause_req) continue;
    IssueClient({.kind = ClientCall::Kind::kSteerRun, .run = id, .verb = scheduler::Verb::kResume});
  }
}

// L5: one worker that is well and has work is drained with a deadline.
void World::Drill() {
  constexpr uint32_t kDrainMs = 30'000;
  if (drill_at_ == 0 || engine.now() < drill_at_ || open_calls > 0) return;
  if (engine.now() > drill_at_ + 10 * kMin) drill_at_ = 0;
  for (const auto& [epoch, attempt] : image.attempts) {
    if (attempt.status.state != scheduler::AttemptState::kRunning) continue;
    Host& host = HostOf(attempt.row.worker);
    const bool is_slow = std::ranges::any_of(
        host.live, [](const Trainer* trainer) { return trainer->slow_exit > 0; });
    if (is_slow || !host.is_up || !host.agent.is_registered()) continue;
    drill_at_ = 0;
    drilled_ = host.id;
    IssueClient({.kind = ClientCall::Kind::kSteerWorker,
                 .worker = host.id,
                 .worker_verb = scheduler::WorkerVerb::kDrain,
                 .deadline_ms = kDrainMs});
    return;
  }
}

void World::OnDrained(const ClientCall& call) {
  if (!has_quiet || call.kind != ClientCall::Kind::kSteerWorker || call.worker != drilled_ ||
      call.worker_verb != scheduler::WorkerVerb::kDrain || drained_by_ != 0) {
    return;
  }
  // The deadline, K, and two heartbeats.
  drained_by_ = engine.now() + call.deadline_ms * kMs + 20 * kSec;
  engine.At(drained_by_, [this] {
    for (const auto& [epoch, attempt] : image.attempts) {
      if (attempt.row.worker == drilled_ && !IsTerminal(attempt.member.state)) {
        Fail("L5", StrCat("attempt ", epoch.value, " is ", Name(attempt.member.state),
                          " after the deadline of its worker's drain"));
      }
    }
    See(Point::emptied_by_deadline);
  });
}

bool World::IsSettled() {
  if (!coordinator.process.is_alive() || !coordinator.state || open_calls > 0) return false;
  for (const auto& [id, run] : image.runs) {
    if (!IsTerminal(run.second.state) && run.second.state != scheduler::RunState::kPaused) {
      return false;
    }
  }
  for (const auto& [id, sweep] : image.sweeps) {
    if (sweep.second.state == scheduler::SweepState::kActive &&
        sweep.second.proposed < sweep.first.runs) {
      return false;
    }
  }
  for (const auto& host : hosts) {
    if (!host->agent.state || !host->agent.IsSpooled() || !host->agent.state->IsIdle()) {
      return false;
    }
  }
  return true;
}

uint64_t World::StateHash() const {
  uint64_t hash = Mix64(engine.now(), random.state());
  hash = Mix64(hash, image.tail);
  hash = Mix64(hash, image.last_epoch);
  for (const auto& [epoch, attempt] : image.attempts) {
    hash = Mix64(hash, epoch.value ^ attempt.lines.size() << 32 ^
                           static_cast<uint64_t>(attempt.status.state) << 56);
  }
  for (const auto& [id, run] : image.runs) {
    hash = Mix64(hash, id.value.low ^ static_cast<uint64_t>(run.second.state));
  }
  if (coordinator.state) hash = Mix64(hash, coordinator.state->rev_n);
  for (const auto& host : hosts) hash = Mix64(hash, host->dirs.size() + host->incarnation);
  return hash;
}

Outcome World::Run() {
  Setup();
  uint64_t next_check = 500;
  const auto advance = [&](Nanos until) {
    while (!has_failed() && engine.Step(until)) {
      if (engine.events() % 16 == 0) CheckSteps();
      if (engine.events() % kHashEvery == 0) outcome.hashes.push_back(StateHash());
      if (engine.events() >= next_check) {
        next_check += 500;
        CheckAll();
      }
    }
  };
  advance(fault_phase_);
  if (!has_failed()) EndFaults();
  const Nanos end = engine.now() + FindMix(options.mix)->settle_max;
  Nanos settled_for = 0;
  while (!has_failed() && engine.now() < end && settled_for < 2 * kMin) {
    const Nanos slice = 20 * kSec;
    advance(engine.now() + slice);
    if (has_failed()) break;
    CheckLiveness();
    Drill();
    Operate();
    settled_for = IsSettled() ? settled_for + slice : 0;
  }
  if (!has_failed()) CheckEnd();
  outcome.events = engine.events();
  outcome.virtual_seconds = engine.now() / kSec;
  outcome.hashes.push_back(StateHash());
  return std::move(outcome);
}

}  // namespace switchyard::simulation
