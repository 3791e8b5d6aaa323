#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/clock.h"

// Numbers of protocol 5 for the `resilient` profile.
namespace switchyard::scheduler {

// A: how long a trainer runs on without contact. 24 h, or the run's time limit (0: none).
uint64_t LeaseMs(uint64_t timeout_ms);
// X: silence after which the coordinator replaces an attempt.
inline constexpr Milliseconds kReplaceAfter{10 * 60 * 1000};
// h for N workers: 5 s up to 2,500, never more than 500 heartbeats a second.
Milliseconds HeartbeatPeriod(size_t workers);
// No new work for a worker that was silent so long.
Milliseconds SuspectAfter(size_t workers);
// An attempt that was not launched in this time is killed.
inline constexpr Milliseconds kFormTimeout{120 * 1000};
// A run waits so long for a worker that reaches its newest checkpoint.
inline constexpr Milliseconds kCheckpointWait{10 * 60 * 1000};
// A stream that stays incomplete is sealed.
inline constexpr Milliseconds kSealAfter{int64_t{7} * 24 * 3600 * 1000};
// No wait of a run in BACKOFF is longer; what the wall clock says of a stored one is not believed.
inline constexpr Milliseconds kBackoffMax{10 * 60 * 1000};
inline constexpr uint32_t kGraceMs = 60000;
inline constexpr uint32_t kInfraStreakMax = 20;
inline constexpr uint64_t kQueuedMax = 10000;
inline constexpr size_t kProposalsMax = 1000;
inline constexpr size_t kPlacementsMax = 200;

// Full jitter: `random` in [0, min(1 s * 2^streak, 60 s)], at least 100 ms.
Milliseconds InfraBackoff(uint32_t streak, uint64_t random);

}  // namespace switchyard::scheduler
