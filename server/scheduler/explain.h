#pragma once

#include <string>
#include <vector>

#include "server/scheduler/state.h"

namespace switchyard::scheduler {

// Why a run waits, where and why it runs, or how it ended, one line each, for a person. `run` must
// be in the state.
std::vector<std::string> Explain(const State& state, const Run& run, Timestamp now);
// How a run that has left the memory ended.
std::vector<std::string> ExplainEnd(const RunStatus& status);

}  // namespace switchyard::scheduler
