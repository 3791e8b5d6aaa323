#include "server/results/lineage.h"

#include <algorithm>

namespace switchyard::results {

Epoch CanonicalHead(std::span<const AttemptStart> attempts) {
  Epoch head;
  for (const AttemptStart& attempt : attempts) {
    if (attempt.is_reported) head = std::max(head, attempt.epoch);
  }
  return head;
}

std::vector<Segment> CanonicalSegments(std::span<const AttemptStart> attempts, Epoch head,
                                       uint64_t step_max) {
  std::vector<Segment> segments;
  Epoch next = head;
  uint64_t cap = step_max;
  while (next.value != 0) {
    const auto attempt = std::ranges::find(attempts, next, &AttemptStart::epoch);
    if (attempt == attempts.end()) break;
    segments.push_back({.epoch = attempt->epoch, .ordinal = attempt->ordinal, .step_max = cap});
    // Epochs rise over the cluster: a claim that does not go back would never end.
    if (attempt->resumed_epoch >= attempt->epoch) break;
    // A second fall-back may lie below the first: what was cut away once stays away.
    cap = std::min(cap, attempt->resumed_step);
    next = attempt->resumed_epoch;
  }
  std::ranges::reverse(segments);
  return segments;
}

}  // namespace switchyard::results
