#pragma once

#include <map>
#include <vector>

#include "server/scheduler/decision.h"
#include "server/scheduler/state.h"

// What is known of workers and is not in rows, over a state that is loaded anew.
namespace switchyard::scheduler {

WorkerContact ContactOf(const Worker& worker);

// The contacts of all workers of `state`, for the state that replaces it because its newest inputs
// could not be written. `before` has those that the inputs changed, as they were. Nonce, sequence
// number and the like are as before; that a worker was heard stays true, also where what it said,
// such as a registration, could not be kept: a coordinator that cannot write loses no attempts.
std::vector<WorkerContact> ContactsToKeep(const State& state,
                                          const std::map<WorkerId, WorkerContact>& before);

}  // namespace switchyard::scheduler
