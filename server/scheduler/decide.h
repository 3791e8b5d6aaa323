#pragma once

#include "server/scheduler/decision.h"

namespace switchyard::scheduler {

// The whole behaviour of the coordinator: what follows from `event` in `state`. Pure: no clock, no
// random device, no I/O; equal arguments give equal decisions. A broken invariant aborts.
Decision Decide(const State& state, const Event& event, const Now& now);

}  // namespace switchyard::scheduler
