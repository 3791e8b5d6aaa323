#pragma once

#include <chrono>
#include <cstdint>

namespace switchyard {

using Milliseconds = std::chrono::milliseconds;

// A point on the coordinator's steady clock. The core gets it as an argument.
struct Timestamp {
  int64_t ms = 0;
  auto operator<=>(const Timestamp&) const = default;
};
inline Timestamp operator+(Timestamp t, Milliseconds d) { return {t.ms + d.count()}; }
inline Milliseconds operator-(Timestamp a, Timestamp b) { return Milliseconds(a.ms - b.ms); }

// For the shell only.
// CLOCK_MONOTONIC: stands still while the host sleeps.
Timestamp MonotonicNow();
// CLOCK_BOOTTIME in nanoseconds: counts suspend, used for leases on the worker's host.
uint64_t BoottimeNanoseconds();
// CLOCK_REALTIME: for display, never for a decision.
int64_t UnixMilliseconds();
// "2026-11-30T05:13:23.123Z".
const char* FormatUnixMilliseconds(int64_t unix_ms, char (&buffer)[32]);

}  // namespace switchyard
