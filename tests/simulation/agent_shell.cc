// The agent's shell around the production core: its life, recovery, processes, and what the core
// wants done. As worker/agent/agent.cc does it, on a simulated host.
#include <algorithm>
#include <utility>

#include "server/scheduler/lease_policy.h"
#include "tests/simulation/world.h"

namespace switchyard::simulation {

using agent::AttemptEnd;
using agent::AttemptKey;
using agent::Record;
using agent::RecordState;

namespace {

constexpr Nanos kLockWait = 5 * kSec;

}  // namespace

// ---------------------------------------------------------------- life

void AgentShell::Boot() {
  if (process.is_alive() || !h_.is_up) return;
  process.Start();
  w_.Trace("agent ", h_.index, " boots");
  state.reset();
  attempts_.clear();
  spawns_.clear();
  pending_ = {};
  registered_ = registering_ = false;
  ++registration_;
  in_flight_ = 0;
  hb_seq_ = 0;
  nonce_.clear();
  hb_sent_ = hb_due_ = register_at_ = wake_at_ = housekeeping_at_ = 0;
  hb_wanted_ = false;
  register_failures_ = 0;
  ++h_.incarnation;
  World::WorkerFacts& facts = w_.worker_facts[h_.id];
  facts.echoed = 0;
  // The fork server's lock: while an older one, or a child that has not executed, holds it, wait;
  // then end them.
  const auto start = [this] {
    h_.fork_server.Start();
    state.emplace(agent::AgentState::Options{.slots = h_.slots, .incarnation = h_.incarnation});
    Recover();
    Turnaround();
  };
  const auto take = [this, start] {
    if (h_.fork_server.HoldsLock()) h_.fork_server.KillWithChildren();
    start();
  };
  if (SWITCHYARD_GUARD(X17, false)) {
    h_.fork_server.Kill();
    process.Post(w_.engine, w_.engine.now() + 5 * kMs, start);
  } else if (h_.fork_server.HoldsLock()) {
    w_.See(Point::fork_server_waited_for);
    const auto retry = std::make_shared<std::function<void(Nanos)>>();
    const std::weak_ptr<std::function<void(Nanos)>> weak = retry;
    *retry = [this, start, take, weak](Nanos waited) {
      if (!h_.fork_server.HoldsLock()) return start();
      if (waited >= kLockWait) return take();
      const auto self = weak.lock();
      process.Post(w_.engine, w_.engine.now() + 500 * kMs,
                   [self, waited] { (*self)(waited + 500 * kMs); });
    };
    (*retry)(0);
  } else {
    process.Post(w_.engine, w_.engine.now() + 5 * kMs, start);
  }
}

void AgentShell::Kill() {
  if (!process.is_alive()) return;
  w_.See(Point::agent_killed);
  w_.Trace("agent ", h_.index, " killed");
  process.Kill();
  state.reset();
  // The fork server follows its agent, a moment later.
  const uint64_t life = h_.fork_server.process.life();
  w_.engine.At(w_.engine.now() + w_.random.Below(20 * kMs), [this, life] {
    if (h_.fork_server.process.life() == life) h_.fork_server.Kill();
  });
}

void AgentShell::HostCrashed() {
  process.Kill();
  state.reset();
}

// What an earlier agent left: every directory becomes a record again, and none is ever launched.
void AgentShell::Recover() {
  std::vector<AttemptKey> keys;
  for (const auto& [key, dir] : h_.dirs) keys.push_back(key);
  for (const AttemptKey key : keys) {
    const auto found = h_.record_log.find(key);
    if (found != h_.record_log.end()) {
      RecoverOne(key, found->second);
      continue;
    }
    const AttemptDir& dir = h_.dirs.at(key);
    StoredRecord stored{.record = {}, .boot = h_.boot};
    stored.record.key = key;
    stored.record.run_id = dir.run_id;
    stored.record.ordinal = dir.ordinal;
    RecoverOne(key, stored);
  }
  // Launched once, and the directory is lost with the host.
  for (const auto& [key, stored] : h_.record_log) {
    if (!stored.record.is_live() || h_.dirs.contains(key)) continue;
    AttemptDir dir{.run_id = stored.record.run_id,
                   .ordinal = stored.record.ordinal,
                   .resume_path = {},
                   .has_lost_lines = true,
                   .is_durable = true};
    dir.lease.epoch = key.epoch;
    h_.dirs.try_emplace(key, std::move(dir));
    RecoverOne(key, StoredRecord(stored));
  }
  // Compaction: tombstones go.
  std::erase_if(h_.record_log, [&](const auto& entry) { return !h_.dirs.contains(entry.first); });
}

void AgentShell::RecoverOne(AttemptKey key, StoredRecord stored) {
  Record record = stored.record;
  AttemptDir& dir = h_.dirs.at(key);
  Attempt& attempt = AttemptOf(key);
  attempt.run_id = record.run_id;
  attempt.ordinal = record.ordinal;
  if (record.state == RecordState::kRefused) record.spooled = attempt.spooled = true;
  if (!record.is_live()) {
    attempt.ended = true;
    dir.is_torn = false;
    state->Restore(std::move(record));
    return;
  }
  if (SWITCHYARD_GUARD(X21, false)) {
    dir.lease.deadline_boottime_ns = h_.Boottime() + 600 * kSec;
  }
  // A start is no contact.
  if (const World::AttemptFacts& facts = w_.attempt_facts[Epoch{key.epoch}];
      stored.boot == h_.boot && dir.lease.deadline_boottime_ns != facts.lease_deadline) {
    w_.Fail("S27", StrCat("the lease of ", key.epoch, " moves over a restart of its agent"));
  }
  record.deadline_ns = dir.lease.deadline_boottime_ns;
  record.intent = static_cast<agent::Intent>(dir.lease.intent);
  if (dir.lease.stop_deadline_boottime_ns != events::kNever) {
    record.stop_at_ns = dir.lease.stop_deadline_boottime_ns;
  }
  if (dir.pid_file.has_value()) {
    const PidFile& file = *dir.pid_file;
    attempt.pid = file.pid;
    Trainer* trainer = h_.FindProcess(file.pid);
    const bool is_foreign = trainer == nullptr && h_.foreign.contains(file.pid);
    const bool is_same =
        file.boot == h_.boot &&
        ((trainer != nullptr && trainer->start_ticks() == file.start_ticks) ||
         (is_foreign && SWITCHYARD_GUARD(X16, h_.foreign.at(file.pid) == file.start_ticks)));
    if (is_foreign && !is_same) w_.See(Point::adoption_refused_start_time);
    if (is_same) {
      attempt.is_adopted = true;
      record.state = RecordState::kRunning;
      w_.See(Point::trainer_adopted);
      state->Restore(std::move(record));
      return;
    }
  }
  if (SWITCHYARD_GUARD(X05, false)) {
    dir.pid_file.reset();
    const uint64_t id = next_spawn_++;
    spawns_[id] = key;
    record.state = RecordState::kLaunching;
    state->Restore(std::move(record));
    h_.fork_server.Spawn(key, id);
    return;
  }
  const bool stop_requested = record.intent > agent::Intent::kRun;
  record.state = RecordState::kExited;
  if (!dir.pid_file.has_value()) {
    w_.See(Point::never_executed);
    dir.is_torn = false;
    record.end = {.end_class = "infra", .evidence = "agent", .reason = "never executed"};
  } else {
    w_.See(Point::exit_found_at_agent_start);
    record.end = Evaluate(key, stored.boot, std::nullopt, stop_requested);
  }
  attempt.ended = true;
  h_.record_log[key] = {.record = record, .boot = h_.boot};
  state->Restore(std::move(record));
}

AttemptEnd AgentShell::Evaluate(AttemptKey key, uint64_t launch_boot,
                                std::optional<agent::WaitStatus> wait, bool stop_requested) {
  AttemptDir& dir = h_.dirs.at(key);
  if (dir.is_torn) w_.See(Point::torn_tail_cut);
  dir.is_torn = false;
  // Before the record says how many lines there are.
  dir.synced = dir.lines.size();
  dir.is_durable = true;
  const Record* known = state->Find(key);
  agent::EndFacts facts{.agent_reason = known == nullptr ? "" : known->agent_reason,
                        .host_restarted = launch_boot != h_.boot,
                        .wait = wait,
                        .stop_requested = stop_requested || AttemptOf(key).killed,
                        .last_seq = dir.lines.size()};
  if (dir.exit.has_value()) {
    facts.record = agent::FoundRecord{.code = dir.exit->code,
                                      .end_class = agent::ClassOfExitCode(dir.exit->code),
                                      .complete = dir.exit->complete,
                                      .final_step = dir.exit->final_step,
                                      .reason = {}};
  } else {
    w_.See(Point::missing_exit_record);
  }
  facts.lease_past = dir.lease.IsPast(h_.Boottime());
  AttemptEnd end = agent::JudgeEnd(facts);
  if (end.end_class == "fenced") {
    w_.See(end.exit_code == 76 ? Point::fence_by_exit_code : Point::fence_inferred);
  }
  return end;
}

// ---------------------------------------------------------------- processes

void AgentShell::OnSpawned(uint64_t id, uint32_t pid, const std::string& error) {
  if (!state) return;
  const auto it = spawns_.find(id);
  if (it == spawns_.end()) return;
  const AttemptKey key = it->second;
  Attempt& attempt = AttemptOf(key);
  if (error.empty()) {
    attempt.pid = pid;
    attempt.flush_at = w_.engine.now() + kFlush;
    Queue(state->OnSpawned(key, "", h_.Boottime()));
  } else {
    spawns_.erase(it);
    attempt.ended = attempt.spooled = true;
    Queue(state->OnSpawned(key, error, h_.Boottime()));
  }
  Turnaround();
}

void AgentShell::OnExited(uint64_t id, agent::WaitStatus wait) {
  if (!state) return;
  const auto it = spawns_.find(id);
  if (it == spawns_.end()) return;
  const AttemptKey key = it->second;
  spawns_.erase(it);
  OnProcessGone(key, wait);
  Turnaround();
}

void AgentShell::OnAdoptedGone(AttemptKey key) {
  if (!state) return;
  const auto it = attempts_.find(key);
  if (it == attempts_.end() || !it->second.is_adopted || it->second.ended) return;
  w_.See(Point::exit_read_after_adoption);
  OnProcessGone(key, std::nullopt);
  Turnaround();
}

void AgentShell::OnProcessGone(AttemptKey key, std::optional<agent::WaitStatus> wait) {
  Attempt& attempt = AttemptOf(key);
  const Record* record = state->Find(key);
  if (record == nullptr || attempt.ended) return;
  attempt.ended = true;
  AttemptEnd end = Evaluate(key, h_.boot, wait, record->intent > agent::Intent::kRun);
  Queue(state->OnEnded(key, std::move(end), h_.Boottime()));
  SendEvents(key);
  CheckSpooled(key);
}

// ---------------------------------------------------------------- the loop

void AgentShell::Queue(agent::Actions actions) { pending_.Append(std::move(actions)); }

bool AgentShell::Execute() {
  agent::Actions actions = std::exchange(pending_, {});
  if (w_.CrashesAt(Site::kAgentBeforeRecords, this)) {
    w_.See(Point::agent_crash_before_records);
    return false;
  }
  for (const agent::Actions::Prepare& prepare : actions.prepare) {
    const Record* record = state->Find(prepare.key);
    if (record == nullptr) continue;
    Attempt& attempt = AttemptOf(prepare.key);
    attempt.run_id = record->run_id;
    attempt.ordinal = record->ordinal;
    AttemptDir dir{.run_id = record->run_id, .ordinal = record->ordinal, .resume_path = {}};
    const auto row = w_.image.attempts.find(Epoch{prepare.key.epoch});
    if (row != w_.image.attempts.end()) dir.resume_path = row->second.row.resume_path;
    dir.lease.epoch = prepare.key.epoch;
    dir.lease.deadline_boottime_ns = prepare.deadline_ns;
    w_.attempt_facts[Epoch{prepare.key.epoch}].lease_deadline = prepare.deadline_ns;
    h_.dirs.try_emplace(prepare.key, std::move(dir));
  }
  for (const Record& record : actions.records) {
    h_.record_log[record.key] = {.record = record, .boot = h_.boot};
    w_.attempt_facts[Epoch{record.key.epoch}].has_record = true;
    // Never executed: there is nothing to send.
    const Record* known = state->Find(record.key);
    const auto attempt = attempts_.find(record.key);
    if (record.state == RecordState::kExited && known != nullptr && known->spooled &&
        attempt != attempts_.end()) {
      attempt->second.ended = attempt->second.spooled = true;
    }
    const std::string& reason = record.end.reason;
    if (record.state == RecordState::kRefused) {
      if (reason == "intent") w_.See(Point::refused_intent);
      if (reason == "disk") w_.See(Point::refused_disk);
      if (reason == "lease_too_short") w_.See(Point::refused_lease);
    }
    if (reason.starts_with("slot_busy")) w_.See(Point::slot_busy);
  }
  if (w_.CrashesAt(Site::kAgentAfterRecords, this)) {
    w_.See(Point::agent_crash_after_records);
    return false;
  }
  const auto page = [&](AttemptKey key) -> events::Lease* {
    AttemptDir* dir = h_.FindDir(key);
    const auto attempt = attempts_.find(key);
    return dir == nullptr || attempt == attempts_.end() || attempt->second.ended ? nullptr
                                                                                 : &dir->lease;
  };
  const auto changed = [&](AttemptKey key, const events::Lease& lease) {
    World::AttemptFacts& facts = w_.attempt_facts[Epoch{key.epoch}];
    const auto intent = static_cast<uint32_t>(lease.intent);
    if (lease.deadline_boottime_ns < facts.lease_deadline && facts.lease_deadline != 0) {
      w_.Fail("S27", StrCat("the lease of ", key.epoch, " falls"));
    }
    if (intent < facts.lease_intent) w_.Fail("S15", StrCat("intent of ", key.epoch, " falls"));
    facts.lease_deadline = lease.deadline_boottime_ns;
    facts.lease_intent = intent;
    if (Trainer* trainer = h_.FindTrainer(key)) trainer->LeaseChanged();
  };
  for (const agent::Actions::Stop& stop : actions.stops) {
    events::Lease* lease = page(stop.key);
    if (lease != nullptr &&
        lease->RaiseStop(static_cast<events::LeaseIntent>(stop.intent), stop.deadline_ns)) {
      changed(stop.key, *lease);
    }
  }
  for (const agent::Actions::Lease& one : actions.leases) {
    events::Lease* lease = page(one.key);
    if (lease == nullptr || !lease->RaiseDeadline(one.deadline_ns)) continue;
    const Record* record = state->Find(one.key);
    const Nanos echoed = w_.worker_facts[h_.id].echoed;
    if (record != nullptr && record->lease_ns > 0 && one.deadline_ns > echoed + record->lease_ns) {
      w_.Fail("S27", StrCat("the lease of ", one.key.epoch, " ends ",
                            (one.deadline_ns - echoed - record->lease_ns) / kMs,
                            " ms after the newest echo and its length"));
    }
    changed(one.key, *lease);
  }
  for (const AttemptKey& key : actions.spawn) {
    const Record* record = state->Find(key);
    if (record == nullptr || AttemptOf(key).ended) continue;
    const uint64_t id = next_spawn_++;
    spawns_[id] = key;
    h_.fork_server.Spawn(key, id);
    if (w_.CrashesAt(Site::kAgentAfterSpawn, this)) {
      w_.See(Point::agent_crash_after_spawn);
      return false;
    }
  }
  const auto signal = [&](AttemptKey key, int number) {
    const auto attempt = attempts_.find(key);
    if (attempt == attempts_.end() || attempt->second.ended || attempt->second.pid == 0) return;
    if (number == kSigKill) attempt->second.killed = true;
    if (Trainer* trainer = h_.FindProcess(attempt->second.pid)) {
      trainer->Signal(number);
    } else if (h_.foreign.contains(attempt->second.pid)) {
      w_.Fail("S8", StrCat("a signal for ", key.epoch, " reaches somebody else's process"));
    }
  };
  for (size_t i = 0; i < actions.dump.size(); ++i) w_.See(Point::hang_detected);
  for (const AttemptKey& key : actions.terminate) {
    w_.See(Point::terminated_before_deadline);
    signal(key, kSigTerm);
  }
  for (const AttemptKey& key : actions.kill) {
    w_.See(Point::killed_at_stop_deadline);
    signal(key, kSigKill);
  }
  for (const AttemptKey& key : actions.drop) {
    const AttemptDir* dir = h_.FindDir(key);
    const auto stored = w_.image.attempts.find(Epoch{key.epoch});
    // What an agent drops before it has heard of a restore was stored before that.
    const bool is_restoring = w_.needs_restore_decision || w_.image.tail < w_.sentinel;
    const bool is_told_before = w_.attempt_facts[Epoch{key.epoch}].is_rewound &&
                                (is_restoring || state->applied().generation < w_.image.generation);
    if (dir != nullptr && stored != w_.image.attempts.end() &&
        !AttemptOf(key).window.is_refused() && stored->second.stream.acked < dir->lines.size() &&
        !is_told_before) {
      w_.Fail("S10", StrCat("the payload of ", key.epoch, " is dropped, ", dir->lines.size(),
                            " lines, stored ", stored->second.stream.acked));
    }
    w_.See(Point::payload_dropped);
    h_.dirs.erase(key);
    attempts_.erase(key);
    if (w_.CrashesAt(Site::kAgentAfterDrop, this)) return false;
  }
  for (const AttemptKey& key : actions.resend) Resend(key);
  if (actions.seen_changed) {
    h_.seen_generation = state->applied().generation;
    h_.seen_boot = state->applied().boot;
  }
  hb_wanted_ |= actions.heartbeat;
  return true;
}

}  // namespace switchyard::simulation
