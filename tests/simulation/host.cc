// Hosts, their trainers and fork servers: modelled processes with the contracts of
// docs/attempt-directory.md.
#include <algorithm>
#include <cmath>

#include "tests/simulation/world.h"

namespace switchyard::simulation {
namespace {

constexpr int kCodeStopped = 75;
constexpr int kCodeFenced = 76;
constexpr Nanos kWatchdogPeriod = 250 * kMs;
constexpr Nanos kSyncPeriod = kSec;

}  // namespace

// ---------------------------------------------------------------- host

Host::Host(World& world, uint32_t number)
    : index(number), agent(world, *this), fork_server(world, *this), w_(world) {
  id = {Uuid::V4(0x1000 + number, 0x77)};
  store = StrCat("store", number);
}

Nanos Host::Boottime() const {
  return clock_base_ +
         static_cast<Nanos>(static_cast<double>(w_.engine.now() - clock_since_) * rate_);
}

Nanos Host::TimeOf(Nanos boottime) const {
  const Nanos now = Boottime();
  if (boottime <= now) return w_.engine.now();
  const double ahead = static_cast<double>(boottime - now) / rate_;
  return ahead > 1e18 ? UINT64_MAX / 2 : w_.engine.now() + static_cast<Nanos>(std::ceil(ahead)) + 1;
}

void Host::SetClock(double rate) {
  clock_base_ = Boottime();
  clock_since_ = w_.engine.now();
  rate_ = rate;
  for (Trainer* trainer : live) trainer->LeaseChanged();
}

// A frozen machine, or one that sleeps: its clock counts on.
void Host::Pause(Nanos duration) {
  std::vector<Process*> stopped = {&agent.process, &fork_server.process};
  std::vector<Trainer*> frozen;
  for (Trainer* trainer : live) {
    if (!trainer->process.is_alive()) continue;
    stopped.push_back(&trainer->process);
    frozen.push_back(trainer);
  }
  for (Process* process : stopped) process->Stop();
  w_.engine.At(w_.engine.now() + duration, [this, stopped, frozen] {
    // The watchdog thread and the training thread wake together.
    for (Trainer* trainer : frozen) {
      if (trainer->process.is_alive() && FindDir(trainer->key()) != nullptr &&
          FindDir(trainer->key())->lease.IsPast(Boottime())) {
        w_.See(Point::suspended_past_lease);
      }
    }
    for (Process* process : stopped) process->Continue(w_.engine);
    for (Trainer* trainer : frozen) trainer->Continue();
  });
}

void Host::Crash(Nanos down) {
  if (!is_up) return;
  is_up = false;
  w_.See(Point::host_crashed);
  w_.Trace("host ", index, " crashes");
  fork_server.HostCrashed();
  agent.HostCrashed();
  for (Trainer* trainer : live) trainer->VanishWithHost();
  live.clear();
  foreign.clear();
  for (auto it = dirs.begin(); it != dirs.end();) {
    AttemptDir& dir = it->second;
    dir.lock_holder = nullptr;
    const uint64_t had = dir.lines.size();
    const uint64_t kept = std::max(dir.deleted, dir.synced + w_.random.Below(had - dir.synced + 1));
    if (kept < had) {
      dir.lines.resize(kept);
      dir.is_torn = w_.random.Chance(0.5);
      dir.has_lost_lines = true;
      w_.See(Point::lines_lost_in_host_crash);
    } else if (had > dir.synced) {
      w_.See(Point::unsynced_lines_survived);
    }
    dir.synced = dir.lines.size();
    // Written by rename, without a sync.
    if (dir.exit.has_value() && w_.random.Chance(0.3)) {
      dir.exit.reset();
      w_.See(Point::exit_record_lost);
    }
    if (dir.pid_file.has_value() && dir.synced == 0 && w_.random.Chance(0.3)) dir.pid_file.reset();
    // Nothing of it was ever synced.
    if (dir.synced == 0 && w_.random.Chance(0.3) && !dir.is_durable) {
      w_.See(Point::directory_lost);
      dir.has_lost_lines = true;
      it = dirs.erase(it);
    } else {
      dir.is_durable = true;
      ++it;
    }
  }
  w_.engine.At(w_.engine.now() + down, [this] { BootUp(); });
}

void Host::BootUp() {
  is_up = true;
  ++boot;
  // Counts anew from the start of the machine.
  clock_base_ = 10 * kSec;
  clock_since_ = w_.engine.now();
  next_pid = 100;
  agent.Boot();
}

Trainer* Host::FindTrainer(agent::AttemptKey key) {
  for (auto it = live.rbegin(); it != live.rend(); ++it) {
    if ((*it)->key() == key) return *it;
  }
  return nullptr;
}

Trainer* Host::FindProcess(uint32_t pid) {
  for (auto it = live.rbegin(); it != live.rend(); ++it) {
    if ((*it)->pid() == pid) return *it;
  }
  return nullptr;
}

AttemptDir* Host::FindDir(agent::AttemptKey key) {
  const auto it = dirs.find(key);
  return it == dirs.end() ? nullptr : &it->second;
}

// ---------------------------------------------------------------- fork server

void ForkServer::Start() {
  ids_.clear();
  process.Start();
}

void ForkServer::Kill() { process.Kill(); }

void ForkServer::KillWithChildren() {
  process.Kill();
  if (!children_.empty()) w_.See(Point::child_killed_before_exec);
  children_.clear();
}

void ForkServer::HostCrashed() {
  process.Kill();
  children_.clear();
  ids_.clear();
}

void ForkServer::Spawn(agent::AttemptKey key, uint64_t id) {
  process.Post(w_.engine, w_.engine.now() + w_.random.Below(kMs), [this, key, id] {
    const uint64_t child = next_child_++;
    children_.insert(child);
    const bool is_slow = w_.engine.now() < slow_until;
    const Nanos takes = is_slow ? w_.random.Below(12 * kSec) : w_.random.Below(30 * kMs);
    // The child runs on without its parent.
    w_.engine.At(w_.engine.now() + takes,
                 [this, key, id, child, life = process.life()] { Child(key, id, child, life); });
  });
}

void ForkServer::Child(agent::AttemptKey key, uint64_t id, uint64_t child, uint64_t life) {
  if (!children_.contains(child)) {
    w_.See(Point::late_spawn_prevented);
    return;
  }
  const auto tell = [this, id, life](uint32_t pid, const std::string& error) {
    if (!process.is_alive() || process.life() != life) return;
    if (pid != 0) ids_[pid] = id;
    h_.agent.process.Post(w_.engine, w_.engine.now() + w_.random.Below(2 * kMs),
                          [this, id, pid, error] { h_.agent.OnSpawned(id, pid, error); });
  };
  AttemptDir* dir = h_.FindDir(key);
  std::string failed;
  if (dir == nullptr) {
    failed = "cannot enter the attempt directory";
  } else if (!SWITCHYARD_GUARD(X18, dir->lock_holder == nullptr)) {
    failed = "attempt.lock is held";
  } else if (!SWITCHYARD_GUARD(X18, !dir->pid_file.has_value())) {
    failed = "cannot write pid.json: it exists";
  }
  if (!failed.empty()) {
    children_.erase(child);
    tell(0, failed);
    return;
  }
  const uint32_t pid = h_.next_pid++;
  const uint64_t ticks = w_.engine.now() / (10 * kMs);
  h_.trainers.push_back(std::make_unique<Trainer>(w_, h_, key, pid, ticks));
  Trainer* trainer = h_.trainers.back().get();
  h_.live.push_back(trainer);
  const auto leave_proof = [trainer, pid, ticks, this, key] {
    AttemptDir* dir = h_.FindDir(key);
    if (dir == nullptr || trainer->is_gone) return;
    dir->lock_holder = trainer;
    dir->pid_file = PidFile{.pid = pid, .start_ticks = ticks, .boot = h_.boot};
  };
  if (SWITCHYARD_GUARD(X18, false)) {
    w_.engine.At(w_.engine.now() + kSec, leave_proof);
  } else {
    leave_proof();
  }
  // Executed: the inherited lock of the fork server is let go.
  children_.erase(child);
  trainer->Exec();
  tell(pid, "");
}

void ForkServer::TrainerEnded(const Trainer& trainer, agent::WaitStatus wait) {
  if (!process.is_alive()) return;
  const auto it = ids_.find(trainer.pid());
  if (it == ids_.end()) return;
  const uint64_t id = it->second;
  ids_.erase(it);
  process.Post(w_.engine, w_.engine.now() + w_.random.Below(kMs), [this, id, wait] {
    h_.agent.process.Post(w_.engine, w_.engine.now() + w_.random.Below(2 * kMs),
                          [this, id, wait] { h_.agent.OnExited(id, wait); });
  });
}

// ---------------------------------------------------------------- trainer

AttemptDir* Trainer::Dir() { return h_.FindDir(key_); }

void Trainer::Exec() {
  process.Start();
  World::AttemptFacts& facts = w_.attempt_facts[Epoch{key_.epoch}];
  if (++facts.spawns > 1) {
    w_.Fail("S1", StrCat("attempt ", key_.epoch, " was executed ", facts.spawns, " times"));
  }
  w_.Trace("host ", h_.index, " executes ", key_.epoch, " pid ", pid_);
  if (const auto known = h_.record_log.find(key_);
      known != h_.record_log.end() && !known->second.record.is_live()) {
    w_.Fail("S1",
            StrCat("attempt ", key_.epoch, " is executed after its record says it has ended"));
  }
  for (const Trainer* other : h_.live) {
    if (other == this) continue;
    const agent::Record* mine = h_.agent.state ? h_.agent.state->Find(key_) : nullptr;
    const auto theirs = h_.record_log.find(other->key());
    if (mine == nullptr || theirs == h_.record_log.end()) continue;
    for (const uint32_t slot : mine->slots) {
      if (std::ranges::count(theirs->second.record.slots, slot) > 0) {
        w_.Fail("S17", StrCat("slot ", slot, " of host ", h_.index, " holds ", other->key().epoch,
                              " and ", key_.epoch));
      }
    }
  }
  process.Post(w_.engine, w_.engine.now() + w_.random.Between(50 * kMs, 2 * kSec),
               [this] { Begin(); });
}

bool Trainer::MustBeGone() {
  if (SWITCHYARD_GUARD(X15, false)) return false;
  const AttemptDir* dir = Dir();
  return dir != nullptr && dir->lease.IsPast(h_.Boottime());
}

void Trainer::LeaseChanged() { ArmWatchdog(); }
void Trainer::Continue() {
  awake_since = w_.engine.now();
  if (process.is_alive()) ArmWatchdog();
}

// The poll that will notice the deadline, instead of every poll before it.
void Trainer::ArmWatchdog() {
  const AttemptDir* dir = Dir();
  if (dir == nullptr || !process.is_alive()) return;
  const Nanos deadline =
      std::min(dir->lease.deadline_boottime_ns, dir->lease.stop_deadline_boottime_ns);
  if (deadline == events::kNever) return;
  const Nanos at =
      std::max(h_.TimeOf(deadline), starved_until) + (pid_ * 37 * kMs) % kWatchdogPeriod;
  // An earlier look will arm a later one.
  if (watchdog_at_ > w_.engine.now() && watchdog_at_ <= at) return;
  if (at > w_.engine.now() + 48 * 60 * kMin) return;
  watchdog_at_ = at;
  process.Post(w_.engine, at, [this, at] {
    if (watchdog_at_ == at) Watchdog();
  });
}

void Trainer::Watchdog() {
  watchdog_at_ = 0;
  if (!MustBeGone()) return ArmWatchdog();
  if (w_.engine.now() < starved_until) return ArmWatchdog();
  if (SWITCHYARD_GUARD(X07, false) || SWITCHYARD_GUARD(X14, false)) return;
  w_.See(h_.Boottime() > Dir()->lease.deadline_boottime_ns ? Point::watchdog_exit
                                                           : Point::stop_deadline_exit);
  Exit(kCodeFenced, 0);
}

void Trainer::Emit(LineKind kind, uint64_t step, uint64_t value) {
  AttemptDir* dir = Dir();
  if (dir == nullptr) return;
  if (w_.engine.now() < h_.disk_full_until && kind == LineKind::kMetric) {
    // Before a number is given: metrics never end a trainer.
    w_.See(Point::disk_full_lines_dropped);
  }
  const uint64_t seq = ++emitted_;
  Line line{.kind = kind, .step = step, .value = value};
  if (kind == LineKind::kMetric || kind == LineKind::kLog) {
    line.value = w_.LineValue(Epoch{key_.epoch}, seq);
  }
  dir->lines.push_back(line);
  dir->progress.has_line = true;
  if (kind == LineKind::kMetric) {
    dir->progress.has_step = true;
    dir->progress.step = step;
    dir->progress.ms = w_.engine.now() / kMs;
  }
  w_.attempt_facts[Epoch{key_.epoch}].emitted.push_back(line);
  h_.agent.FileGrown(key_);
  if (is_sync_planned_) return;
  is_sync_planned_ = true;
  process.Post(w_.engine, w_.engine.now() + kSyncPeriod, [this] {
    is_sync_planned_ = false;
    Sync();
  });
}

void Trainer::Sync() {
  if (AttemptDir* dir = Dir()) dir->synced = dir->lines.size();
}

void Trainer::Begin() {
  AttemptDir* dir = Dir();
  if (dir == nullptr) return Exit(70, 0);
  ArmWatchdog();
  if (MustBeGone()) return Exit(kCodeFenced, 0);
  const Result<Uuid> run = Uuid::Parse(dir->run_id);
  run_ = {*run};
  steps_ = w_.run_steps[run_];
  if (w_.infra_rate > 0 && w_.random.Chance(w_.infra_rate)) {
    Emit(LineKind::kHello, 0, 0);
    return End(69, false);
  }
  Emit(LineKind::kHello, 0, 0);
  ForgetUnrecorded(dir->resume_path);
  if (!dir->resume_path.empty()) {
    // The assigned checkpoint, else an older one that is whole, else from the start.
    const auto& files = w_.stores[h_.store];
    const auto assigned = files.find(dir->resume_path);
    const CheckpointFile* found = nullptr;
    if (assigned != files.end() && !assigned->second.is_damaged) {
      found = &assigned->second;
      w_.See(Point::resumed_from_checkpoint);
    } else {
      const uint64_t step_max =
          ParseUint64(std::string_view(dir->resume_path).substr(dir->resume_path.find('-') + 1))
              .value_or(0);
      for (const auto& [path, file] : files) {
        if (file.run != run_ || file.is_damaged || file.step > step_max) continue;
        if (path == dir->resume_path || file.epoch.value >= key_.epoch) continue;
        if (found == nullptr ||
            std::pair(found->epoch, found->step) < std::pair(file.epoch, file.step)) {
          found = &file;
        }
      }
      if (found != nullptr) w_.See(Point::fell_back_to_older_checkpoint);
    }
    if (found != nullptr) {
      step_ = found->step;
      Emit(LineKind::kResume, found->step, found->epoch.value);
    }
  }
  step_time_ = w_.random.Between(kSec, 12 * kSec);
  Step();
}

// As the trainer's loop does: earlier attempts' checkpoints behind the assigned one.
void Trainer::ForgetUnrecorded(const std::string& assigned) {
  auto& files = w_.stores[h_.store];
  std::pair<Epoch, uint64_t> newest;
  if (const auto found = files.find(assigned); found != files.end()) {
    newest = {found->second.epoch, found->second.step};
  } else if (!assigned.empty()) {
    return;
  }
  std::erase_if(files, [&](const auto& entry) {
    const CheckpointFile& file = entry.second;
    return file.run == run_ && file.epoch.value < key_.epoch &&
           std::pair(file.epoch, file.step) > newest;
  });
}

void Trainer::Step() {
  if (is_ending_) return;
  const AttemptDir* dir = Dir();
  if (dir == nullptr) return Exit(70, 0);
  if (!SWITCHYARD_GUARD(X07, SWITCHYARD_GUARD(X09, !MustBeGone()))) {
    w_.See(Point::step_check_exit);
    return Exit(kCodeFenced, 0);
  }
  // The oracle's own fence: a step may begin only within the lease.
  if (dir->lease.deadline_boottime_ns + 2 * kWatchdogPeriod < h_.Boottime()) {
    w_.Fail("S8",
            StrCat("attempt ", key_.epoch, " begins a step ",
                   (h_.Boottime() - dir->lease.deadline_boottime_ns) / kMs, " ms past its lease"));
    return;
  }
  if (fail_with.has_value()) {
    const int code = *fail_with;
    fail_with.reset();
    if (code < 0) return Exit(0, -code);
    return End(code, false);
  }
  if (term_seen_ || dir->lease.intent >= events::LeaseIntent::kDrain) {
    return Stop(dir->lease.intent != events::LeaseIntent::kKill);
  }
  if (step_ >= steps_) {
    return Checkpoint([this] { End(0, true); });
  }
  is_stepping_ = true;
  if (is_hung) return;
  process.Post(w_.engine, w_.engine.now() + step_time_ / 2 + w_.random.Below(step_time_),
               [this] { FinishStep(); });
}

void Trainer::FinishStep() {
  is_stepping_ = false;
  if (is_hung) {
    is_stepping_ = true;
    return;
  }
  ++step_;
  Emit(LineKind::kMetric, step_, 0);
  if (step_ % 3 == 0) Emit(LineKind::kLog, step_, 0);
  if (step_ % 7 == 0 && step_ < steps_) {
    // On a thread of its own: training goes on.
    const uint64_t step = step_;
    process.Post(w_.engine, w_.engine.now() + w_.random.Below(4 * kSec), [this, step] {
      if (is_ending_ || MustBeGone()) return;
      const std::string path = StrCat(key_.epoch, "-", step);
      w_.stores[h_.store][path] = {.run = run_, .epoch = {key_.epoch}, .step = step};
      Emit(LineKind::kCheckpoint, step, 0);
    });
  }
  Step();
}

void Trainer::Checkpoint(Work then) {
  is_ending_ = true;
  if (step_ == 0) return then();
  const std::string path = StrCat(key_.epoch, "-", step_);
  if (w_.stores[h_.store].contains(path)) return then();
  process.Post(w_.engine, w_.engine.now() + w_.random.Below(3 * kSec), [this, path, then] {
    if (MustBeGone()) return Exit(kCodeFenced, 0);
    w_.stores[h_.store][path] = {.run = run_, .epoch = {key_.epoch}, .step = step_};
    Emit(LineKind::kCheckpoint, step_, 0);
    then();
  });
}

void Trainer::Stop(bool with_checkpoint) {
  is_ending_ = true;
  if (!with_checkpoint) return End(kCodeStopped, false);
  Checkpoint([this] { End(kCodeStopped, false); });
}

// Drain the queue, sync, check again, exit.json, out.
void Trainer::End(int code, bool complete) {
  is_ending_ = true;
  const auto write_record = [this, code, complete] {
    AttemptDir* dir = Dir();
    if (dir == nullptr) return;
    dir->exit = ExitFile{.code = code, .complete = complete, .final_step = step_};
    w_.attempt_facts[Epoch{key_.epoch}].exit = dir->exit;
  };
  const bool record_first = SWITCHYARD_GUARD(X19, false);
  if (record_first) write_record();
  // A disk may take its time to sync.
  Nanos sync_max = w_.random.Chance(0.2) ? 3 * kSec : 100 * kMs;
  if (w_.engine.now() < slow_sync_until) sync_max = slow_sync_until - w_.engine.now();
  process.Post(w_.engine, w_.engine.now() + w_.random.Below(sync_max),
               [this, code, record_first, write_record] {
                 Emit(LineKind::kEnd, step_, static_cast<uint64_t>(code));
                 Sync();
                 if (!SWITCHYARD_GUARD(X07, !MustBeGone())) {
                   w_.See(Point::last_check_exit);
                   return Exit(kCodeFenced, 0);
                 }
                 if (!record_first) write_record();
                 process.Post(w_.engine, w_.engine.now() + w_.random.Below(20 * kMs),
                              [this, code] { Exit(code, 0); });
               });
}

void Trainer::Signal(int signal) {
  if (!process.is_alive()) return;
  if (signal == kSigKill) return Exit(0, kSigKill);
  if (signal == kSigTerm) {
    process.Post(w_.engine, w_.engine.now(), [this] { term_seen_ = true; });
  }
}

// The threads stop at once; the process may take its time to be gone.
void Trainer::Exit(int code, int signal) {
  if (!process.is_alive()) return;
  process.Kill();
  is_stepping_ = false;
  w_.Trace("trainer ", key_.epoch, " exits, code ", code, " signal ", signal);
  const Nanos takes = w_.random.Below(5 * kMs) + slow_exit;
  if (slow_exit > 0) w_.See(Point::slow_exit);
  w_.engine.At(w_.engine.now() + takes, [this, code, signal, boot = h_.boot] {
    if (is_gone || h_.boot != boot) return;
    is_gone = true;
    std::erase(h_.live, this);
    if (AttemptDir* dir = Dir(); dir != nullptr && dir->lock_holder == this) {
      dir->lock_holder = nullptr;
      // A process that was killed in the middle of a line.
      if (signal != 0 && w_.random.Chance(0.3)) dir->is_torn = true;
    }
    h_.fork_server.TrainerEnded(*this,
                                {.signalled = signal != 0, .value = signal != 0 ? signal : code});
    h_.agent.process.Post(w_.engine, w_.engine.now() + w_.random.Below(2 * kMs),
                          [this] { h_.agent.OnAdoptedGone(key_); });
  });
}

void Trainer::VanishWithHost() {
  process.Kill();
  is_gone = true;
  is_stepping_ = false;
}

}  // namespace switchyard::simulation
