#include "client/exit_code.h"

namespace switchyard::client {

ExitCode ExitCodeOf(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return kExitOk;
    case Code::kInvalidArgument:
    case Code::kNotFound:
    case Code::kOutOfRange:
      return kExitUsage;
    case Code::kPermissionDenied:
      return kExitPermission;
    case Code::kAlreadyExists:
    case Code::kAborted:
    case Code::kFailedPrecondition:
      return kExitConflict;
    case Code::kCancelled:
    case Code::kUnknown:
    case Code::kDeadlineExceeded:
    case Code::kResourceExhausted:
    case Code::kUnimplemented:
    case Code::kInternal:
    case Code::kUnavailable:
    case Code::kDataLoss:
      return kExitInfrastructure;
  }
  return kExitInfrastructure;
}

}  // namespace switchyard::client
