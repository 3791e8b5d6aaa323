#pragma once

#include <cstdint>

// When an agent tries again. Pure.
namespace switchyard::agent {

// Span of the full jitter before the next registration, nanoseconds: the wait is uniform in
// [0, span]. The first spreads a fleet of `workers` over 300 registrations a second, later ones
// double up to 2 min. `failures`: tries that failed since the contact was lost.
uint64_t ReconnectSpanNs(uint32_t failures, uint32_t workers);

// The same for a batch that was not taken: doubles from 0.2 s to 10 s.
uint64_t ResendSpanNs(uint32_t failures);

}  // namespace switchyard::agent
