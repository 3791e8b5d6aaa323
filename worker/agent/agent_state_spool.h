#pragma once

#include <cstdint>
#include <vector>

#include "worker/agent/agent_state.h"
#include "worker/agent/agent_state_transitions.h"

// What of the spool may be deleted. Pure.
namespace switchyard::agent {

struct SegmentFacts {
  AttemptKey key;
  uint64_t first_seq = 0;
  uint64_t last_seq = 0;
  uint64_t bytes = 0;
  uint64_t age_ns = 0;  // since it was sealed
  SegmentState state = SegmentState::kOpen;
};

struct SpoolQuota {
  uint64_t bytes = uint64_t{2} << 30;
  uint64_t age_ns = uint64_t{72} * 3600 * 1'000'000'000;
  // Each attempt that is kept costs files; a bound on inodes.
  uint64_t segments = 20'000;
};

// SEALED, COMMITTED or DURABLE by the two watermarks of its stream.
SegmentState SealedState(uint64_t last_seq, uint64_t committed, uint64_t durable);

// Indices into `segments` of those to delete: all that are DURABLE; and COMMITTED ones that are too
// old or beyond the quota, oldest first. What is not committed is never among them.
std::vector<size_t> ChooseDeletions(const std::vector<SegmentFacts>& segments,
                                    const SpoolQuota& quota);

}  // namespace switchyard::agent
