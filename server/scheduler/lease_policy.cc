#include "server/scheduler/lease_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/guard.h"

namespace switchyard::scheduler {
namespace {

constexpr int64_t kJitterMinMs = 100;

Milliseconds FullJitter(int64_t cap_ms, uint64_t random) {
  return Milliseconds(
      std::max(kJitterMinMs, static_cast<int64_t>(random % (static_cast<uint64_t>(cap_ms) + 1))));
}

}  // namespace

Milliseconds SafeReplaceAfter(Milliseconds lease) {
  constexpr double kRho = 0.01;
  constexpr double kPollMs = 250;
  constexpr double kKillMs = 10000;
  constexpr double kMarginMs = 2000;
  const double ms = (static_cast<double>(lease.count()) + kPollMs) * (1 + kRho) / (1 - kRho) +
                    kKillMs * (1 + kRho) + kMarginMs;
  return Milliseconds(static_cast<int64_t>(std::ceil(ms)));
}

uint64_t LeaseMs(Profile profile, uint64_t timeout_ms, const LeasePolicy& policy) {
  const auto resilient = static_cast<uint64_t>(policy.resilient.lease.count());
  switch (profile) {
    case Profile::kResilient:
      return timeout_ms == 0 ? resilient : std::min(resilient, timeout_ms);
    case Profile::kExclusive:
      return static_cast<uint64_t>(policy.exclusive.lease.count());
    case Profile::kLocal:
      return std::numeric_limits<uint32_t>::max();
  }
  return resilient;
}

std::optional<Milliseconds> ReplaceAfter(Profile profile, const LeasePolicy& policy) {
  switch (profile) {
    case Profile::kResilient:
      return policy.resilient.replace;
    case Profile::kExclusive:
      // The kill time K is part of it.
      return policy.exclusive.replace - Milliseconds(SWITCHYARD_GUARD(X12, false) ? 16'000 : 0);
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
