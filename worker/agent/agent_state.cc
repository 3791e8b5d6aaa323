#include "worker/agent/agent_state.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"
#include "common/base/guard.h"
#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kLeaseStepNs = 1'000'000'000;
constexpr int kStoppedCode = 75;
constexpr int kGenerationShift = 48;  // of an epoch

uint64_t SaturatingAdd(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

void Move(Record& record, RecordState to) {
  SWITCHYARD_CHECK(IsAllowed(record.state, to))
      << "attempt " << record.key.epoch << "-" << record.key.rank << ": " << Name(record.state)
      << " to " << Name(to);
  record.state = to;
}

}  // namespace

void Actions::Append(Actions more) {
  const auto move = [](auto& source, auto& target) {
    target.insert(target.end(), std::make_move_iterator(source.begin()),
                  std::make_move_iterator(source.end()));
  };
  move(more.prepare, prepare);
  move(more.records, records);
  move(more.spawn, spawn);
  move(more.leases, leases);
  move(more.stops, stops);
  move(more.dump, dump);
  move(more.terminate, terminate);
  move(more.kill, kill);
  move(more.drop, drop);
  move(more.resend, resend);
  seen_changed |= more.seen_changed;
  heartbeat |= more.heartbeat;
}

bool Actions::IsEmpty() const {
  return prepare.empty() && records.empty() && spawn.empty() && leases.empty() && stops.empty() &&
         dump.empty() && terminate.empty() && kill.empty() && drop.empty() && resend.empty() &&
         !seen_changed;
}

void AgentState::Restore(Record record) {
  const AttemptKey key = record.key;
  record.spawn_requested = true;
  records_[key] = std::move(record);
}

uint64_t AgentState::DeadlineFor(uint64_t lease_ns) const {
  if (lease_ns == 0) return kNoDeadline;
  // Without a round trip there is no lease.
  return base_ns_ ? SaturatingAdd(*base_ns_, lease_ns) : 0;
}

Actions AgentState::OnRegistered(uint32_t generation) {
  Actions actions;
  EnterGeneration(generation, &actions);
  return actions;
}

Actions AgentState::OnDesired(const Desired& desired, uint64_t now_ns) {
  Actions actions;
  if (!SWITCHYARD_GUARD(X13, desired.echo_incarnation == options_.incarnation)) return actions;
  // Time of sending, never of receipt; an old message is still proof of contact.
  const bool is_receipt = SWITCHYARD_GUARD(X02, false);
  base_ns_ = std::max(base_ns_.value_or(0), is_receipt ? now_ns : desired.echo_sent_boottime_ns);

  const bool is_present = desired.rev.generation >= generation_;
  const bool is_new = SWITCHYARD_GUARD(X11, is_present && desired.rev > applied_);
  if (is_new) {
    EnterGeneration(desired.rev.generation, &actions);
    for (const Wanted& wanted : desired.want) {
      const auto it = records_.find(wanted.key);
      if (it != records_.end()) {
        it->second.lease_ns = wanted.lease_ms * kNsPerMs;
      } else if (SWITCHYARD_GUARD(X39, !tombstones_.contains(wanted.key))) {
        Decide(wanted, desired.rev.generation, now_ns, &actions);
      }
    }
  }
  for (auto& [key, record] : records_) {
    if (!record.is_live() || record.lease_ns == 0) continue;
    const uint64_t deadline_ns = DeadlineFor(record.lease_ns);
    // Replies may come hundreds of times a second: a lease that is a second short is as good.
    const uint64_t least = std::min(kLeaseStepNs, record.lease_ns / 8);
    if (deadline_ns < SaturatingAdd(record.deadline_ns, least)) continue;
    record.deadline_ns = deadline_ns;
    actions.leases.push_back({.key = key, .deadline_ns = deadline_ns});
  }
  if (is_new) {
    std::set<AttemptKey> wanted_keys;
    for (const Wanted& wanted : desired.want) {
      wanted_keys.insert(wanted.key);
      const auto it = records_.find(wanted.key);
      if (it == records_.end() || !it->second.is_live()) continue;
      // A drain with a deadline meets one that is under way: the earlier end counts.
      const bool is_shorter =
          wanted.intent == it->second.intent && wanted.intent > Intent::kRun &&
          SaturatingAdd(now_ns, wanted.grace_ms * kNsPerMs) < it->second.stop_at_ns;
      if (wanted.intent > it->second.intent || is_shorter) {
        RaiseStop(it->second, wanted.intent, wanted.grace_ms, now_ns, &actions);
      }
    }
    for (auto& [key, record] : records_) {
      if (record.is_live() && !wanted_keys.contains(key) && record.intent != Intent::kKill) {
        RaiseStop(record, Intent::kKill, 0, now_ns, &actions);
      }
    }
    actions.seen_changed =
        applied_.generation != desired.rev.generation || applied_.boot != desired.rev.boot;
    applied_ = desired.rev;
    SpawnReady(&actions);
  }
  if (!is_present) return actions;
  for (const AttemptKey& key : desired.gc) {
    const auto it = records_.find(key);
    if (it == records_.end() || it->second.is_live()) continue;
    it->second.gc = true;
    DropIfDone(it->second, &actions);
  }
  return actions;
}

