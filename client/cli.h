#pragma once

#include <functional>
#include <string>
#include <vector>

#include "client/console.h"

namespace switchyard::client {

// The whole program behind `main`: reads the arguments (without the program's name), runs the verb,
// returns the exit code. `getenv` as the function of that name.
int RunCli(const std::vector<std::string>& arguments, const Console& console,
           const std::function<const char*(const char*)>& getenv);

}  // namespace switchyard::client
