#include "server/results/order_cache.h"

#include <algorithm>
#include <utility>

namespace switchyard::results {

template <typename Matches>
OrderCache::Numbers OrderCache::Take(const Matches& matches, uint64_t* id) {
  const std::lock_guard lock(mu_);
  const auto found = std::ranges::find_if(entries_, matches);
  if (found == entries_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found);
  *id = found->id;
  return found->numbers;
}

OrderCache::Numbers OrderCache::Find(const std::string& question, uint64_t id) {
  uint64_t same = 0;
  return Take([&](const Entry& entry) { return entry.id == id && entry.question == question; },
              &same);
}

OrderCache::Numbers OrderCache::FindFinal(const std::string& question, uint64_t* id) {
  return Take([&](const Entry& entry) { return entry.is_final && entry.question == question; }, id);
}

uint64_t OrderCache::Put(const std::string& question, Numbers numbers, bool is_final) {
  const std::lock_guard lock(mu_);
  const uint64_t id = ++last_id_;
  if (numbers->size() > numbers_max_) return id;
  numbers_ += numbers->size();
  entries_.push_front({question, id, is_final, std::move(numbers)});
  while (entries_.size() > entries_max_ || numbers_ > numbers_max_) {
    numbers_ -= entries_.back().numbers->size();
    entries_.pop_back();
  }
  return id;
}

}  // namespace switchyard::results
