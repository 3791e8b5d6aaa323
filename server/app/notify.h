#pragma once

#include <string_view>

namespace switchyard::app {

// Tells the service manager ("READY=1", "STOPPING=1", "WATCHDOG=1") when there is one
// (NOTIFY_SOCKET); errors are of no interest.
void NotifyServiceManager(std::string_view message);

}  // namespace switchyard::app
