#pragma once

#include <cstdint>
#include <string>

namespace switchyard::trainer {

// The command line. Exactly one of `attempt_dir` and `spec_path` is set.
struct TrainerOptions {
  std::string attempt_dir;
  // A run by hand: lines go to standard output, checkpoints to `dir` when it is set.
  std::string spec_path;
  std::string dir;
  uint32_t threads = 1;
  std::string device = "cpu";
  // By hand: ask for a stop after so many updates, 0: never; milliseconds between checkpoints, 0:
  // the default.
  uint64_t stop_at = 0;
  uint64_t checkpoint_every_ms = 0;
};

// Runs one attempt from its files to its exit record (attempt directory), or a run by hand. Does
// not return: ends the process with the exit code of docs/attempt-directory.md, without static
// destructors, which have been seen to crash in libraries.
[[noreturn]] void RunTrainer(const TrainerOptions& options);

}  // namespace switchyard::trainer
