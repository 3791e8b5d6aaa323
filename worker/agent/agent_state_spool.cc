#include "worker/agent/agent_state_spool.h"

#include <algorithm>

namespace switchyard::agent {

SegmentState SealedState(uint64_t last_seq, uint64_t committed, uint64_t durable) {
  if (committed < last_seq) return SegmentState::kSealed;
  // A durable watermark ahead of the committed one is a claim that nobody can have checked.
  return std::min(durable, committed) < last_seq ? SegmentState::kCommitted
                                                 : SegmentState::kDurable;
}

std::vector<size_t> ChooseDeletions(const std::vector<SegmentFacts>& segments,
                                    const SpoolQuota& quota) {
  std::vector<size_t> out;
  std::vector<size_t> committed;
  uint64_t bytes = 0;
  uint64_t count = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    const SegmentFacts& segment = segments[i];
    if (segment.state == SegmentState::kDurable) {
      out.push_back(i);
      continue;
    }
    bytes += segment.bytes;
    ++count;
    if (segment.state == SegmentState::kCommitted) committed.push_back(i);
  }
  std::ranges::sort(committed, [&](size_t a, size_t b) {
    const SegmentFacts& x = segments[a];
    const SegmentFacts& y = segments[b];
    if (x.age_ns != y.age_ns) return x.age_ns > y.age_ns;
    return x.key != y.key ? x.key < y.key : x.first_seq < y.first_seq;
  });
  for (const size_t i : committed) {
    const SegmentFacts& segment = segments[i];
    if (segment.age_ns <= quota.age_ns && bytes <= quota.bytes && count <= quota.segments) break;
    out.push_back(i);
    bytes -= segment.bytes;
    --count;
  }
  return out;
}

}  // namespace switchyard::agent
