#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/file.h"

namespace switchyard::agent {

// Removes folders on a thread of its own while nothing is launched: ext4 passes over recently
// deleted inodes one by one, which makes launches right after many deletions ten times slower.
// Thread-safe.
class Janitor {
 public:
  // `remove` of one folder: RemoveTree, but in tests.
  explicit Janitor(std::function<Status(const std::string&)> remove = RemoveTree);
  ~Janitor();
  void Remove(std::string path);
  // A launch just happened: deletions wait half a second more, unless too many have piled up.
  void Postpone();
  // Ends the thread; what is left stays on disk and is found again at the next start. A deletion
  // that does not end within `limit` (a shared file system that hangs) goes with the process.
  void Stop(std::chrono::milliseconds limit = std::chrono::seconds(2));

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too
  std::thread thread_;
};

}  // namespace switchyard::agent
