#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

// Virtual time and what lives in it. Nothing here or above it reads a real clock, a random device,
// or an address: a seed is a run.
namespace switchyard::simulation {

using Nanos = uint64_t;
inline constexpr Nanos kMs = 1'000'000;
inline constexpr Nanos kSec = 1000 * kMs;
inline constexpr Nanos kMin = 60 * kSec;

// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return bound == 0 ? 0 : Next() % bound; }
  // Both ends included.
  uint64_t Between(uint64_t low, uint64_t high) { return low + Below(high - low + 1); }
  bool Chance(double p) { return static_cast<double>(Next() >> 11) * 0x1.0p-53 < p; }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_;
};

using Work = std::function<void()>;

class Engine {
 public:
  Nanos now() const { return now_; }
  uint64_t events() const { return events_; }

  void At(Nanos time, Work work) {
    uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<uint32_t>(work_.size());
      work_.push_back(std::move(work));
    } else {
      slot = free_.back();
      free_.pop_back();
      work_[slot] = std::move(work);
    }
    queue_.push({std::max(time, now_), ++order_, slot});
  }
  // False: nothing is left before `until`, and it is now `until`.
  bool Step(Nanos until) {
    if (queue_.empty() || queue_.top().time > until) {
      now_ = std::max(now_, until);
      return false;
    }
    const Entry entry = queue_.top();
    queue_.pop();
    now_ = entry.time;
    ++events_;
    const Work work = std::move(work_[entry.slot]);
    work_[entry.slot] = nullptr;
    free_.push_back(entry.slot);
    work();
    return true;
  }

 private:
  struct Entry {
    Nanos time;
    uint64_t order;
    uint32_t slot;
    bool operator>(const Entry& other) const {
      return time != other.time ? time > other.time : order > other.order;
    }
  };

  Nanos now_ = 0;
  uint64_t order_ = 0;
  uint64_t events_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
  std::vector<Work> work_;
  std::vector<uint32_t> free_;
};

// Something that can be killed, stopped and continued. Work posted to it is dropped when the life
// it was posted to is over, and waits while it is stopped.
class Process {
 public:
  bool is_alive() const { return is_alive_; }
  bool is_stopped() const { return stops_ > 0; }
  uint64_t life() const { return life_; }

  void Start() {
    is_alive_ = true;
    ++life_;
    waiting_.clear();
  }
  void Kill() {
    is_alive_ = false;
    ++life_;
    waiting_.clear();
  }
  void Stop() { ++stops_; }
  void Continue(Engine& engine) {
    if (stops_ == 0 || --stops_ > 0) return;
    std::vector<Work> waiting = std::move(waiting_);
    waiting_.clear();
    for (Work& work : waiting) Post(engine, engine.now(), std::move(work));
  }
  void Post(Engine& engine, Nanos time, Work work) {
    engine.At(time, [this, life = life_, work = std::move(work)] {
      if (!is_alive_ || life_ != life) return;
      if (stops_ > 0) {
        waiting_.push_back(work);
      } else {
        work();
      }
    });
  }

 private:
  bool is_alive_ = false;
  uint32_t stops_ = 0;
  uint64_t life_ = 0;
  std::vector<Work> waiting_;
};

}  // namespace switchyard::simulation
