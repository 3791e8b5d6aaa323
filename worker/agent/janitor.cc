#include "worker/agent/janitor.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"

namespace switchyard::agent {
namespace {

constexpr int64_t kQuietMs = 500;
// A bound on inodes: beyond it deletions run beside launches.
constexpr size_t kPathsMax = 20'000;

}  // namespace

struct Janitor::State {
  const std::function<Status(const std::string&)> remove;
  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex.
  std::deque<std::string> paths;
  bool is_stopped = false;
  bool has_ended = false;
  std::atomic<int64_t> busy_until_ms = 0;

  void Run() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return is_stopped || !paths.empty(); });
      if (is_stopped) break;
      const int64_t wait_ms = busy_until_ms - MonotonicNow().ms;
      if (wait_ms > 0 && paths.size() < kPathsMax) {
        changed.wait_for(lock, std::chrono::milliseconds(wait_ms), [this] { return is_stopped; });
        continue;
      }
      const std::string path = std::move(paths.front());
      paths.pop_front();
      lock.unlock();
      if (const Status status = remove(path); !status.ok()) LogWarning(status.message());
      lock.lock();
    }
    has_ended = true;
    changed.notify_all();
  }
};

Janitor::Janitor(std::function<Status(const std::string&)> remove)
    : state_(new State{.remove = std::move(remove)}), thread_([state = state_] { state->Run(); }) {}
Janitor::~Janitor() { Stop(); }

void Janitor::Remove(std::string path) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->paths.push_back(std::move(path));
  }
  state_->changed.notify_all();
}

void Janitor::Postpone() { state_->busy_until_ms = MonotonicNow().ms + kQuietMs; }

void Janitor::Stop(std::chrono::milliseconds limit) {
  if (!thread_.joinable()) return;
  bool has_ended = false;
  {
    std::unique_lock lock(state_->mutex);
    state_->is_stopped = true;
    state_->changed.notify_all();
    has_ended = state_->changed.wait_for(lock, limit, [this] { return state_->has_ended; });
  }
  if (has_ended) {
    thread_.join();
  } else {
    LogWarning("a folder is still being removed; it is left as it is");
    thread_.detach();
  }
}

}  // namespace switchyard::agent
