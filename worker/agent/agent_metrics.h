#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Registry;
}

namespace switchyard::agent {

// The agent's Prometheus metrics (switchyard_agent_*). Loop thread only; scrapes may run beside it.
class AgentMetrics {
 public:
  AgentMetrics(std::shared_ptr<prometheus::Registry> registry, const std::string& worker,
               const std::string& pool);
  ~AgentMetrics();

  struct Snapshot {
    bool connected = false;
    uint64_t trainers = 0;
    uint64_t spool_bytes = 0;
    double spool_oldest_timestamp_seconds = 0;  // 0: empty
    uint64_t unacked_lines = 0;
    uint64_t disk_free_bytes = 0;
    uint64_t disk_size_bytes = 0;
    double clock_offset_seconds = 0;
  };
  void Set(const Snapshot& snapshot);

  struct SlotUse {
    uint32_t slot = 0;
    std::string uuid;  // GPUs only
    std::string run;   // empty: free
    uint32_t rank = 0;
    bool operator==(const SlotUse&) const = default;
  };
  // Join key from slots to live runs; free slots have no series.
  void SetSlots(const std::vector<SlotUse>& slots);

  void CountAdoption();
  void CountFence();
  void ObserveLaunch(double seconds);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::agent
