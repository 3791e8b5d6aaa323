#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "common/base/ids.h"

// Which points of which attempts make up the curve of a run.
namespace switchyard::results {

inline constexpr uint64_t kStepMax = std::numeric_limits<uint64_t>::max();

// What an attempt of one run said about its start.
struct AttemptStart {
  Epoch epoch;
  uint32_t ordinal = 0;
  bool is_reported = false;
  Epoch resumed_epoch;  // 0: from the start
  uint64_t resumed_step = 0;
};

// The points of one attempt with step <= step_max.
struct Segment {
  Epoch epoch;
  uint32_t ordinal = 0;
  uint64_t step_max = kStepMax;
  bool operator==(const Segment&) const = default;
};

// The newest attempt that has reported its start; epoch 0: none has.
Epoch CanonicalHead(std::span<const AttemptStart> attempts);

// The canonical curve of `head`, oldest segment first: what `head` resumed from, through the step
// it resumed at, and so on back to a start from nothing; then its own points through `step_max`.
// An attempt that is not in `attempts`, or that claims to resume from one not older than itself,
// ends the walk. Empty for an unknown head.
std::vector<Segment> CanonicalSegments(std::span<const AttemptStart> attempts, Epoch head,
                                       uint64_t step_max = kStepMax);

}  // namespace switchyard::results