// A restored coordinator may have forgotten what an earlier one was through with, and lines that
// the earlier one had acknowledged.
void AgentState::EnterGeneration(uint32_t generation, Actions* actions) {
  if (generation <= generation_) return;
  const bool may_have_sent = generation_ != 0;
  generation_ = generation;
  for (auto& [key, record] : records_) {
    record.gc = false;
    const bool has_lines = record.is_live() || record.end.last_seq > 0;
    if (!may_have_sent || !has_lines) continue;
    record.spooled = false;
    actions->resend.push_back(key);
  }
}

// Every wanted attempt gets an explicit record before the revision moves.
void AgentState::Decide(const Wanted& wanted, uint32_t generation, uint64_t now_ns,
                        Actions* actions) {
  Record record{.key = wanted.key,
                .run_id = wanted.run_id,
                .ordinal = wanted.ordinal,
                .slots = wanted.slots,
                .state = RecordState::kNone,
                .lease_ns = wanted.lease_ms * kNsPerMs};
  std::string refusal;
  const uint64_t deadline_ns = DeadlineFor(record.lease_ns);
  if (!wanted.unknown.empty()) {
    refusal = StrCat("format_unknown: ", wanted.unknown);
  } else if (wanted.intent > Intent::kRun) {
    refusal = "intent";
  } else if (wanted.key.epoch >> kGenerationShift < generation) {
    refusal = StrCat("old_generation: ", wanted.key.epoch >> kGenerationShift,
                     ", the coordinator is of generation ", generation);
  } else if (draining_) {
    refusal = "draining";
  } else if (!wanted.has_spec) {
    refusal = "no_spec";
  } else if (const auto bad = std::find_if(wanted.slots.begin(), wanted.slots.end(),
                                           [&](uint32_t slot) { return slot >= options_.slots; });
             bad != wanted.slots.end()) {
    refusal = StrCat("no_such_slot: ", *bad, " of ", options_.slots);
  } else if (disk_low_) {
    refusal = "disk";
  } else if (deadline_ns <= now_ns) {
    refusal = "lease_too_short";
  }
  if (!refusal.empty() && SWITCHYARD_GUARD(X10, false)) return;
  if (!refusal.empty()) {
    Move(record, RecordState::kRefused);
    record.end.reason = refusal;
    record.spooled = true;
  } else {
    Move(record, RecordState::kLaunching);
    record.wait_until_ns = SaturatingAdd(now_ns, kSlotWaitNs);
    record.deadline_ns = deadline_ns;
    actions->prepare.push_back({.key = wanted.key, .deadline_ns = deadline_ns});
  }
  actions->records.push_back(record);
  actions->heartbeat = true;
  records_[wanted.key] = std::move(record);
}

