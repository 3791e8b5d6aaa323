#include "server/app/inbox.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace switchyard::app {
namespace {

constexpr size_t kGroupInputs = 256;
constexpr size_t kGroupBytes = 4 << 20;
constexpr size_t kMutationBound = 256;
constexpr size_t kAppendBytes = 64 << 20;
// What an input occupies beside its payload.
constexpr size_t kInputOverhead = 512;

}  // namespace

void Inbox::Push(Input input) {
  const auto queue = static_cast<size_t>(input.queue);
  Status refused;
  {
    const std::lock_guard lock(mu_);
    bool is_full = false;
    switch (input.queue) {
      case server_metrics::QueueClass::kHeartbeat:
        is_full = queues_[queue].size() >= heartbeat_bound_;
        break;
      case server_metrics::QueueClass::kMutation:
        is_full = queues_[queue].size() >= kMutationBound;
        break;
      case server_metrics::QueueClass::kAppend:
      case server_metrics::QueueClass::kQuery:
        is_full = bytes_[queue] + input.bytes + kInputOverhead > kAppendBytes;
        break;
    }
    if (is_closed_) {
      refused = Unavailable("the coordinator is stopping");
    } else if (is_full) {
      refused = Unavailable("the queue is full; try again in a second");
    } else {
      bytes_[queue] += input.bytes + kInputOverhead;
      queues_[queue].push_back(std::move(input));
      families_->queue_depth[queue]->Set(static_cast<double>(queues_[queue].size()));
      families_->queue_bytes[queue]->Set(static_cast<double>(bytes_[queue]));
    }
  }
  if (refused.ok()) {
    changed_.notify_one();
    return;
  }
  families_->queue_rejected[queue]->Increment();
  input.refuse(refused);
}

void Inbox::PushOwn(Input input) {
  const auto queue = static_cast<size_t>(input.queue);
  {
    const std::lock_guard lock(mu_);
    bytes_[queue] += input.bytes + kInputOverhead;
    queues_[queue].push_back(std::move(input));
  }
  changed_.notify_one();
}

std::vector<Input> Inbox::Pop(Milliseconds timeout) {
  std::vector<Input> group;
  std::unique_lock lock(mu_);
  changed_.wait_for(lock, timeout, [this] {
    return std::ranges::any_of(queues_, [](const auto& queue) { return !queue.empty(); });
  });
  size_t bytes = 0;
  for (size_t i = 0; i < kQueues; ++i) {
    std::deque<Input>& queue = queues_[i];
    const bool had_any = !queue.empty();
    bool is_done = false;
    while (!queue.empty() && group.size() < kGroupInputs && bytes < kGroupBytes) {
      if (queue.front().is_barrier && !group.empty()) {
        is_done = true;
        break;
      }
      group.push_back(std::move(queue.front()));
      queue.pop_front();
      bytes += group.back().bytes + kInputOverhead;
      bytes_[i] -= group.back().bytes + kInputOverhead;
      if (group.back().is_barrier) {
        is_done = true;
        break;
      }
    }
    if (had_any) {
      families_->queue_depth[i]->Set(static_cast<double>(queue.size()));
      families_->queue_bytes[i]->Set(static_cast<double>(bytes_[i]));
    }
    if (is_done) break;
  }
  return group;
}

bool Inbox::IsEmpty() {
  const std::lock_guard lock(mu_);
  return std::ranges::all_of(queues_, [](const auto& queue) { return queue.empty(); });
}

bool Inbox::HasHeartbeats() {
  const std::lock_guard lock(mu_);
  return !queues_[static_cast<size_t>(server_metrics::QueueClass::kHeartbeat)].empty();
}

size_t Inbox::FreeAppendBytes() {
  const std::lock_guard lock(mu_);
  return kAppendBytes -
         std::min(kAppendBytes, bytes_[static_cast<size_t>(server_metrics::QueueClass::kAppend)]);
}

void Inbox::SetHeartbeatBound(size_t bound) {
  const std::lock_guard lock(mu_);
  heartbeat_bound_ = bound;
}

void Inbox::Close() {
  const std::lock_guard lock(mu_);
  is_closed_ = true;
}

}  // namespace switchyard::app
