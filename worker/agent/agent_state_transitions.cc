#include "worker/agent/agent_state_transitions.h"

#include <algorithm>

namespace switchyard::agent {
namespace {

using R = RecordState;
using S = SegmentState;

constexpr Transition<R> kRecords[] = {
    {"G2", R::kNone, R::kLaunching, "wanted: the record is durable, then the spawn"},
    {"G3", R::kLaunching, R::kRunning, "exec confirmed, or found alive at a restart"},
    {"G4", R::kNone, R::kRefused, "wanted, but impossible: a durable answer with its reason"},
    {"G5", R::kLaunching, R::kExited, "never executed, or ended before exec was confirmed"},
    {"G5", R::kRunning, R::kExited,
     "process gone: leftovers killed, torn line cut, evidence, record durable"},
};

constexpr Transition<S> kSegments[] = {
    {"SP1", S::kOpen, S::kSealed, "64 MiB, or end of the trainer (SP6: torn line cut first)"},
    {"SP2", S::kSealed, S::kCommitted, "committed watermark at or behind its last line"},
    {"SP3", S::kCommitted, S::kDurable, "durable watermark at or behind its last line"},
    {"SP4", S::kDurable, S::kDeleted, "any time"},
    {"SP4", S::kCommitted, S::kDeleted, "quota of the worker (2 GiB, 72 h), oldest first"},
};

template <typename State>
bool Contains(std::span<const Transition<State>> table, State from, State to) {
  return std::ranges::any_of(
      table, [&](const Transition<State>& entry) { return entry.from == from && entry.to == to; });
}

}  // namespace

std::span<const Transition<RecordState>> RecordTransitions() { return kRecords; }
std::span<const Transition<SegmentState>> SegmentTransitions() { return kSegments; }

bool IsAllowed(RecordState from, RecordState to) { return Contains(RecordTransitions(), from, to); }
bool IsAllowed(SegmentState from, SegmentState to) {
  return Contains(SegmentTransitions(), from, to);
}

std::string_view Name(RecordState state) {
  switch (state) {
    case R::kNone:
      return "NONE";
    case R::kLaunching:
      return "LAUNCHING";
    case R::kRunning:
      return "RUNNING";
    case R::kExited:
      return "EXITED";
    case R::kRefused:
      return "REFUSED";
  }
  return "?";
}

std::string_view Name(SegmentState state) {
  switch (state) {
    case S::kOpen:
      return "OPEN";
    case S::kSealed:
      return "SEALED";
    case S::kCommitted:
      return "COMMITTED";
    case S::kDurable:
      return "DURABLE";
    case S::kDeleted:
      return "DELETED";
  }
  return "?";
}

}  // namespace switchyard::agent
