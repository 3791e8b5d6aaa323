#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/scheduler/decision.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
template <typename T>
class Family;
}  // namespace prometheus

namespace switchyard::server_metrics {

enum class QueueClass : uint8_t { kHeartbeat = 0, kMutation = 1, kAppend = 2, kQuery = 3 };
inline constexpr size_t kQueueClasses = 4;

// Requests by method. Thread-safe; labels are made once, at start.
class RpcFamilies {
 public:
  RpcFamilies(prometheus::Registry* registry, const std::vector<std::string>& methods);
  void Started();
  // `code`: gRPC's number.
  void Finished(size_t method, int code, double seconds);

 private:
  static constexpr size_t kCodes = 17;
  std::vector<std::array<prometheus::Counter*, kCodes>> handled_;
  std::vector<prometheus::Histogram*> handling_;
  prometheus::Gauge* inflight_;
};

// Every family of the coordinator that has no live run in its labels. Counters start at 0. The
// members are thread-safe; the methods belong to the reducer's thread.
class Families {
 public:
  struct Build {
    std::string version;
    std::string commit;
    std::string sqlite;
    double start_unix_seconds = 0;
  };
  Families(std::shared_ptr<prometheus::Registry> registry, const Build& build);

  // Gauges and counters that follow what the core decided; `before` is the state that the decision
  // was made in.
  // What counts only once it is committed is added to `later`.
  void Observe(const scheduler::State& before, const scheduler::Decision& decision,
               std::vector<std::function<void()>>* later);
  // Workers, slots, runs and sweeps by state, counted anew.
  void CountState(const scheduler::State& state);
  // Splits the wall time since the last call among the slots.
  void CountSlotSeconds(const scheduler::State& state, double seconds);
  // Counters of a project, at 0 before its first event.
  void AddProject(const std::string& project);
  void AddPool(const std::string& pool);
  // A terminal sweep and its runs, which are not in memory.
  void AddStoredSweep(const std::string& project, scheduler::SweepState state,
                      const scheduler::StateCounts& counts);

  prometheus::Gauge* db_generation;
  std::array<prometheus::Gauge*, 4> degraded;  // disk_full disk_low read_error restore_decision
  std::array<prometheus::Gauge*, kQueueClasses> queue_depth;
  std::array<prometheus::Gauge*, kQueueClasses> queue_bytes;
  std::array<prometheus::Counter*, kQueueClasses> queue_rejected;
  prometheus::Histogram* decide_seconds;
  prometheus::Histogram* scheduler_pass_seconds;
  prometheus::Histogram* commit_seconds;
  prometheus::Histogram* group_size;
  prometheus::Gauge* wal_bytes;
  prometheus::Gauge* database_bytes;
  prometheus::Histogram* checkpoint_seconds;
  prometheus::Gauge* disk_free;
  prometheus::Gauge* disk_size;
  prometheus::Histogram* heartbeat_delay;
  prometheus::Counter* points_committed;
  prometheus::Counter* points_duplicate;
  prometheus::Counter* points_nonfinite;
  prometheus::Counter* gap_nacks;
  std::array<prometheus::Counter*, 5> points_dropped;  // spool_full disk_full corrupt quota shed
  prometheus::Histogram* ingest_lag;
  std::map<std::string, prometheus::Counter*> checkpoint_results;
  prometheus::Histogram* trainer_checkpoint_seconds;
  prometheus::Counter* trainer_checkpoint_bytes;
  prometheus::Gauge* active_clients;
  prometheus::Counter* series_dropped;

 private:
  prometheus::Histogram& QueueWait(const std::string& pool);
  prometheus::Counter& Outcome(const std::string& project, std::string_view outcome);

  std::shared_ptr<prometheus::Registry> registry_;
  std::array<prometheus::Counter*, scheduler::kStaleKinds> stale_;
  std::array<prometheus::Counter*, scheduler::kProfileCount> lease_expired_{};
  prometheus::Family<prometheus::Gauge>* workers_;
  prometheus::Family<prometheus::Gauge>* slots_;
  prometheus::Family<prometheus::Gauge>* sweeps_;
  prometheus::Family<prometheus::Gauge>* runs_;
  prometheus::Family<prometheus::Histogram>* queue_wait_;
  prometheus::Family<prometheus::Counter>* attempts_started_;
  prometheus::Family<prometheus::Counter>* attempts_finished_;
  prometheus::Family<prometheus::Counter>* steps_redone_;
  prometheus::Family<prometheus::Counter>* quarantined_;
  prometheus::Family<prometheus::Counter>* slot_seconds_;
  std::map<std::string, std::array<prometheus::Gauge*, scheduler::kRunStates>> run_gauges_;
  std::map<std::string, std::array<prometheus::Gauge*, 6>> sweep_gauges_;
  std::map<std::string, scheduler::StateCounts> stored_runs_;
  std::map<std::string, std::array<uint64_t, 6>> stored_sweeps_;
  std::map<std::string, std::array<prometheus::Gauge*, 8>> worker_gauges_;
  std::map<std::string, std::array<prometheus::Gauge*, 3>> slot_gauges_;
  std::map<std::string, std::array<prometheus::Counter*, 4>> slot_second_counters_;
};

// The state of protocol 7.6 as one word: retired, lost, cordoned, draining, drained, suspect,
// ready, unknown.
std::string_view ShownState(const scheduler::Worker& worker);

}  // namespace switchyard::server_metrics
