#include "server/scheduler/lease_policy.h"

#include <algorithm>
#include <limits>

namespace switchyard::scheduler {
namespace {

constexpr int64_t kJitterMinMs = 100;

Milliseconds FullJitter(int64_t cap_ms, uint64_t random) {
  return Milliseconds(
      std::max(kJitterMinMs, static_cast<int64_t>(random % (static_cast<uint64_t>(cap_ms) + 1))));
}

}  // namespace

uint64_t LeaseMs(Profile profile, uint64_t timeout_ms) {
  constexpr uint64_t kDay = uint64_t{24} * 3600 * 1000;
  switch (profile) {
    case Profile::kResilient:
      return timeout_ms == 0 ? kDay : std::min(kDay, timeout_ms);
    case Profile::kExclusive:
      return 10 * 60 * 1000;
    case Profile::kLocal:
      return std::numeric_limits<uint32_t>::max();
  }
  return kDay;
}

std::optional<Milliseconds> ReplaceAfter(Profile profile) {
  switch (profile) {
    case Profile::kResilient:
      return Milliseconds(10 * 60 * 1000);
    case Profile::kExclusive:
      return Milliseconds(630 * 1000);
    case Profile::kLocal:
      return std::nullopt;
  }
  return std::nullopt;
}

Milliseconds HeartbeatPeriod(size_t workers) {
  return Milliseconds(std::max<int64_t>(5000, static_cast<int64_t>(workers) * 2));
}

Milliseconds SuspectAfter(size_t workers) {
  return std::max(Milliseconds(20000), 4 * HeartbeatPeriod(workers));
}

Milliseconds InfraBackoff(uint32_t streak, uint64_t random) {
  return FullJitter(std::min<int64_t>(60000, int64_t{1000} << std::min<uint32_t>(streak, 6)),
                    random);
}

Milliseconds FailureBackoff(uint32_t failures, uint64_t random) {
  return FullJitter(std::min<int64_t>(600000, int64_t{10000} << std::min<uint32_t>(failures, 6)),
                    random);
}

}  // namespace switchyard::scheduler
