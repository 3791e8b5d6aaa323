#include "server/scheduler/transitions.h"

#include <initializer_list>

namespace switchyard::scheduler {
namespace {

template <typename State>
bool In(State state, std::initializer_list<State> set) {
  for (const State member : set) {
    if (member == state) return true;
  }
  return false;
}

}  // namespace

bool IsAllowed(SweepState from, SweepState to) {
  using enum SweepState;
  switch (from) {
    case kActive:
      return In(to, {kPaused, kCancelling, kCompleted});
    case kPaused:
      return In(to, {kActive, kCancelling});
    case kCancelling:
      return to == kCancelled;
    case kCompleted:
    case kCancelled:
      return false;
  }
  return false;
}

bool IsAllowed(RunState from, RunState to) {
  using enum RunState;
  switch (from) {
    case kQueued:
      return In(to, {kActive, kCancelled, kStoppedEarly, kPaused});
    case kBackoff:
      return In(to, {kQueued, kCancelled, kStoppedEarly, kPaused});
    case kActive:
      return In(to, {kSucceeded, kCancelled, kStoppedEarly, kQuarantined, kFailed, kPaused,
                     kBackoff, kQueued});
    case kPaused:
      return In(to, {kQueued, kCancelled, kStoppedEarly});
    case kSucceeded:
    case kStoppedEarly:
    case kFailed:
    case kCancelled:
    case kQuarantined:
      return false;
  }
  return false;
}

bool IsAllowed(AttemptState from, AttemptState to) {
  using enum AttemptState;
  const bool is_end = In(to, {kSucceeded, kCancelled, kFailed, kPreempted, kLost});
  switch (from) {
    case kAssigned:
      return is_end || In(to, {kForming, kRunning, kStopping});
    case kForming:
      return is_end || In(to, {kRunning, kStopping});
    case kRunning:
      return is_end || to == kStopping;
    case kStopping:
      return is_end;
    case kSucceeded:
    case kFailed:
    case kCancelled:
    case kPreempted:
    case kLost:
      return false;
  }
  return false;
}

bool IsAllowed(MemberState from, MemberState to) {
  using enum MemberState;
  if (to == kLost) return !IsTerminal(from);
  switch (from) {
    case kPending:
      return In(to, {kPrepared, kLaunched, kRefused});
    case kPrepared:
      return In(to, {kLaunched, kRefused});
    case kLaunched:
      return In(to, {kStopping, kExited, kFenced});
    case kStopping:
      return In(to, {kExited, kFenced, kWedged});
    case kWedged:
      return to == kExited;
    case kExited:
    case kRefused:
    case kFenced:
    case kLost:
      return false;
  }
  return false;
}

}  // namespace switchyard::scheduler