void AgentState::RaiseStop(Record& record, Intent intent, uint64_t grace_ms, uint64_t now_ns,
                           Actions* actions) {
  record.intent = intent;
  const uint64_t grace_ns = grace_ms * kNsPerMs;
  const uint64_t stop_at = SaturatingAdd(now_ns, grace_ns);
  // A higher intent may shorten the grace, never lengthen it.
  if (record.stop_at_ns == 0 || stop_at < record.stop_at_ns) {
    record.stop_at_ns = stop_at;
    // Half of a short grace belongs to the trainer's own end by the lease page.
    record.term_at_ns = stop_at - std::min(kTermBeforeNs, grace_ns / 2);
  }
  if (!record.spawn_requested) {
    Exit(record,
         {.exit_code = kStoppedCode,
          .end_class = "stopped",
          .evidence = "agent",
          .reason = "never executed: stopped before the launch"},
         actions);
    record.spooled = true;
    return;
  }
  actions->stops.push_back(
      {.key = record.key, .intent = record.intent, .deadline_ns = record.stop_at_ns});
  if (record.stop_at_ns <= now_ns && !record.kill_sent) Kill(record, now_ns, actions);
}

void AgentState::Kill(Record& record, uint64_t now_ns, Actions* actions) {
  record.kill_sent = true;
  record.term_at_ns = 0;
  record.wedged_at_ns = SaturatingAdd(now_ns, kReapNs);
  actions->kill.push_back(record.key);
}

Actions AgentState::OnSpawned(AttemptKey key, const std::string& error, uint64_t now_ns) {
  Actions actions;
  const auto it = records_.find(key);
  if (it == records_.end() || !it->second.is_live()) return actions;
  Record& record = it->second;
  if (!error.empty()) {
    record.spooled = true;
    return OnEnded(
        key,
        {.end_class = "infra", .evidence = "agent", .reason = StrCat("never executed: ", error)},
        now_ns);
  }
  if (record.state == RecordState::kLaunching) Move(record, RecordState::kRunning);
  // A stop that came between the request and the process must not be lost.
  if (record.kill_sent) Kill(record, now_ns, &actions);
  return actions;
}

Actions AgentState::OnEnded(AttemptKey key, AttemptEnd end, uint64_t now_ns) {
  (void)now_ns;
  Actions actions;
  const auto it = records_.find(key);
  if (it == records_.end() || !it->second.is_live()) return actions;
  Exit(it->second, std::move(end), &actions);
  SpawnReady(&actions);
  return actions;
}

void AgentState::Exit(Record& record, AttemptEnd end, Actions* actions) {
  Move(record, RecordState::kExited);
  record.end = std::move(end);
  record.wedged = false;
  record.wedged_at_ns = 0;
  record.stop_at_ns = 0;
  record.term_at_ns = 0;
  actions->records.push_back(record);
  actions->heartbeat = true;
}

Actions AgentState::OnSpooled(AttemptKey key) {
  Actions actions;
  const auto it = records_.find(key);
  if (it == records_.end() || it->second.is_live()) return actions;
  it->second.spooled = true;
  DropIfDone(it->second, &actions);
  return actions;
}

void AgentState::DropIfDone(Record& record, Actions* actions) {
  if (!record.gc || !record.spooled) return;
  const AttemptKey key = record.key;
  actions->drop.push_back(key);
  tombstones_.insert(key);
  if (tombstones_.size() > kTombstonesMax) tombstones_.erase(tombstones_.begin());
  records_.erase(key);
}

