#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tests/simulation/engine.h"

// The faults of a seed, drawn before it runs, so that single ones can be left out.
namespace switchyard::simulation {

// clang-format off
#define SWITCHYARD_FAULTS(X) \
  X(coordinator_kill) X(coordinator_pause) X(coordinator_disk_full) X(coordinator_sync_error) \
  X(coordinator_wal_loss) X(coordinator_restore) X(coordinator_crash_point) \
  X(agent_kill) X(agent_stop) X(agent_crash_point) X(fork_server_kill) X(fork_server_slow) \
  X(fork_server_slow_and_agent_kill) X(trainer_kill) X(trainer_stop) X(trainer_term) \
  X(trainer_fail) X(trainer_exit_zero) X(watchdog_starved) X(step_hung) X(exit_slow) \
  X(host_crash) X(host_pause) X(host_suspend) X(host_disk_full) X(pid_reuse) X(checkpoint_damage) \
  X(cut_to_coordinator) X(cut_from_coordinator) X(cut_both) X(loss) X(doubling) X(delay) \
  X(clock_rate) X(wall_jump) \
  X(cancel_run) X(cancel_sweep) X(submit) X(request_id_again) \
  X(steer_run) X(steer_sweep) X(steer_worker) X(credits_short)
// clang-format on

enum class FaultKind : uint8_t {
#define SWITCHYARD_FAULT(name) name,
  SWITCHYARD_FAULTS(SWITCHYARD_FAULT)
#undef SWITCHYARD_FAULT
      kCount
};
inline constexpr size_t kFaultKinds = static_cast<size_t>(FaultKind::kCount);
std::string_view Name(FaultKind kind);

struct Fault {
  Nanos at = 0;
  FaultKind kind = FaultKind::coordinator_kill;
  Nanos duration = 0;
  uint64_t arg = 0;
  std::string ToString() const;
};

struct Mix {
  std::string_view name;
  std::vector<FaultKind> kinds;  // empty: a random subset of all
  double lease_share = 0.4;      // runs whose time limit makes their lease end before a replacement
  double infra_rate = 0;         // trainers that find no device
  Nanos phase_min = 6 * kMin;
  Nanos phase_max = 20 * kMin;
  Nanos settle_max = 90 * kMin;  // after the faults, until everything has ended
  uint64_t steps_min = 10;       // of a run, of 1 to 18 s each
  uint64_t steps_max = 45;
};
// Null: unknown.
const Mix* FindMix(std::string_view name);
std::vector<std::string_view> MixNames();

std::vector<Fault> DrawFaults(const Mix& mix, uint64_t seed, Nanos phase);

}  // namespace switchyard::simulation
