#include "server/scheduler/state.h"

#include <algorithm>

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

bool Worker::IsPlaceable() const {
  return contact == Contact::kOnline && row.admin == AdminState::kOpen && !row.cordoned;
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

std::string LiveKey(std::string_view project, std::string_view run_key) {
  return StrCat(project, '/', run_key);
}

QueueKey QueueKeyOf(const RunRow& row) {
  return {.priority = row.priority,
          .sweep = row.sweep,
          .kind = row.need.kind,
          .count = row.need.count,
          .max_parallel = row.max_parallel};
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
                     .grace_ms = attempt.status.intent == Intent::kKill ? 0 : kGraceMs,
                     .lease_ms = LeaseMs(run != nullptr ? run->row.timeout_ms : 0)});
    }
  }
  return out;
}

}  // namespace switchyard::scheduler