Actions AgentState::OnTick(uint64_t now_ns) {
  Actions actions;
  for (auto& [key, record] : records_) {
    if (!record.is_live()) continue;
    if (!record.spawn_requested) {
      if (now_ns < record.wait_until_ns) continue;
      record.spooled = true;
      Exit(record,
           {.end_class = "infra",
            .evidence = "agent",
            .reason = "slot_busy: never executed, its slots were not free within 60 s"},
           &actions);
      continue;
    }
    if (record.wedged_at_ns != 0 && !record.wedged && now_ns >= record.wedged_at_ns) {
      record.wedged = true;
      actions.kill.push_back(key);
      actions.heartbeat = true;
    }
    if (record.stop_at_ns == 0) {
      std::optional<std::string> reason = record.hang.Check(now_ns);
      if (!reason) continue;
      record.agent_reason = *std::move(reason);
      actions.dump.push_back(key);
      RaiseStop(record, Intent::kKill, kDumpNs / kNsPerMs, now_ns, &actions);
      continue;
    }
    if (record.kill_sent) continue;
    if (now_ns >= record.stop_at_ns) {
      Kill(record, now_ns, &actions);
    } else if (record.term_at_ns != 0 && now_ns >= record.term_at_ns) {
      record.term_at_ns = 0;
      actions.terminate.push_back(key);
    }
  }
  SpawnReady(&actions);
  return actions;
}

void AgentState::OnProgress(AttemptKey key, const Progress& progress, uint64_t now_ns) {
  const auto it = records_.find(key);
  if (it == records_.end() || it->second.state != RecordState::kRunning) return;
  it->second.hang.Observe(progress, now_ns);
}

Actions AgentState::OnDrain(uint64_t grace_ms, uint64_t now_ns) {
  Actions actions;
  actions.heartbeat = true;
  draining_ = true;
  for (auto& [key, record] : records_) {
    if (!record.is_live()) continue;
    const bool is_earlier =
        record.stop_at_ns == 0 || SaturatingAdd(now_ns, grace_ms * kNsPerMs) < record.stop_at_ns;
    if (record.intent >= Intent::kDrain && !is_earlier) continue;
    RaiseStop(record, std::max(record.intent, Intent::kDrain), grace_ms, now_ns, &actions);
  }
  return actions;
}

// In order of epoch, so that the older attempt gets a slot first.
void AgentState::SpawnReady(Actions* actions) {
  std::vector<bool> busy(options_.slots, false);
  bool has_waiting = false;
  for (const auto& [key, record] : records_) {
    if (!record.is_live()) continue;
    if (!record.spawn_requested) {
      has_waiting = true;
      continue;
    }
    for (const uint32_t slot : record.slots) {
      if (slot < options_.slots) busy[slot] = true;
    }
  }
  if (!has_waiting) return;
  for (auto& [key, record] : records_) {
    if (!record.is_live() || record.spawn_requested) continue;
    const bool is_free =
        SWITCHYARD_GUARD(X33, std::none_of(record.slots.begin(), record.slots.end(),
                                           [&](uint32_t slot) { return busy[slot]; }));
    for (const uint32_t slot : record.slots) busy[slot] = true;
    if (!is_free) continue;
    record.spawn_requested = true;
    actions->spawn.push_back(key);
  }
}

uint64_t AgentState::NextTick() const {
  uint64_t next = kNoDeadline;
  for (const auto& [key, record] : records_) {
    if (!record.is_live()) continue;
    if (!record.spawn_requested) {
      next = std::min(next, record.wait_until_ns);
    } else if (record.stop_at_ns == 0) {
      next = std::min(next, record.hang.due_ns().value_or(kNoDeadline));
    } else if (!record.kill_sent) {
      next = std::min(next, record.term_at_ns != 0 ? record.term_at_ns : record.stop_at_ns);
    } else if (!record.wedged) {
      next = std::min(next, record.wedged_at_ns);
    }
  }
  return next;
}

const Record* AgentState::Find(AttemptKey key) const {
  const auto it = records_.find(key);
  return it == records_.end() ? nullptr : &it->second;
}

bool AgentState::IsIdle() const {
  return std::none_of(records_.begin(), records_.end(),
                      [](const auto& entry) { return entry.second.is_live(); });
}

}  // namespace switchyard::agent
