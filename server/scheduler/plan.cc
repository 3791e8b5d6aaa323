#include "server/scheduler/plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::scheduler {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// When a worker could be free at the latest: the end of the longest time limit of its attempts.
int64_t FreeAt(const State& state, const Worker& worker, Timestamp now) {
  int64_t at = now.ms;
  for (const Epoch epoch : worker.attempts) {
    const Attempt& attempt = *state.FindAttempt(epoch);
    const Run* run = state.FindRun(attempt.row.run);
    if (run == nullptr || run->row.timeout_ms == 0) return kNever;
    const Timestamp since = attempt.running_since.value_or(now);
    const uint64_t left =
        run->row.timeout_ms - std::min(run->row.timeout_ms, run->status.active_ms);
    at = std::max(at, since.ms + static_cast<int64_t>(left));
  }
  return at;
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

const WorkerBlame* BlameOn(const Run& run, WorkerId worker) {
  for (const WorkerBlame& blame : run.status.evidence.workers) {
    if (blame.worker == worker) return &blame;
  }
  return nullptr;
}

// The run has failed there in a way that may be the worker's (protocol 15).
bool IsExcluded(const Run& run, WorkerId worker) {
  const WorkerBlame* blame = BlameOn(run, worker);
  return blame != nullptr && (blame->infra_ends >= kInfraEndsPerWorker || blame->crashes > 0);
}

enum class Misfit : uint8_t { kNone, kSlots, kLabels, kMemory };

// What of an empty worker would not do for the run.
Misfit MisfitOf(const Worker& worker, const Run& run, const ResourceNeed& need) {
  if (worker.CountSlots(need.slots.kind) < need.slots.count) return Misfit::kSlots;
  if (!worker.HasLabels(run.row.policy.labels)) return Misfit::kLabels;
  if (need.memory_bytes > 0 && worker.row.memory_bytes > 0 &&
      need.memory_bytes > worker.row.memory_bytes) {
    return Misfit::kMemory;
  }
  return Misfit::kNone;
}

// What is left of one worker.
struct Capacity {
  const Worker* worker = nullptr;
  std::vector<uint32_t> free[2];  // slot indices by kind, rising
  uint64_t memory_left = 0;       // when the worker tells its memory
  bool is_empty = true;
  bool is_taken_whole = false;  // by an exclusive run

  std::vector<uint32_t>& Free(SlotKind kind) { return free[kind == SlotKind::kGpu ? 1 : 0]; }
};

Capacity CapacityOf(const State& state, const Worker& worker) {
  Capacity capacity{.worker = &worker, .free = {}, .memory_left = worker.row.memory_bytes};
  std::set<Epoch> holders;
  for (const SlotRow& slot : worker.row.slots) {
    const auto held = worker.held.find(slot.index);
    if (held == worker.held.end()) {
      capacity.Free(slot.kind).push_back(slot.index);
    } else {
      holders.insert(held->second);
    }
  }
  for (const auto& [slot, epoch] : worker.held) holders.insert(epoch);
  for (const Epoch epoch : holders) {
    capacity.is_empty = false;
    const Run* run = state.FindRun(state.FindAttempt(epoch)->row.run);
    if (run == nullptr) continue;
    capacity.is_taken_whole |= run->row.policy.exclusive;
    capacity.memory_left -= std::min(capacity.memory_left, NeedOf(*run).memory_bytes);
  }
  return capacity;
}

bool HasRoom(Capacity& capacity, const Run& run, const ResourceNeed& need) {
  if (capacity.is_taken_whole || (run.row.policy.exclusive && !capacity.is_empty)) return false;
  if (need.memory_bytes > 0 && capacity.worker->row.memory_bytes > 0 &&
      need.memory_bytes > capacity.memory_left) {
    return false;
  }
  return capacity.Free(need.slots.kind).size() >= need.slots.count;
}

// Some worker in contact, on which the run has not failed, could take it when empty.
bool HasUnblamedWorker(const State& state, const Run& run, const ResourceNeed& need) {
  return std::ranges::any_of(state.workers, [&](const auto& entry) {
    const Worker& worker = entry.second;
    return worker.IsPlaceable() && !IsExcluded(run, worker.row.id) &&
           MisfitOf(worker, run, need) == Misfit::kNone;
  });
}

// A checkpoint store that the run must wait for; empty: any worker will do. Workers on which it has
// failed are not waited for while it shuns them. What it begins with is nowhere else.
std::string NeededStore(const State& state, const Run& run, Timestamp now, bool shuns_blamed) {
  const std::string& start = run.row.policy.start_store;
  if (run.checkpoints.empty() || now - run.queued_since >= kCheckpointWait) return start;
  const std::string& store = run.checkpoints.back().store;
  const ResourceNeed need = NeedOf(run);
  for (const auto& [id, worker] : state.workers) {
    if (!store.empty() && worker.row.checkpoint_store == store && worker.IsPlaceable() &&
        MisfitOf(worker, run, need) == Misfit::kNone &&
        !(shuns_blamed && IsExcluded(run, worker.row.id))) {
      return store;
    }
  }
  return start;
}

std::optional<CheckpointRow> ResumeOn(const Run& run, const Worker& worker) {
  for (auto it = run.checkpoints.rbegin(); it != run.checkpoints.rend(); ++it) {
    if (it->store == worker.row.checkpoint_store) return *it;
  }
  return std::nullopt;
}

// One pass. What it does to a run is decided by Try alone, for placing and explaining alike.
class Planner {
 public:
  Planner(const State& state, Timestamp now) : state_(state), now_(now) {
    for (const auto& [id, worker] : state.workers) {
      if (!worker.IsPlaceable()) continue;
      workers_.push_back(CapacityOf(state, worker));
      for (const std::vector<uint32_t>& free : workers_.back().free) free_total_ += free.size();
    }
  }

  enum class Verdict : uint8_t {
    kPlaced,
    kNotWanted,    // no sweep that proposed it is active
    kHeld,         // may execute somewhere since before a restore
    kMaxParallel,  // its sweep has as many active runs as it may have
    kStore,        // waits for a worker that reaches its checkpoint
    kBlamed,       // waits for a worker on which it has not failed
    kNoRoom,       // no free slots now
    kReserved,     // only on the worker that an earlier run waits for
  };

  // Places one run, or says what keeps it.
  Verdict Try(const Run& run, std::vector<Placement>* plan) {
    if (!IsWanted(state_, run)) return Verdict::kNotWanted;
    const std::optional<Timestamp> held = HeldAfterRestore(state_, run);
    if (held.has_value() && !SWITCHYARD_GUARD(X42, now_ >= *held)) return Verdict::kHeld;
    const uint64_t active = ActiveOf(state_, run.row.sweep) + placed_[run.row.sweep];
    if (run.row.max_parallel > 0 && active >= run.row.max_parallel) return Verdict::kMaxParallel;
    const ResourceNeed need = NeedOf(run);
    const bool shuns_blamed =
        !run.status.evidence.workers.empty() && HasUnblamedWorker(state_, run, need);
    const std::string store = NeededStore(state_, run, now_, shuns_blamed);
    const auto may_take = [&](const Worker& worker) {
      return MisfitOf(worker, run, need) == Misfit::kNone &&
             (store.empty() || worker.row.checkpoint_store == store) &&
             !(shuns_blamed && IsExcluded(run, worker.row.id));
    };
    Capacity* best = nullptr;
    bool only_reserved = false;
    for (Capacity& capacity : workers_) {
      if (!may_take(*capacity.worker) || !HasRoom(capacity, run, need)) continue;
      if (capacity.worker == reserved_ && !EndsBeforeReservation(run)) {
        only_reserved = true;
        continue;
      }
      if (best == nullptr ||
          capacity.Free(need.slots.kind).size() < best->Free(need.slots.kind).size()) {
        best = &capacity;
      }
    }
    if (best == nullptr) {
      Reserve(may_take);
      if (!store.empty()) return Verdict::kStore;
      // Bound to a place: others of its line may take the workers that it shuns.
      if (shuns_blamed) return Verdict::kBlamed;
      return only_reserved ? Verdict::kReserved : Verdict::kNoRoom;
    }
    std::vector<uint32_t>& free = best->Free(need.slots.kind);
    plan->push_back({.run = run.row.id,
                     .worker = best->worker->row.id,
                     .slots = {free.begin(), free.begin() + need.slots.count},
                     .resume = ResumeOn(run, *best->worker)});
    free.erase(free.begin(), free.begin() + need.slots.count);
    free_total_ -= need.slots.count;
    best->is_empty = false;
    best->is_taken_whole = run.row.policy.exclusive;
    best->memory_left -= std::min(best->memory_left, need.memory_bytes);
    ++placed_[run.row.sweep];
    used_[run.row.project] += kPlacedSlotSeconds * need.slots.count;
    return Verdict::kPlaced;
  }

  // Goes through the queue until `limit` runs are placed, nothing is free, or `visit` says stop.
  template <typename Visit>
  std::vector<Placement> Plan(size_t limit, const std::set<RunId>& skip, Visit visit) {
    struct Head {
      const QueueKey* key;
      const std::set<QueueEntry>* line;
      std::set<QueueEntry>::const_iterator next;
    };
    std::vector<Head> heads;
    heads.reserve(state_.queue.size());
    for (const auto& [key, line] : state_.queue) heads.push_back({&key, &line, line.begin()});
    const auto rank = [&](const Head& head) {
      return std::tuple(-int64_t{head.key->priority}, UseOf(head.key->project), head.next->order,
                        head.next->run);
    };
    std::vector<Placement> plan;
    size_t passed_over = 0;
    while (!heads.empty() && plan.size() < limit) {
      const auto head = std::ranges::min_element(
          heads, [&](const Head& a, const Head& b) { return rank(a) < rank(b); });
      const Run& run = *state_.FindRun(head->next->run);
      const bool is_skipped = skip.contains(run.row.id);
      const Verdict verdict = is_skipped ? Verdict::kNotWanted : Try(run, &plan);
      if (!visit(run, verdict)) break;
      // Runs of a line are alike: it waits with its first one, unless that one is bound to a place.
      const bool goes_on =
          verdict == Verdict::kPlaced ||
          ((is_skipped || verdict == Verdict::kNotWanted || verdict == Verdict::kHeld ||
            verdict == Verdict::kStore || verdict == Verdict::kBlamed) &&
           ++passed_over < limit);
      if (!goes_on || ++head->next == head->line->end()) heads.erase(head);
      if (free_total_ == 0 && stops_when_full_) break;
    }
    return plan;
  }

  // Placing has nothing more to do then; explaining looks on.
  void StopWhenFull() { stops_when_full_ = true; }

 private:
  double UseOf(const std::string& project) {
    const auto known = use_.find(project);
    const double before = known != use_.end()
                              ? known->second
                              : use_.emplace(project, state_.UsageOf(project, now_)).first->second;
    const auto used = used_.find(project);
    return used == used_.end() ? before : before + used->second;
  }

  bool EndsBeforeReservation(const Run& run) const {
    if (run.row.timeout_ms == 0 || reserved_until_ == kNever) return false;
    const uint64_t left = run.row.timeout_ms - std::min(run.row.timeout_ms, run.status.active_ms);
    return now_.ms + static_cast<int64_t>(left) <= reserved_until_;
  }

  // Only the first run that waits for slots gets a reservation, of a worker that it may use.
  template <typename MayTake>
  void Reserve(const MayTake& may_take) {
    if (reserved_ != nullptr) return;
    std::tuple<int64_t, size_t> best;
    for (const Capacity& capacity : workers_) {
      const Worker& worker = *capacity.worker;
      if (!may_take(worker)) continue;
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
  bool stops_when_full_ = false;
  const Worker* reserved_ = nullptr;
  int64_t reserved_until_ = 0;
  std::map<SweepId, uint64_t> placed_;
  std::map<std::string, double> use_;   // of projects, before this pass
  std::map<std::string, double> used_;  // by what this pass has placed
};

// Why no worker could take the run even when empty; empty: some could.
std::string ExplainMisfit(const State& state, const Run& run, const ResourceNeed& need,
                          const std::string& wants) {
  if (state.workers.empty()) return StrCat("needs ", wants, "; no worker has registered");
  size_t with_slots = 0;
  size_t with_labels = 0;
  size_t fitting = 0;
  size_t placeable = 0;
  for (const auto& [id, worker] : state.workers) {
    const Misfit misfit = MisfitOf(worker, run, need);
    with_slots += misfit != Misfit::kSlots ? 1 : 0;
    with_labels += misfit != Misfit::kSlots && misfit != Misfit::kLabels ? 1 : 0;
    if (misfit != Misfit::kNone) continue;
    ++fitting;
    placeable += worker.IsPlaceable() ? 1 : 0;
  }
  if (with_slots == 0) {
    return StrCat("needs ", wants, "; none of the ", state.workers.size(), " workers has so many");
  }
  if (with_labels == 0) {
    std::string labels;
    for (const std::string& label : run.row.policy.labels) {
      labels += StrCat(labels.empty() ? "" : ", ", label);
    }
    return StrCat("needs ", wants, " on a worker labelled ", labels, "; none of the ", with_slots,
                  " that are large enough is");
  }
  if (fitting == 0) {
    return StrCat("needs ", wants, " and ", need.memory_bytes,
                  " bytes of memory on one worker; none has so much");
  }
  if (placeable == 0) {
    return StrCat("needs ", wants, "; ", fitting,
                  " workers would do, and none is ready (in contact, open, not cordoned)");
  }
  return {};
}

std::string ExplainRoom(const State& state, const Run& run, const ResourceNeed& need,
                        const std::string& wants) {
  uint32_t free = 0;
  size_t placeable = 0;
  for (const auto& [id, worker] : state.workers) {
    if (!worker.IsPlaceable() || MisfitOf(worker, run, need) != Misfit::kNone) continue;
    ++placeable;
    free = std::max(free, worker.CountFree(need.slots.kind));
  }
  const std::string where = StrCat(placeable, placeable == 1 ? " worker" : " workers");
  if (free >= need.slots.count) {
    return StrCat("needs ", wants,
                  run.row.policy.exclusive ? " on a worker of its own; none of "
                                           : " and its memory; none of ",
                  where, run.row.policy.exclusive ? " is empty" : " has enough left");
  }
  return StrCat("needs ", wants, "; at most ", free, " are free on one of ", where);
}

}  // namespace

std::optional<Timestamp> HeldAfterRestore(const State& state, const Run& run) {
  if (state.generation <= 1 || !run.is_loaded || run.row.policy.profile != Profile::kExclusive ||
      GenerationOf(run.status.current_epoch) >= state.generation) {
    return std::nullopt;
  }
  return state.loaded_at + *ReplaceAfter(Profile::kExclusive, state.leases);
}

std::vector<Placement> PlanPlacements(const State& state, Timestamp now, size_t limit,
                                      const std::set<RunId>& skip) {
  if (state.queue.empty()) return {};
  Planner planner(state, now);
  planner.StopWhenFull();
  return planner.Plan(limit, skip, [](const Run&, Planner::Verdict) { return true; });
}

std::string ExplainWait(const State& state, const Run& run, Timestamp now) {
  const ResourceNeed need = NeedOf(run);
  const std::string wants = StrCat(need.slots.count, " ", Name(need.slots.kind),
                                   need.slots.count == 1 ? " slot" : " slots");
  // The pass that would come now, up to this run.
  std::optional<Planner::Verdict> verdict;
  Planner planner(state, now);
  planner.Plan(kPlacementsMax, {}, [&](const Run& seen, Planner::Verdict found) {
    if (seen.row.id == run.row.id) verdict = found;
    return !verdict.has_value();
  });
  if (!verdict.has_value()) {
    // Not reached: its line waits with an earlier run that is alike.
    std::vector<Placement> none;
    verdict = Planner(state, now).Try(run, &none);
    if (verdict == Planner::Verdict::kPlaced) {
      return StrCat("needs ", wants, "; runs before it take what is free");
    }
  }
  switch (*verdict) {
    case Planner::Verdict::kPlaced:
      return StrCat("needs ", wants, ", which are free: placed in the next pass");
    case Planner::Verdict::kNotWanted:
      return "no sweep that proposed it is active";
    case Planner::Verdict::kHeld:
      return StrCat("waits ", (*HeldAfterRestore(state, run) - now).count() / 1000,
                    " s: it runs exclusively, and an attempt from before the restore of the "
                    "database may still execute");
    case Planner::Verdict::kMaxParallel:
      return StrCat("its sweep has ", ActiveOf(state, run.row.sweep),
                    " active runs, and max_parallel is ", run.row.max_parallel);
    case Planner::Verdict::kStore:
      if (run.checkpoints.empty()) {
        return StrCat("waits for ", wants, " on a worker of checkpoint store ",
                      run.row.policy.start_store, ", which holds what it begins with");
      }
      return StrCat("waits for ", wants, " on a worker that reaches its checkpoint at step ",
                    run.checkpoints.back().step);
    case Planner::Verdict::kBlamed:
      return StrCat("waits for ", wants, " on a worker on which it has not failed yet");
    case Planner::Verdict::kReserved:
      return StrCat("needs ", wants,
                    "; the free ones are kept for a run before it that needs more, and its own "
                    "time limit does not end before that");
    case Planner::Verdict::kNoRoom:
      break;
  }
  const std::string misfit = ExplainMisfit(state, run, need, wants);
  return misfit.empty() ? ExplainRoom(state, run, need, wants) : misfit;
}

}  // namespace switchyard::scheduler
