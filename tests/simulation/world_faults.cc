// How faults strike the cluster, and how they end.
#include <algorithm>

#include "tests/simulation/world.h"

namespace switchyard::simulation {

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
  // What no sentinel has witnessed was told to nobody: such an epoch may be given again.
  if (image.tail >= sentinel) last_assigned = {image.last_epoch};
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

}  // namespace switchyard::simulation
