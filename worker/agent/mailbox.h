#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "common/base/file.h"

namespace switchyard::agent {

// Work for the loop thread, from any thread.
class Mailbox {
 public:
  Mailbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  // Readable: there is work.
  int fd() const { return fd_.get(); }

  void Post(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    const uint64_t one = 1;
    // Fails only when the counter is full, and then the loop wakes anyway.
    (void)!write(fd_.get(), &one, sizeof(one));
  }

  std::vector<std::function<void()>> Take() {
    uint64_t count = 0;
    (void)!read(fd_.get(), &count, sizeof(count));
    const std::lock_guard lock(mutex_);
    return std::exchange(work_, {});
  }

 private:
  UniqueFd fd_;
  std::mutex mutex_;
  std::vector<std::function<void()>> work_;
};

}  // namespace switchyard::agent
