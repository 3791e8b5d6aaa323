#include "tests/simulation/faults.h"

#include <algorithm>

#include "common/base/strings.h"

namespace switchyard::simulation {
namespace {

using K = FaultKind;

constexpr std::string_view kNames[] = {
#define SWITCHYARD_FAULT(name) #name,
    SWITCHYARD_FAULTS(SWITCHYARD_FAULT)
#undef SWITCHYARD_FAULT
};

const std::vector<Mix>& Mixes() {
  static const std::vector<Mix> mixes = {
      {.name = "swarm", .kinds = {}},
      // One cause at a time, for guards that a swarm seldom needs.
      {.name = "leases",
       .kinds = {K::agent_kill, K::agent_stop, K::cut_both, K::cut_from_coordinator,
                 K::cut_to_coordinator, K::watchdog_starved, K::step_hung, K::host_suspend,
                 K::trainer_stop, K::exit_slow, K::delay, K::loss, K::clock_rate},
       .lease_share = 1.0},
      // Trainers that live past their lease, and take their time to be gone.
      {.name = "fences",
       .kinds = {K::cut_both, K::cut_to_coordinator, K::exit_slow, K::clock_rate},
       .lease_share = 1.0,
       .phase_min = 25 * kMin,
       .phase_max = 30 * kMin,
       .settle_max = 600 * kMin,
       .steps_min = 90,
       .steps_max = 150},
      {.name = "launch",
       .kinds = {K::fork_server_slow, K::fork_server_kill, K::fork_server_slow_and_agent_kill,
                 K::agent_kill, K::agent_crash_point, K::pid_reuse, K::trainer_kill, K::exit_slow,
                 K::cancel_run, K::submit}},
      {.name = "network",
       .kinds = {K::loss, K::doubling, K::delay, K::cut_both, K::agent_kill, K::agent_crash_point,
                 K::coordinator_kill, K::trainer_kill, K::cancel_run, K::submit}},
      {.name = "coordinator",
       .kinds = {K::coordinator_kill, K::coordinator_pause, K::coordinator_crash_point},
       .lease_share = 0},
      // Nothing but a coordinator that stands still, also for longer than X.
      {.name = "pauses", .kinds = {K::coordinator_pause, K::delay}, .lease_share = 0},
      {.name = "store",
       .kinds = {K::coordinator_disk_full, K::coordinator_sync_error, K::coordinator_crash_point,
                 K::coordinator_kill, K::cancel_run, K::cancel_sweep, K::submit,
                 K::request_id_again, K::loss}},
      {.name = "restore",
       .kinds = {K::coordinator_wal_loss, K::coordinator_restore, K::coordinator_kill,
                 K::agent_kill, K::cancel_run, K::submit}},
      {.name = "restored",
       .kinds = {K::coordinator_wal_loss, K::coordinator_restore, K::cut_both,
                 K::cut_to_coordinator, K::agent_kill, K::agent_stop, K::submit},
       .lease_share = 1.0},
      {.name = "hosts",
       .kinds = {K::host_crash, K::host_pause, K::host_suspend, K::host_disk_full, K::trainer_kill,
                 K::agent_kill, K::checkpoint_damage, K::clock_rate, K::trainer_exit_zero,
                 K::trainer_fail}},
      {.name = "users",
       .kinds = {K::cancel_run, K::cancel_sweep, K::submit, K::request_id_again, K::trainer_term,
                 K::exit_slow, K::coordinator_crash_point, K::loss, K::cut_both, K::agent_stop,
                 K::steer_run, K::steer_sweep, K::steer_worker}},
      {.name = "infra",
       .kinds = {K::trainer_kill, K::agent_kill, K::coordinator_kill},
       .infra_rate = 0.97,
       .phase_min = 18 * kMin,
       .phase_max = 25 * kMin},
  };
  return mixes;
}

// Shortest and longest, in milliseconds.
std::pair<uint64_t, uint64_t> DurationOf(FaultKind kind, Random& random) {
  const bool is_long = random.Chance(0.2);
  switch (kind) {
    case K::coordinator_kill:
    case K::coordinator_wal_loss:
    case K::coordinator_restore:
    case K::coordinator_crash_point:
      return {100, is_long ? 120'000 : 10'000};
    case K::coordinator_pause:
      return {500, is_long ? 1'200'000 : 60'000};
    case K::coordinator_disk_full:
      return {1000, is_long ? 120'000 : 20'000};
    case K::agent_kill:
    case K::agent_crash_point:
    case K::fork_server_slow_and_agent_kill:
      return {100, is_long ? 800'000 : 20'000};
    case K::agent_stop:
    case K::trainer_stop:
      return {500, is_long ? 800'000 : 30'000};
    case K::fork_server_slow:
      return {5000, 60'000};
    case K::watchdog_starved:
      return {10'000, 900'000};
    case K::exit_slow:
      // Often just short of the time that a kill may take.
      if (random.Chance(0.3)) return {8000, 10'000};
      return {500, is_long ? 120'000 : 12'000};
    case K::host_crash:
      return {2000, is_long ? 800'000 : 60'000};
    case K::host_pause:
      return {500, 60'000};
    case K::host_suspend:
      return {30'000, 1'500'000};
    case K::host_disk_full:
      return {5000, 120'000};
    case K::cut_to_coordinator:
    case K::cut_from_coordinator:
    case K::cut_both:
      return {1000, is_long ? 900'000 : 60'000};
    case K::loss:
    case K::doubling:
    case K::delay:
    case K::credits_short:
      return {5000, 180'000};
    default:
      return {1, 1};
  }
}

}  // namespace

std::string_view Name(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::string Fault::ToString() const {
  return StrCat("t=", at / kMs, " ms ", Name(kind), " for ", duration / kMs, " ms, arg ", arg);
}

const Mix* FindMix(std::string_view name) {
  for (const Mix& mix : Mixes()) {
    if (mix.name == name) return &mix;
  }
  return nullptr;
}

std::vector<std::string_view> MixNames() {
  std::vector<std::string_view> names;
  for (const Mix& mix : Mixes()) names.push_back(mix.name);
  return names;
}

std::vector<Fault> DrawFaults(const Mix& mix, uint64_t seed, Nanos phase) {
  Random random(seed * 0x2545f4914f6cdd1dULL + 17);
  std::vector<FaultKind> kinds = mix.kinds;
  if (kinds.empty()) {
    // A swarm: which kinds there are at all differs from seed to seed (Groce et al., "Swarm
    // testing", 2012).
    const double share = 0.15 + 0.1 * static_cast<double>(random.Below(6));
    for (size_t i = 0; i < kFaultKinds; ++i) {
      const auto kind = static_cast<FaultKind>(i);
      if (random.Chance(share)) kinds.push_back(kind);
    }
    if (kinds.empty()) kinds.push_back(K::agent_kill);
  }
  const uint64_t count = random.Between(20, 52);
  std::vector<Fault> faults;
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault{.at = random.Below(phase), .kind = kinds[random.Below(kinds.size())]};
    const auto [low, high] = DurationOf(fault.kind, random);
    fault.duration = random.Between(low, high) * kMs;
    fault.arg = random.Next();
    faults.push_back(fault);
  }
  std::ranges::stable_sort(faults, {}, &Fault::at);
  return faults;
}

}  // namespace switchyard::simulation
