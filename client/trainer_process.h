#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::client {

// How a trainer that was started here ended.
struct TrainerEnd {
  int exit_code = 0;  // of a process that exited
  int signal = 0;     // of one that was killed, else 0
};

// `switchyard-trainer` beside this program. kNotFound when there is none.
Result<std::string> FindTrainer();

// Runs `trainer` with `arguments` to its end; `on_line` sees each line of its standard output and
// says whether it may go on: at the first no it is killed (SIGKILL), and the lines that it had
// written are still handed out. Its standard error is appended to `error_path`.
Result<TrainerEnd> RunTrainerProcess(const std::string& trainer,
                                     const std::vector<std::string>& arguments,
                                     const std::string& error_path,
                                     const std::function<bool(std::string_view line)>& on_line);

}  // namespace switchyard::client
