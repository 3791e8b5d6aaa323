#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace switchyard::train {

// How a trainer ends (docs/attempt-directory.md); the process's exit status.
enum class ExitCode : int {
  kDone = 0,
  kSpec = 64,      // the run or the command line is wrong
  kData = 65,      // the data is not what the run needs
  kDevice = 69,    // device or rendezvous not available
  kInternal = 70,  // our fault
  kOutOfMemory = 71,
  kStopped = 75,  // on request
  kFenced = 76,   // the lease or the stop deadline has passed
  kGuard = 77,    // `non_finite`, named as the reason
};

// "ok", "spec", "data", "infra", "internal", "oom", "stopped", "fenced", "guard".
const char* ExitClass(ExitCode code);

// What a run came to.
struct Ending {
  ExitCode code = ExitCode::kInternal;
  bool complete = false;    // the last step was reached
  uint64_t final_step = 0;  // updates done
  std::string reason;       // for a person; guard: which one
  // {"metric":"valid/bits_per_byte","best":2.9,...}; empty when nothing was evaluated.
  std::string objective_json;
};

// What the outside wants of a run, rising in urgency.
enum class StopIntent {
  kNone,
  kStop,  // finish the step, write a checkpoint, end
  kKill,  // end now, no checkpoint
};

// Asked before every step and every forward pass of an evaluation.
class StopSource {
 public:
  virtual ~StopSource() = default;
  // Training thread only.
  virtual StopIntent Poll() = 0;
  // Does not return when this attempt may no longer publish anything. Any thread.
  virtual void ExitIfPast() {}
};

}  // namespace switchyard::train
