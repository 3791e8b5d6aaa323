#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace switchyard::results {

// Which runs answer a filtered or ordered question, in order, so that the pages behind the first
// one need no scan and all are over one state of the database. Bounded by entries and by memory;
// the least recently used goes first. Thread-safe.
class OrderCache {
 public:
  using Numbers = std::shared_ptr<const std::vector<uint64_t>>;

  explicit OrderCache(size_t entries_max = 16, size_t numbers_max = 8'000'000)
      : entries_max_(entries_max), numbers_max_(numbers_max) {}

  // Of this question under `id`; null: forgotten.
  Numbers Find(const std::string& question, uint64_t id);
  // Of this question where the answer cannot change any more; null: not known. Sets `id`.
  Numbers FindFinal(const std::string& question, uint64_t* id);
  // Remembers; gives the id. `is_final`: the answer cannot change any more. Too many numbers are
  // not kept.
  uint64_t Put(const std::string& question, Numbers numbers, bool is_final);

 private:
  struct Entry {
    std::string question;
    uint64_t id = 0;
    bool is_final = false;
    Numbers numbers;
  };
  template <typename Matches>
  Numbers Take(const Matches& matches, uint64_t* id);

  const size_t entries_max_;
  const size_t numbers_max_;
  std::mutex mu_;
  std::list<Entry> entries_;  // guarded by mu_; the newest first
  size_t numbers_ = 0;        // guarded by mu_
  uint64_t last_id_ = 0;      // guarded by mu_
};

}  // namespace switchyard::results
