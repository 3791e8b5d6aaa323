#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "server/api/core.h"
#include "server/metrics/families.h"

namespace switchyard::app {

// A few threads with a read-only connection each, behind a bounded queue. Thread-safe.
class QueryPool final : public api::Readers {
 public:
  // One thread per reader.
  QueryPool(std::vector<std::unique_ptr<store::ReadStore>> readers,
            server_metrics::Families* families, size_t queue_max = 64);
  ~QueryPool() override;

  void Post(std::function<void(Result<store::ReadStore*>)> work) override;
  // Beyond the bound: for the coordinator's own work, of which there is little.
  void PostOwn(std::function<void(Result<store::ReadStore*>)> work);
  // Refuses what waits and what comes, and ends the threads.
  void Stop();

 private:
  using Work = std::function<void(Result<store::ReadStore*>)>;
  void Enqueue(Work work, bool is_bounded);
  void Loop(store::ReadStore* reader);

  const size_t queue_max_;
  server_metrics::Families* const families_;
  std::vector<std::unique_ptr<store::ReadStore>> readers_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Work> queue_;    // guarded by mu_
  bool is_stopping_ = false;  // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace switchyard::app
