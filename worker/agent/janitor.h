#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>

namespace switchyard::agent {

// Removes folders on a thread of its own while nothing is launched: ext4 passes over recently
// deleted inodes one by one, which makes launches right after many deletions ten times slower.
// Thread-safe.
class Janitor {
 public:
  Janitor();
  ~Janitor();
  void Remove(std::string path);
  // A launch just happened: deletions wait half a second more, unless too many have piled up.
  void Postpone();
  // Ends the thread; what is left stays on disk and is found again at the next start.
  void Stop();

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> paths_;
  bool stopped_ = false;
  std::atomic<int64_t> busy_until_ms_ = 0;
  std::thread thread_;
};

}  // namespace switchyard::agent
