#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/metrics/families.h"

namespace switchyard::app {

class Turn;

// One thing that the reducer is asked.
struct Input {
  server_metrics::QueueClass queue = server_metrics::QueueClass::kMutation;
  size_t bytes = 0;
  // Needs everything before it committed, and shares its transaction with nothing before it.
  bool is_barrier = false;
  // False: only reads, and is answered also while nothing can be written.
  bool writes = true;
  // Decides and applies through the turn. Called again, alone, after a failed group.
  std::function<void(Turn&)> decide;
  // Called instead of what `decide` would have released.
  std::function<void(const Status&)> refuse;
};

// Bounded queues by class (protocol 14). Thread-safe.
class Inbox {
 public:
  explicit Inbox(server_metrics::Families* families) : families_(families) {}

  // Refuses the input at once (kUnavailable) when its queue is full or the inbox is closed.
  void Push(Input input);
  // The coordinator's own inputs are not bounded.
  void PushOwn(Input input);
  // Next group in order of class: at most 256 inputs or 4 MiB; empty after `timeout` without any.
  // A barrier starts a group and ends it.
  std::vector<Input> Pop(Milliseconds timeout);
  bool IsEmpty();
  bool HasHeartbeats();
  void SetHeartbeatBound(size_t bound);
  // Bytes of append batches that may still come.
  size_t FreeAppendBytes();
  // Refuses everything from now on; what is in it stays.
  void Close();

 private:
  static constexpr size_t kQueues = 3;

  server_metrics::Families* const families_;
  std::mutex mu_;
  std::condition_variable changed_;
  std::array<std::deque<Input>, kQueues> queues_;  // guarded by mu_
  std::array<size_t, kQueues> bytes_{};            // guarded by mu_
  size_t heartbeat_bound_ = 4096;                  // guarded by mu_
  bool is_closed_ = false;                         // guarded by mu_
};

}  // namespace switchyard::app
