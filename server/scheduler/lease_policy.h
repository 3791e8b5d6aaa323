#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/base/clock.h"
#include "server/scheduler/rows.h"

// Numbers of leases, back-off, budgets and fair share (protocol 5, 13.3, 15; operations 10).
namespace switchyard::scheduler {

// What an operator may set. `lease` is A: how long a trainer runs on without contact. `replace` is
// X: silence after which the coordinator replaces an attempt.
struct LeaseTimes {
  Milliseconds lease;
  Milliseconds replace;
};
struct LeasePolicy {
  LeaseTimes resilient{Milliseconds(int64_t{24} * 3600 * 1000), Milliseconds(10 * 60 * 1000)};
  LeaseTimes exclusive{Milliseconds(10 * 60 * 1000), Milliseconds(630 * 1000)};
};
// Bounds of both: four heartbeat periods of 5 s for the silence, two for the lease, or contact as
// it should be would already end attempts; 30 days are less than a lease can say (32 bits of
// milliseconds).
inline constexpr Milliseconds kLeaseMin{10 * 1000};
inline constexpr Milliseconds kReplaceMin{20 * 1000};
inline constexpr Milliseconds kLeaseTimeMax{int64_t{30} * 24 * 3600 * 1000};
// The least X with which no second attempt starts before the trainer of the first has ended:
// (A + p)(1 + rho)/(1 - rho) + K(1 + rho) + margin with rho 1 %, p 0.25 s, K 10 s, margin 2 s
// (protocol 5).
Milliseconds SafeReplaceAfter(Milliseconds lease);

// A of a profile. `resilient`: at most the run's time limit (0: none); `local`: as long as a lease
// can say (49 days).
uint64_t LeaseMs(Profile profile, uint64_t timeout_ms, const LeasePolicy& policy = {});
// X of a profile; nullopt: an attempt is replaced only when its end is confirmed.
std::optional<Milliseconds> ReplaceAfter(Profile profile, const LeasePolicy& policy = {});
// A worker without attempts that was silent so long is LOST.
inline constexpr Milliseconds kLostAfter{10 * 60 * 1000};
// A worker that was LOST so long is not shown any more, until it registers again.
inline constexpr Milliseconds kRetireAfter{int64_t{24} * 3600 * 1000};
// h for N workers: 5 s up to 2,500, never more than 500 heartbeats a second.
Milliseconds HeartbeatPeriod(size_t workers);
// No new work for a worker that was silent so long.
Milliseconds SuspectAfter(size_t workers);
// An attempt that was not launched in this time is killed.
inline constexpr Milliseconds kFormTimeout{120 * 1000};
// A run waits so long for a worker that reaches its newest checkpoint.
inline constexpr Milliseconds kCheckpointWait{10 * 60 * 1000};
// A superseded checkpoint becomes a tombstone, and may be deleted, after this time.
inline constexpr Milliseconds kTombstoneAfter{int64_t{24} * 3600 * 1000};
// Checkpoints to delete that one answer to a worker names.
inline constexpr size_t kGcCheckpointsMax = 100;
// A stream that stays incomplete is sealed.
inline constexpr Milliseconds kSealAfter{int64_t{7} * 24 * 3600 * 1000};
// No wait of a run in BACKOFF is longer; what the wall clock says of a stored one is not believed.
inline constexpr Milliseconds kBackoffMax{10 * 60 * 1000};
// From the agent's first sight of a request to stop until SIGKILL.
inline constexpr uint32_t kGraceMs = 60000;
inline constexpr uint32_t kInfraStreakMax = 20;
// Ends together with the agent or the host that quarantine a run.
inline constexpr uint32_t kCrashesMax = 2;
// Infrastructure ends of a run on one worker after which others are tried.
inline constexpr uint32_t kInfraEndsPerWorker = 2;
// Infrastructure failures of so many runs in so short a time cordon a worker.
inline constexpr size_t kCordonRuns = 3;
inline constexpr Milliseconds kCordonWindow{10 * 60 * 1000};
// First attempts that fail alike before their first step pause a sweep.
inline constexpr uint32_t kBreakerFailures = 5;
inline constexpr uint64_t kQueuedMax = 10000;
inline constexpr size_t kProposalsMax = 1000;
inline constexpr size_t kPlacementsMax = 200;
// Fair share: half of a project's use is forgotten in this time.
inline constexpr double kUsageHalfLifeSeconds = 24 * 3600;
// A placement counts as this much use within its own pass, so that projects take turns.
inline constexpr double kPlacedSlotSeconds = 60;

// Full jitter: `random` in [0, min(1 s * 2^streak, 60 s)], at least 100 ms.
Milliseconds InfraBackoff(uint32_t streak, uint64_t random);
// The same in [0, min(10 s * 2^n, 10 min)], n: ends of the class in a row.
Milliseconds FailureBackoff(uint32_t failures, uint64_t random);

}  // namespace switchyard::scheduler
