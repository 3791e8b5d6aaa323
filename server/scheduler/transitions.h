#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "server/scheduler/rows.h"
#include "server/scheduler/state.h"

// The state machines of the protocol: one table each, the only place that says what may follow
// what. docs/protocol.md shows them and is compared with them by a test.
namespace switchyard::scheduler {

// Of the coordinator itself. RESTORE_DECISION and EXIT are ends of the process.
enum class CoordinatorState : uint8_t {
  kBoot = 1,
  kRecovering = 2,
  kServing = 3,
  kDegraded = 4,
  kDraining = 5,
  kRestoreDecision = 6,
  kExit = 7,
};
std::string_view Name(CoordinatorState state);

enum class Machine : uint8_t {
  kSweep,
  kRun,
  kAttempt,
  kMember,
  kContact,
  kAdmin,
  kCordon,
  kCheckpoint,
  kCoordinator,
};
inline constexpr size_t kMachines = 9;

// One way from a state to another. Two rows may lead along the same way, by different triggers.
struct Transition {
  std::string_view id;  // "R9"
  uint8_t from = 0;     // 0: it comes into being
  uint8_t to = 0;
  std::string_view trigger;
  std::string_view guard;
  std::string_view effects;  // durable ones
};

// In the order of their ids.
std::span<const Transition> TableOf(Machine machine);
std::string_view Title(Machine machine);
// Name of a state by its number; 0 and unknown numbers: "-".
std::string_view StateName(Machine machine, uint8_t state);
// States are numbered from 1; this is how many there are.
uint8_t CountStates(Machine machine);
// Nothing leads out of it.
bool IsFinal(Machine machine, uint8_t state);

// True when some row leads from `from` to `to`.
bool IsAllowed(Machine machine, uint8_t from, uint8_t to);
bool IsAllowed(SweepState from, SweepState to);
bool IsAllowed(RunState from, RunState to);
bool IsAllowed(AttemptState from, AttemptState to);
bool IsAllowed(MemberState from, MemberState to);
bool IsAllowed(Contact from, Contact to);
bool IsAllowed(AdminState from, AdminState to);
bool IsAllowed(CheckpointState from, CheckpointState to);
bool IsAllowed(CoordinatorState from, CoordinatorState to);

// All tables in Markdown, as they stand in docs/protocol.md.
std::string RenderTables();

}  // namespace switchyard::scheduler
