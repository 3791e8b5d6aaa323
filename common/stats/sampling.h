#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/rng.h"

namespace switchyard::stats {

// k distinct items in Plackett-Luce order: the k largest of logit / temperature plus a standard
// Gumbel variable (Kool et al., "Stochastic beams and where to find them", 2019). k <= size;
// temperature > 0. Uses counters draw * size .. of the stream.
std::vector<uint32_t> GumbelTopK(std::span<const double> logits, size_t k, double temperature,
                                 RandomKey key, uint64_t draw);

}  // namespace switchyard::stats
