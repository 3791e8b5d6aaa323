#pragma once

#include "common/base/status.h"

namespace switchyard::client {

// docs/cli.md lists them; scripts rely on the numbers.
enum ExitCode : int {
  kExitOk = 0,
  kExitUsage = 1,           // usage, validation, something named does not exist
  kExitRunFailed = 2,       // a selected run failed
  kExitInfrastructure = 3,  // no connection, time over, the coordinator's own trouble
  kExitPermission = 4,
  kExitConflict = 5,  // id used again with another body, state does not allow it
};

ExitCode ExitCodeOf(const Status& status);

}  // namespace switchyard::client
