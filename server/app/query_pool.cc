#include "server/app/query_pool.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>

#include <utility>

#include "common/base/strings.h"

namespace switchyard::app {
namespace {

constexpr auto kQuery = static_cast<size_t>(server_metrics::QueueClass::kQuery);

}  // namespace

QueryPool::QueryPool(std::vector<std::unique_ptr<store::ReadStore>> readers,
                     server_metrics::Families* families, size_t queue_max)
    : queue_max_(queue_max), families_(families), readers_(std::move(readers)) {
  threads_.reserve(readers_.size());
  for (const auto& reader : readers_) {
    threads_.emplace_back([this, store = reader.get()] { Loop(store); });
  }
}

QueryPool::~QueryPool() { Stop(); }

void QueryPool::Post(Work work) { Enqueue(std::move(work), /*is_bounded=*/true); }
void QueryPool::PostOwn(Work work) { Enqueue(std::move(work), /*is_bounded=*/false); }

void QueryPool::Enqueue(Work work, bool is_bounded) {
  Status refused;
  {
    const std::lock_guard lock(mu_);
    if (is_stopping_) {
      refused = Unavailable("the coordinator is stopping");
    } else if (is_bounded && queue_.size() >= queue_max_) {
      refused = Unavailable(StrCat(queue_max_, " queries wait already; try again in a second"));
    } else {
      queue_.push_back(std::move(work));
      families_->queue_depth[kQuery]->Set(static_cast<double>(queue_.size()));
    }
  }
  if (refused.ok()) {
    changed_.notify_one();
    return;
  }
  families_->queue_rejected[kQuery]->Increment();
  work(refused);
}

void QueryPool::Loop(store::ReadStore* reader) {
  std::unique_lock lock(mu_);
  while (true) {
    changed_.wait(lock, [this] { return is_stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    families_->queue_depth[kQuery]->Set(static_cast<double>(queue_.size()));
    const bool is_stopping = is_stopping_;
    lock.unlock();
    if (is_stopping) {
      work(Unavailable("the coordinator is stopping"));
    } else {
      work(reader);
    }
    work = nullptr;
    lock.lock();
  }
}

void QueryPool::Stop() {
  {
    const std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  threads_.clear();
  readers_.clear();
}

}  // namespace switchyard::app
