#include "common/base/clock.h"

#include <cstdio>
#include <ctime>

namespace switchyard {
namespace {

uint64_t Nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000ULL + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

Timestamp MonotonicNow() {
  return {static_cast<int64_t>(Nanoseconds(CLOCK_MONOTONIC) / 1'000'000)};
}
uint64_t BoottimeNanoseconds() { return Nanoseconds(CLOCK_BOOTTIME); }
int64_t UnixMilliseconds() { return static_cast<int64_t>(Nanoseconds(CLOCK_REALTIME) / 1'000'000); }

const char* FormatUnixMilliseconds(int64_t unix_ms, char (&buffer)[32]) {
  const time_t seconds = unix_ms / 1000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  const size_t used = std::strftime(buffer, sizeof(buffer), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(buffer + used, sizeof(buffer) - used, ".%03dZ",
                static_cast<int>(((unix_ms % 1000) + 1000) % 1000));
  return buffer;
}

}  // namespace switchyard
