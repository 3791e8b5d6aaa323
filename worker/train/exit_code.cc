#include "worker/train/exit_code.h"

namespace switchyard::train {

const char* ExitClass(ExitCode code) {
  switch (code) {
    case ExitCode::kDone:
      return "ok";
    case ExitCode::kSpec:
      return "spec";
    case ExitCode::kData:
      return "data";
    case ExitCode::kDevice:
      return "infra";
    case ExitCode::kInternal:
      return "internal";
    case ExitCode::kOutOfMemory:
      return "oom";
    case ExitCode::kStopped:
      return "stopped";
    case ExitCode::kFenced:
      return "fenced";
    case ExitCode::kGuard:
      return "guard";
  }
  return "internal";
}

}  // namespace switchyard::train
