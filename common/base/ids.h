#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace switchyard {

// 128 bits, written as 36 characters. Ordered by value, so that version 7 sorts by time.
struct Uuid {
  uint64_t high = 0;
  uint64_t low = 0;

  bool is_nil() const { return high == 0 && low == 0; }
  std::string ToString() const;
  // kInvalidArgument unless it is 8-4-4-4-12 lower- or upper-case hex.
  static Result<Uuid> Parse(std::string_view text);
  // Version 7: `unix_ms` and 74 random bits.
  static Uuid V7(int64_t unix_ms, uint64_t random_high, uint64_t random_low);
  // Version 4.
  static Uuid V4(uint64_t random_high, uint64_t random_low);
  auto operator<=>(const Uuid&) const = default;
};

// A distinct type for each kind of id: never a bare integer or string.
template <typename Tag, typename Value>
struct Id {
  Value value{};
  auto operator<=>(const Id&) const = default;
};

using SweepId = Id<struct SweepTag, Uuid>;
using RunId = Id<struct RunTag, Uuid>;
using WorkerId = Id<struct WorkerTag, Uuid>;
// Fencing number of an attempt, its identity: strictly rising over the cluster, top 16 bits are the
// database generation.
using Epoch = Id<struct EpochTag, uint64_t>;

// Process-wide random ids from the kernel's generator; for the shell, never for the core.
Uuid NewUuidV7();
Uuid NewUuidV4();

}  // namespace switchyard

template <>
struct std::hash<switchyard::Uuid> {
  size_t operator()(const switchyard::Uuid& id) const noexcept {
    return static_cast<size_t>(id.high ^ (id.low * 0x9e3779b97f4a7c15ULL));
  }
};
template <typename Tag, typename Value>
struct std::hash<switchyard::Id<Tag, Value>> {
  size_t operator()(const switchyard::Id<Tag, Value>& id) const noexcept {
    return std::hash<Value>{}(id.value);
  }
};
