#pragma once

#include <string>

#include "common/base/status.h"

namespace switchyard::agent {

// Where the coordinator is: `given` (unix:PATH, a path, or HOST:PORT), else $SWITCHYARD_SERVER,
// else the socket of the default data directory, else /run/switchyard/switchyard.sock, the first
// that exists. kNotFound lists what was tried.
Result<std::string> ResolveServer(const std::string& given);

// ${XDG_STATE_HOME:-~/.local/state}/switchyard.
std::string DefaultStateRoot();

}  // namespace switchyard::agent
