#pragma once

#include "common/base/failpoint_option.h"

// Named places at which a fault test ends the process, to see what the next start makes of it.
//
// SWITCHYARD_FAILPOINT("store.commit.before") costs nothing in a release build. In a build with the
// option SWITCHYARD_FAILPOINTS the environment arms one of them: SWITCHYARD_FAILPOINT=NAME[:N]
// kills the process with SIGKILL when the place is reached for the Nth time (default 1st), after a
// line on standard error. tests/fault finds the names in the sources.
#ifdef SWITCHYARD_FAILPOINTS
#define SWITCHYARD_FAILPOINT(name) ::switchyard::PassFailpoint(name)
#else
#define SWITCHYARD_FAILPOINT(name) static_cast<void>(0)
#endif

namespace switchyard {

void PassFailpoint(const char* name);

}  // namespace switchyard
