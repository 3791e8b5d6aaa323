#pragma once

#include "common/base/failpoint_option.h"

// Named places at which a fault test ends or delays the process, to see what the others make of it.
//
// SWITCHYARD_FAILPOINT("store.begin") costs nothing in a release build. In a build with the option
// SWITCHYARD_FAILPOINTS the environment arms some of them: SWITCHYARD_FAILPOINT=NAME[:N][=MS],
// several separated by commas. When the place is reached for the Nth time (default 1st) a line goes
// to standard error, and the process is killed with SIGKILL, or sleeps for MS milliseconds and goes
// on. tests/fault finds the names in the sources.
#ifdef SWITCHYARD_FAILPOINTS
#define SWITCHYARD_FAILPOINT(name) ::switchyard::PassFailpoint(name)
#else
#define SWITCHYARD_FAILPOINT(name) static_cast<void>(0)
#endif

namespace switchyard {

// Async-signal-safe once called in the process or its parent: a forked child may pass too.
void PassFailpoint(const char* name);

}  // namespace switchyard
