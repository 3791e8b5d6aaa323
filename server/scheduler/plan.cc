#include "server/scheduler/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/base/strings.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

struct Capacity {
  const Worker* worker = nullptr;
  std::vector<uint32_t> free[2];  // slot indices by kind, rising
};

std::vector<uint32_t>& FreeOf(Capacity& capacity, SlotKind kind) {
  return capacity.free[kind == SlotKind::kGpu ? 1 : 0];
}

// When a worker could be free at the latest: the end of the longest time limit of its attempts.
int64_t FreeAt(const State& state, const Worker& worker, Timestamp now) {
  int64_t at = now.ms;
  for (const Epoch epoch : worker.attempts) {
    const Attempt& attempt = *state.FindAttempt(epoch);
    const Run* run = state.FindRun(attempt.row.run);
    if (run == nullptr || run->row.timeout_ms == 0) return kNever;
    const Timestamp since = attempt.running_since.value_or(now);
    at = std::max(at, since.ms + static_cast<int64_t>(run->row.timeout_ms));
  }
  return at;
}

// A checkpoint store that the run must wait for; empty: any worker will do.
std::string NeededStore(const State& state, const Run& run, Timestamp now) {
  if (run.checkpoints.empty() || now - run.queued_since >= kCheckpointWait) return {};
  const std::string& store = run.checkpoints.back().store;
  if (store.empty()) return {};
  for (const auto& [id, worker] : state.workers) {
    if (worker.row.checkpoint_store == store && worker.IsPlaceable() &&
        worker.CountSlots(run.row.need.kind) >= run.row.need.count) {
      return store;
    }
  }
  return {};
}

std::optional<CheckpointRow> ResumeOn(const Run& run, const Worker& worker) {
  for (auto it = run.checkpoints.rbegin(); it != run.checkpoints.rend(); ++it) {
    if (it->store == worker.row.checkpoint_store) return *it;
  }
  return std::nullopt;
}

uint64_t ActiveOf(const State& state, SweepId id) {
  const Sweep* sweep = state.FindSweep(id);
  return sweep == nullptr ? 0 : sweep->status.counts[static_cast<size_t>(RunState::kActive)];
}

// R2: one of the linking sweeps is ACTIVE.
bool IsWanted(const State& state, const Run& run) {
  return std::ranges::any_of(run.links, [&](const SweepLink& link) {
    return state.FindSweep(link.sweep)->status.state == SweepState::kActive;
  });
}

class Planner {
 public:
  Planner(const State& state, Timestamp now) : state_(state), now_(now) {
    for (const auto& [id, worker] : state.workers) {
      if (!worker.IsPlaceable()) continue;
      Capacity capacity{.worker = &worker, .free = {}};
      for (const SlotRow& slot : worker.row.slots) {
        if (worker.held.contains(slot.index)) continue;
        FreeOf(capacity, slot.kind).push_back(slot.index);
        ++free_total_;
      }
      workers_.push_back(std::move(capacity));
    }
  }

  std::vector<Placement> Plan(size_t limit) {
    struct Head {
      int32_t priority;
      uint64_t order;
      RunId run;
      const QueueKey* key;
      std::set<QueueEntry>::const_iterator next;
      const std::set<QueueEntry>* line;
    };
    const auto later = [](const Head& a, const Head& b) {
      return std::tie(b.priority, a.order, a.run) > std::tie(a.priority, b.order, b.run);
    };
    std::priority_queue<Head, std::vector<Head>, decltype(later)> heads(later);
    const auto push = [&](const QueueKey& key, const std::set<QueueEntry>& line,
                          std::set<QueueEntry>::const_iterator at) {
      if (at == line.end()) return;
      heads.push({key.priority, at->order, at->run, &key, std::next(at), &line});
    };
    for (const auto& [key, line] : state_.queue) push(key, line, line.begin());

    std::vector<Placement> plan;
    size_t passed_over = 0;
    while (!heads.empty() && plan.size() < limit && free_total_ > 0) {
      const Head head = heads.top();
      heads.pop();
      const Run& run = *state_.FindRun(head.run);
      const uint64_t active = ActiveOf(state_, head.key->sweep) + placed_[head.key->sweep];
      if (head.key->max_parallel > 0 && active >= head.key->max_parallel) continue;
      if (!IsWanted(state_, run)) {
        if (++passed_over < limit) push(*head.key, *head.line, head.next);
        continue;
      }
      const std::string store = NeededStore(state_, run, now_);
      Capacity* best = BestFit(run, store);
      if (best == nullptr) {
        Reserve(run);
        // A line waits with its first run, unless that one alone is bound to a place.
        if (!store.empty() && ++passed_over < limit) push(*head.key, *head.line, head.next);
        continue;
      }
      std::vector<uint32_t>& free = FreeOf(*best, run.row.need.kind);
      plan.push_back({.run = head.run,
                      .worker = best->worker->row.id,
                      .slots = {free.begin(), free.begin() + run.row.need.count},
                      .resume = ResumeOn(run, *best->worker)});
      free.erase(free.begin(), free.begin() + run.row.need.count);
      free_total_ -= run.row.need.count;
      ++placed_[head.key->sweep];
      push(*head.key, *head.line, head.next);
    }
    return plan;
  }

