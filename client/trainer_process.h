#pragma once

#include <chrono>
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

// As long as an agent waits for the first step of a trainer.
inline constexpr std::chrono::minutes kTrainerSilenceMax{15};

// `switchyard-trainer` beside this program. kNotFound when there is none.
Result<std::string> FindTrainer();

// Runs `trainer` with `arguments` to its end; `on_line` sees each line of its standard output and
// says whether it may go on: at the first no it is killed (SIGKILL), and the lines that it had
// written are still handed out. Its standard error is appended to `error_path`. kDeadlineExceeded:
// it was silent for `silence_max` and is killed; kDataLoss: so is one whose line has over 2 MiB.
Result<TrainerEnd> RunTrainerProcess(const std::string& trainer,
                                     const std::vector<std::string>& arguments,
                                     const std::string& error_path,
                                     const std::function<bool(std::string_view line)>& on_line,
                                     std::chrono::milliseconds silence_max = kTrainerSilenceMax);

}  // namespace switchyard::client
