#include "server/scheduler/state.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/base/strings.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {

std::string_view Name(Contact contact) {
  switch (contact) {
    case Contact::kUnknown:
      return "unknown";
    case Contact::kOnline:
      return "online";
    case Contact::kSuspect:
      return "suspect";
    case Contact::kLost:
      return "lost";
  }
  return "unspecified";
}

uint32_t Worker::CountSlots(SlotKind kind) const {
  return static_cast<uint32_t>(
      std::ranges::count_if(row.slots, [&](const SlotRow& slot) { return slot.kind == kind; }));
}

uint32_t Worker::CountFree(SlotKind kind) const {
  return static_cast<uint32_t>(std::ranges::count_if(row.slots, [&](const SlotRow& slot) {
    return slot.kind == kind && !held.contains(slot.index);
  }));
}

bool Worker::HasLabels(const std::vector<std::string>& labels) const {
  return std::ranges::all_of(labels, [&](const std::string& label) {
    return std::ranges::find(row.labels, label) != row.labels.end();
  });
}

bool Worker::IsPlaceable() const {
  return contact == Contact::kOnline && row.admin == AdminState::kOpen && !is_leaving &&
         !row.cordoned;
}

const Run* State::FindRun(RunId id) const {
  const auto found = runs.find(id);
  return found == runs.end() ? nullptr : &found->second;
}
const Attempt* State::FindAttempt(Epoch epoch) const {
  const auto found = attempts.find(epoch);
  return found == attempts.end() ? nullptr : &found->second;
}
const Worker* State::FindWorker(WorkerId id) const {
  const auto found = workers.find(id);
  return found == workers.end() ? nullptr : &found->second;
}
const Sweep* State::FindSweep(SweepId id) const {
  const auto found = sweeps.find(id);
  return found == sweeps.end() ? nullptr : &found->second;
}

bool IsLookedUp(const State& state, Epoch epoch) {
  const uint32_t generation = GenerationOf(epoch);
  return generation != 0 && generation < state.generation && state.FindAttempt(epoch) == nullptr;
}

std::string LiveKey(std::string_view project, std::string_view run_key) {
  return StrCat(project, '/', run_key);
}

ResourceNeed NeedOf(const Run& run) {
  const RunPolicy& policy = run.row.policy;
  const uint32_t alternative = run.status.alternative;
  if (alternative > 0 && alternative <= policy.alternatives.size()) {
    return policy.alternatives[alternative - 1];
  }
  return {.slots = run.row.need, .memory_bytes = policy.memory_bytes};
}

QueueKey QueueKeyOf(const Run& run) {
  const ResourceNeed need = NeedOf(run);
  return {.priority = run.status.priority,
          .project = run.row.project,
          .sweep = run.row.sweep,
          .kind = need.slots.kind,
          .count = need.slots.count,
          .memory_bytes = need.memory_bytes,
          .exclusive = run.row.policy.exclusive,
          .labels = run.row.policy.labels,
          .max_parallel = run.row.max_parallel,
          .timeout_ms = run.row.timeout_ms};
}

double Usage::At(Timestamp now) const {
  const double seconds = static_cast<double>((now - at).count()) / 1000;
  if (seconds <= 0) return slot_seconds;
  const double kept = std::exp2(-seconds / kUsageHalfLifeSeconds);
  // The integral of slots * 2^(-t / half-life) over the time since `at`.
  const double held = static_cast<double>(slots) * kUsageHalfLifeSeconds / std::numbers::ln2;
  return slot_seconds * kept + held * (1 - kept);
}

void Usage::Change(Timestamp now, int32_t slots_more) {
  slot_seconds = At(now);
  at = now;
  slots = static_cast<uint32_t>(std::max<int64_t>(0, int64_t{slots} + slots_more));
}

double State::UsageOf(const std::string& project, Timestamp now) const {
  const auto found = usage.find(project);
  return found == usage.end() ? 0 : found->second.At(now);
}

std::vector<Wanted> WantedOf(const State& state, WorkerId id) {
  std::vector<Wanted> out;
  const Worker* worker = state.FindWorker(id);
  if (worker == nullptr) return out;
  for (const Epoch epoch : worker->attempts) {
    const Attempt& attempt = *state.FindAttempt(epoch);
    const Run* run = state.FindRun(attempt.row.run);
    for (const MemberRow& member : attempt.members) {
      if (member.worker != id) continue;
      out.push_back({.attempt = &attempt,
                     .rank = member.rank,
                     .grace_ms = attempt.status.grace_ms,
                     .lease_ms = run == nullptr ? LeaseMs(Profile::kResilient, 0, state.leases)
                                                : LeaseMs(run->row.policy.profile,
                                                          run->row.timeout_ms, state.leases)});
    }
  }
  return out;
}

std::vector<CheckpointRow> TombstonesOf(const State& state, WorkerId id) {
  std::vector<CheckpointRow> out;
  const Worker* worker = state.FindWorker(id);
  if (worker == nullptr || worker->row.checkpoint_store.empty()) return out;
  for (const auto& [ref, doomed] : state.doomed) {
    if (out.size() >= kGcCheckpointsMax) break;
    if (doomed.row.state == CheckpointState::kTombstoned &&
        doomed.row.store == worker->row.checkpoint_store) {
      out.push_back(doomed.row);
    }
  }
  return out;
}

}  // namespace switchyard::scheduler
