#include "common/stats/rank_tests.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "common/stats/descriptive.h"
#include "common/stats/distributions.h"

namespace switchyard::stats {
namespace {

constexpr size_t kLargestExact = 50;

// Number of subsets of {1..n} by their sum; exact in double, as 2^50 subsets are.
std::vector<double> SubsetSums(size_t n) {
  std::vector<double> counts(n * (n + 1) / 2 + 1, 0);
  counts[0] = 1;
  size_t top = 0;
  for (size_t item = 1; item <= n; ++item) {
    top += item;
    for (size_t sum = top; sum >= item; --sum) counts[sum] += counts[sum - item];
  }
  return counts;
}

double ExactP(double statistic, size_t n) {
  const std::vector<double> counts = SubsetSums(n);
  double below = 0;
  for (size_t sum = 0; static_cast<double>(sum) <= statistic && sum < counts.size(); ++sum) {
    below += counts[sum];
  }
  return std::min(1.0, 2 * std::ldexp(below, -static_cast<int>(n)));
}

}  // namespace

Result<Wilcoxon> WilcoxonSignedRank(std::span<const double> differences) {
  SWITCHYARD_RETURN_IF_ERROR(CheckFinite(differences, "signed-rank test: difference"));
  std::vector<double> kept;
  std::ranges::copy_if(differences, std::back_inserter(kept), [](double d) { return d != 0; });
  if (kept.empty()) return FailedPrecondition("signed-rank test: every difference is 0");
  std::sort(kept.begin(), kept.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
  Wilcoxon result;
  result.n = kept.size();
  const auto n = static_cast<double>(kept.size());
  double plus = 0;
  double tie_term = 0;
  for (size_t begin = 0; begin < kept.size();) {
    size_t end = begin + 1;
    while (end < kept.size() && std::abs(kept[end]) == std::abs(kept[begin])) ++end;
    const double rank = (static_cast<double>(begin + 1) + static_cast<double>(end)) / 2;
    const auto size = static_cast<double>(end - begin);
    tie_term += size * size * size - size;
    for (size_t i = begin; i < end; ++i) plus += kept[i] > 0 ? rank : 0;
    begin = end;
  }
  result.statistic = std::min(plus, n * (n + 1) / 2 - plus);
  result.is_exact =
      kept.size() <= kLargestExact && tie_term == 0 && kept.size() == differences.size();
  if (result.is_exact) {
    result.p = ExactP(result.statistic, kept.size());
    return result;
  }
  const double mean = n * (n + 1) / 4;
  const double variance = (n * (n + 1) * (2 * n + 1) - tie_term / 2) / 24;
  result.p = std::min(1.0, 2 * NormalCdf((result.statistic - mean) / std::sqrt(variance)));
  return result;
}

double McNemarExact(uint64_t only_first, uint64_t only_second) {
  const auto smaller = static_cast<double>(std::min(only_first, only_second));
  const auto total = static_cast<double>(only_first + only_second);
  if (total == 0) return 1;
  return std::min(1.0, 2 * BinomialCdf(smaller, total, 0.5));
}

}  // namespace switchyard::stats
