#pragma once

#include "server/scheduler/rows.h"

// The machines of protocol 7 as tables: anything not listed is a bug of the core.
namespace switchyard::scheduler {

bool IsAllowed(SweepState from, SweepState to);
bool IsAllowed(RunState from, RunState to);
bool IsAllowed(AttemptState from, AttemptState to);
bool IsAllowed(MemberState from, MemberState to);

}  // namespace switchyard::scheduler