 private:
  Capacity* BestFit(const Run& run, const std::string& store) {
    Capacity* best = nullptr;
    size_t best_free = 0;
    for (Capacity& capacity : workers_) {
      const size_t free = FreeOf(capacity, run.row.need.kind).size();
      if (free < run.row.need.count) continue;
      if (!store.empty() && capacity.worker->row.checkpoint_store != store) continue;
      if (capacity.worker == reserved_) {
        const bool ends_before =
            run.row.timeout_ms > 0 && reserved_until_ != kNever &&
            now_.ms + static_cast<int64_t>(run.row.timeout_ms) <= reserved_until_;
        if (!ends_before) continue;
      }
      if (best == nullptr || free < best_free) {
        best = &capacity;
        best_free = free;
      }
    }
    return best;
  }

  // Only the first run that waits for slots gets a reservation.
  void Reserve(const Run& run) {
    if (reserved_ != nullptr) return;
    std::tuple<int64_t, size_t> best;
    for (const Capacity& capacity : workers_) {
      const Worker& worker = *capacity.worker;
      if (worker.CountSlots(run.row.need.kind) < run.row.need.count) continue;
      const std::tuple<int64_t, size_t> candidate{FreeAt(state_, worker, now_), worker.held.size()};
      if (reserved_ == nullptr || candidate < best) {
        reserved_ = &worker;
        reserved_until_ = std::get<0>(candidate);
        best = candidate;
      }
    }
  }

  const State& state_;
  const Timestamp now_;
  std::vector<Capacity> workers_;
  uint64_t free_total_ = 0;
  const Worker* reserved_ = nullptr;
  int64_t reserved_until_ = 0;
  std::map<SweepId, uint64_t> placed_;
};

}  // namespace

std::vector<Placement> PlanPlacements(const State& state, Timestamp now, size_t limit) {
  if (state.queue.empty()) return {};
  return Planner(state, now).Plan(limit);
}

std::string ExplainWait(const State& state, const Run& run, Timestamp now) {
  const SlotNeed& need = run.row.need;
  const std::string wants =
      StrCat(need.count, " ", Name(need.kind), need.count == 1 ? " slot" : " slots");
  if (!IsWanted(state, run)) return "no sweep that proposed it is active";
  const uint64_t active = ActiveOf(state, run.row.sweep);
  if (run.row.max_parallel > 0 && active >= run.row.max_parallel) {
    return StrCat("its sweep has ", active, " active runs, and max_parallel is ",
                  run.row.max_parallel);
  }
  size_t capable = 0;
  size_t placeable = 0;
  uint32_t free = 0;
  for (const auto& [id, worker] : state.workers) {
    if (worker.CountSlots(need.kind) < need.count) continue;
    ++capable;
    if (!worker.IsPlaceable()) continue;
    ++placeable;
    free = std::max(free, worker.CountFree(need.kind));
  }
  if (state.workers.empty()) return StrCat("needs ", wants, "; no worker has registered");
  if (capable == 0) {
    return StrCat("needs ", wants, "; none of the ", state.workers.size(), " workers has so many");
  }
  if (placeable == 0) {
    return StrCat("needs ", wants, "; ", capable,
                  " workers would do, and none is ready (in contact, open, not cordoned)");
  }
  if (const std::string store = NeededStore(state, run, now); !store.empty()) {
    return StrCat("waits for ", wants, " on a worker that reaches its checkpoint at step ",
                  run.checkpoints.back().step);
  }
  if (free < need.count) {
    return StrCat("needs ", wants, "; at most ", free, " are free on one of ", placeable,
                  placeable == 1 ? " worker" : " workers");
  }
  return StrCat("needs ", wants, ", which are free: placed in the next pass");
}

}  // namespace switchyard::scheduler
