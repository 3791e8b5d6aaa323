#include "worker/agent/agent_state_contact.h"

#include <algorithm>

namespace switchyard::agent {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kLeast = kSecond / 5;
constexpr uint64_t kRegisterMax = 120 * kSecond;
constexpr uint64_t kResendMax = 10 * kSecond;
constexpr uint64_t kRegistrationsPerSecond = 300;

uint64_t Doubled(uint64_t span, uint32_t times, uint64_t limit) {
  for (uint32_t i = 0; i < times && span < limit; ++i) span *= 2;
  return std::min(span, limit);
}

}  // namespace

uint64_t ReconnectSpanNs(uint32_t failures, uint32_t workers) {
  const uint64_t spread = std::max(kLeast, uint64_t{workers} * kSecond / kRegistrationsPerSecond);
  return Doubled(spread, failures, std::max(kRegisterMax, spread));
}

uint64_t ResendSpanNs(uint32_t failures) { return Doubled(kLeast, failures, kResendMax); }

}  // namespace switchyard::agent
