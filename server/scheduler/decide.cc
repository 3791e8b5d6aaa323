#include "server/scheduler/decide.h"

#include "server/scheduler/handlers.h"

namespace switchyard::scheduler {

std::string_view Name(StaleKind kind) {
  switch (kind) {
    case StaleKind::kIncarnation:
      return "incarnation";
    case StaleKind::kNonce:
      return "nonce";
    case StaleKind::kHbSeq:
      return "hb_seq";
    case StaleKind::kEpoch:
      return "epoch";
    case StaleKind::kSealed:
      return "sealed";
    case StaleKind::kGap:
      return "gap";
    case StaleKind::kUnknownAttempt:
      return "unknown_attempt";
    case StaleKind::kLateOutcome:
      return "late_outcome";
  }
  return "unspecified";
}

std::string_view Name(Verb verb) {
  switch (verb) {
    case Verb::kCancel:
      return "cancel";
    case Verb::kKill:
      return "kill";
    case Verb::kPause:
      return "pause";
    case Verb::kResume:
      return "resume";
    case Verb::kPrune:
      return "prune";
    case Verb::kPriority:
      return "priority";
  }
  return "unspecified";
}

std::string_view Name(WorkerVerb verb) {
  switch (verb) {
    case WorkerVerb::kDrain:
      return "drain";
    case WorkerVerb::kUndrain:
      return "undrain";
    case WorkerVerb::kCordon:
      return "cordon";
    case WorkerVerb::kUncordon:
      return "uncordon";
    case WorkerVerb::kFence:
      return "fence";
  }
  return "unspecified";
}

Decision Decide(const State& state, const Event& event, const Now& now) {
  return std::visit([&](const auto& one) { return On(state, one, now); }, event);
}

}  // namespace switchyard::scheduler
