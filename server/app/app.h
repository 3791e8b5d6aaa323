#pragma once

#include "common/base/status.h"
#include "server/app/config.h"

namespace switchyard::app {

// Runs a coordinator until SIGTERM or SIGINT; everything is started and stopped here, in an order
// that fits on one screen. The caller must be the only thread.
Status Serve(const Config& config);

// Whether a coordinator could start with these settings; changes nothing but the data directory.
Status Check(const Config& config);

// Asks the coordinator at `socket` how it is. kUnavailable: it does not serve.
Status AskHealth(const std::string& socket);

}  // namespace switchyard::app
