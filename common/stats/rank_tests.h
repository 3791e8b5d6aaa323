#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/status.h"

namespace switchyard::stats {

struct Wilcoxon {
  // The smaller of the two rank sums.
  double statistic = 0;
  // Two-sided.
  double p = 1;
  // Differences that are not 0.
  size_t n = 0;
  bool is_exact = false;
};
// Wilcoxon's signed-rank test. Zero differences are dropped; exact for n <= 50 without ties or
// zeros, else the normal approximation with the correction for ties and without that for
// continuity. Refused when no difference is left or one is not finite.
Result<Wilcoxon> WilcoxonSignedRank(std::span<const double> differences);

// McNemar's exact test on discordant pairs (right-wrong against wrong-right): two-sided binomial
// with p = 1/2. 1 when there are none.
double McNemarExact(uint64_t only_first, uint64_t only_second);

}  // namespace switchyard::stats
