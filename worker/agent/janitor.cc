#include "worker/agent/janitor.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

namespace switchyard::agent {
namespace {

constexpr int64_t kQuietMs = 500;
// A bound on inodes: beyond it deletions run beside launches.
constexpr size_t kPathsMax = 20'000;

}  // namespace

Janitor::Janitor() : thread_([this] { Run(); }) {}
Janitor::~Janitor() { Stop(); }

void Janitor::Remove(std::string path) {
  {
    const std::lock_guard lock(mutex_);
    paths_.push_back(std::move(path));
  }
  changed_.notify_one();
}

void Janitor::Postpone() { busy_until_ms_ = MonotonicNow().ms + kQuietMs; }

void Janitor::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Janitor::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !paths_.empty(); });
    if (stopped_) return;
    const int64_t wait_ms = busy_until_ms_ - MonotonicNow().ms;
    if (wait_ms > 0 && paths_.size() < kPathsMax) {
      changed_.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return stopped_; });
      continue;
    }
    const std::string path = std::move(paths_.front());
    paths_.pop_front();
    lock.unlock();
    if (const Status status = RemoveTree(path); !status.ok()) LogWarning(status.message());
    lock.lock();
  }
}

}  // namespace switchyard::agent
