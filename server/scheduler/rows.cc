#include "server/scheduler/rows.h"

namespace switchyard::scheduler {

std::string_view Name(SweepState state) {
  switch (state) {
    case SweepState::kActive:
      return "active";
    case SweepState::kPaused:
      return "paused";
    case SweepState::kCancelling:
      return "cancelling";
    case SweepState::kCompleted:
      return "completed";
    case SweepState::kCancelled:
      return "cancelled";
  }
  return "unspecified";
}

std::string_view Name(RunState state) {
  switch (state) {
    case RunState::kQueued:
      return "queued";
    case RunState::kBackoff:
      return "backoff";
    case RunState::kActive:
      return "active";
    case RunState::kPaused:
      return "paused";
    case RunState::kSucceeded:
      return "succeeded";
    case RunState::kStoppedEarly:
      return "stopped_early";
    case RunState::kFailed:
      return "failed";
    case RunState::kCancelled:
      return "cancelled";
    case RunState::kQuarantined:
      return "quarantined";
  }
  return "unspecified";
}

std::string_view Name(AttemptState state) {
  switch (state) {
    case AttemptState::kAssigned:
      return "assigned";
    case AttemptState::kForming:
      return "forming";
    case AttemptState::kRunning:
      return "running";
    case AttemptState::kStopping:
      return "stopping";
    case AttemptState::kSucceeded:
      return "succeeded";
    case AttemptState::kFailed:
      return "failed";
    case AttemptState::kCancelled:
      return "cancelled";
    case AttemptState::kPreempted:
      return "preempted";
    case AttemptState::kLost:
      return "lost";
  }
  return "unspecified";
}

std::string_view Name(MemberState state) {
  switch (state) {
    case MemberState::kPending:
      return "pending";
    case MemberState::kPrepared:
      return "prepared";
    case MemberState::kLaunched:
      return "launched";
    case MemberState::kStopping:
      return "stopping";
    case MemberState::kWedged:
      return "wedged";
    case MemberState::kExited:
      return "exited";
    case MemberState::kRefused:
      return "refused";
    case MemberState::kFenced:
      return "fenced";
    case MemberState::kLost:
      return "lost";
  }
  return "unspecified";
}

std::string_view Name(Intent intent) {
  switch (intent) {
    case Intent::kRun:
      return "run";
    case Intent::kDrain:
      return "drain";
    case Intent::kCancel:
      return "cancel";
    case Intent::kKill:
      return "kill";
  }
  return "unspecified";
}

std::string_view Name(StopReason reason) {
  switch (reason) {
    case StopReason::kNone:
      return "";
    case StopReason::kCancel:
      return "cancel";
    case StopReason::kKill:
      return "kill";
    case StopReason::kDrain:
      return "drain";
    case StopReason::kPause:
      return "pause";
    case StopReason::kPrune:
      return "prune";
    case StopReason::kPreempt:
      return "preempt";
    case StopReason::kTimeout:
      return "timeout";
    case StopReason::kSibling:
      return "sibling";
    case StopReason::kFormTimeout:
      return "form_timeout";
  }
  return "unspecified";
}

std::string_view Name(EndClass end_class) {
  switch (end_class) {
    case EndClass::kNone:
      return "";
    case EndClass::kOk:
      return "ok";
    case EndClass::kSpec:
      return "spec";
    case EndClass::kData:
      return "data";
    case EndClass::kInfra:
      return "infra";
    case EndClass::kInternal:
      return "internal";
    case EndClass::kOom:
      return "oom";
    case EndClass::kStopped:
      return "stopped";
    case EndClass::kFenced:
      return "fenced";
    case EndClass::kGuard:
      return "guard";
    case EndClass::kUser:
      return "user";
    case EndClass::kUnknown:
      return "unknown";
    case EndClass::kTimeout:
      return "timeout";
  }
  return "unspecified";
}

std::string_view Name(SlotKind kind) { return kind == SlotKind::kCpu ? "cpu" : "gpu"; }

std::string_view Name(AdminState state) {
  switch (state) {
    case AdminState::kOpen:
      return "open";
    case AdminState::kDraining:
      return "draining";
    case AdminState::kDrained:
      return "drained";
    case AdminState::kRetired:
      return "retired";
  }
  return "unspecified";
}

std::string_view Name(CheckpointState state) {
  switch (state) {
    case CheckpointState::kStaged:
      return "staged";
    case CheckpointState::kPublished:
      return "published";
    case CheckpointState::kSuperseded:
      return "superseded";
    case CheckpointState::kTombstoned:
      return "tombstoned";
    case CheckpointState::kDeleted:
      return "deleted";
    case CheckpointState::kCorrupt:
      return "corrupt";
    case CheckpointState::kOrphan:
      return "orphan";
  }
  return "unspecified";
}

bool IsTerminal(SweepState state) {
  return state == SweepState::kCompleted || state == SweepState::kCancelled;
}
bool IsTerminal(RunState state) { return state >= RunState::kSucceeded; }
bool IsTerminal(AttemptState state) { return state >= AttemptState::kSucceeded; }
bool IsTerminal(MemberState state) { return state >= MemberState::kExited; }

}  // namespace switchyard::scheduler
