#include "common/stats/looks.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "common/stats/mean_tests.h"

namespace switchyard::stats {

double AdjustForLooks(double p, size_t looks) {
  return std::min(1.0, p * static_cast<double>(std::max<size_t>(1, looks)));
}

double AnytimeEvidence(double t, size_t n, double g) {
  const auto count = static_cast<double>(n);
  const double df = count - 1;
  const double spread = 1 + count * g;
  if (std::isinf(t)) return std::pow(spread, (count - 1) / 2);
  const double ratio = (1 + t * t / df) / (1 + t * t / (df * spread));
  return std::exp(0.5 * count * std::log(ratio) - 0.5 * std::log(spread));
}

double AnytimeP(std::span<const double> evidences) {
  double largest = 0;
  for (const double evidence : evidences) largest = std::max(largest, evidence);
  return largest > 1 ? 1 / largest : 1;
}

Interval AnytimeInterval(double mean, double standard_error, size_t n, double alpha, double g) {
  const auto count = static_cast<double>(n);
  const double spread = 1 + count * g;
  // Solves evidence(t) = 1 / alpha for t^2, which has a solution once spread exceeds the ratio.
  const double ratio = std::exp(2 / count * (0.5 * std::log(spread) - std::log(alpha)));
  if (ratio >= spread) {
    const double infinity = std::numeric_limits<double>::infinity();
    return {.low = -infinity, .high = infinity};
  }
  const double half = standard_error * std::sqrt((count - 1) * (ratio - 1) / (1 - ratio / spread));
  return {.low = mean - half, .high = mean + half};
}

double SplitRejectionShare(std::span<const double> values, size_t n_a, double alpha, size_t most) {
  if (n_a < 2 || values.size() < n_a + 2) return std::numeric_limits<double>::quiet_NaN();
  std::vector<bool> in_a(values.size(), false);
  std::fill(in_a.begin(), in_a.begin() + static_cast<std::ptrdiff_t>(n_a), true);
  size_t splits = 0;
  size_t rejected = 0;
  do {
    std::vector<double> a;
    std::vector<double> b;
    for (size_t i = 0; i < values.size(); ++i) (in_a[i] ? a : b).push_back(values[i]);
    const Result<MeanTest> test = WelchT(a, b);
    rejected += test.ok() && test->p <= alpha ? 1 : 0;
    ++splits;
  } while (splits < most && std::prev_permutation(in_a.begin(), in_a.end()));
  return static_cast<double>(rejected) / static_cast<double>(splits);
}

}  // namespace switchyard::stats
