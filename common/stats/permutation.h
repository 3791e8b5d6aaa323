#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"

// Permutation tests of a difference of means over seeds (analyses N12), two-sided.
namespace switchyard::stats {

inline constexpr size_t kMonteCarloPermutations = 10'000;

struct Permutation {
  double estimate = 0;
  double p = 1;
  // All arrangements were enumerated; otherwise p = (1 + exceedances) / (1 + drawn).
  bool is_exact = false;
  uint64_t arrangements = 0;
};

// Flips signs of paired differences: all 2^n for n <= 16.
Result<Permutation> SignFlip(std::span<const double> differences, uint64_t seed);
// Permutes labels: all C(n_a + n_b, n_a) up to 2^16.
Result<Permutation> LabelPermutation(std::span<const double> a, std::span<const double> b,
                                     uint64_t seed);

// Smallest two-sided p that the tests can give: 2^(1 - n) for n pairs, 2 / C(n_a + n_b, n_a)
// for unpaired samples of different content.
double SmallestPairedP(size_t pairs);
double SmallestUnpairedP(size_t n_a, size_t n_b);
// Refuses a test that cannot reach alpha, with the number of pairs (or seeds an arm) that could.
Status CheckCanReach(double alpha, size_t pairs);
Status CheckCanReach(double alpha, size_t n_a, size_t n_b);

}  // namespace switchyard::stats
