#include "server/scheduler/lease_policy.h"

#include <algorithm>

namespace switchyard::scheduler {

uint64_t LeaseMs(uint64_t timeout_ms) {
  constexpr uint64_t kDay = uint64_t{24} * 3600 * 1000;
  return timeout_ms == 0 ? kDay : std::min(kDay, timeout_ms);
}

Milliseconds HeartbeatPeriod(size_t workers) {
  return Milliseconds(std::max<int64_t>(5000, static_cast<int64_t>(workers) * 2));
}

Milliseconds SuspectAfter(size_t workers) {
  return std::max(Milliseconds(20000), 4 * HeartbeatPeriod(workers));
}

Milliseconds InfraBackoff(uint32_t streak, uint64_t random) {
  const int64_t cap = std::min<int64_t>(60000, int64_t{1000} << std::min<uint32_t>(streak, 6));
  return Milliseconds(
      std::max<int64_t>(100, static_cast<int64_t>(random % static_cast<uint64_t>(cap + 1))));
}

}  // namespace switchyard::scheduler
