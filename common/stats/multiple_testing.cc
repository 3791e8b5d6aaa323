#include "common/stats/multiple_testing.h"

#include <algorithm>
#include <numeric>

namespace switchyard::stats {

std::vector<double> Adjust(std::span<const double> p, Correction correction) {
  std::vector<double> adjusted(p.begin(), p.end());
  if (correction == Correction::kNone || p.empty()) return adjusted;
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  const auto m = static_cast<double>(p.size());
  if (correction == Correction::kHolm) {
    double highest = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      highest = std::max(highest, std::min(1.0, (m - static_cast<double>(i)) * p[order[i]]));
      adjusted[order[i]] = highest;
    }
    return adjusted;
  }
  double factor = m;
  if (correction == Correction::kBenjaminiYekutieli) {
    double harmonic = 0;
    for (size_t i = 1; i <= p.size(); ++i) harmonic += 1 / static_cast<double>(i);
    factor *= harmonic;
  }
  double lowest = 1;
  for (size_t i = order.size(); i-- > 0;) {
    lowest = std::min(lowest, p[order[i]] * factor / static_cast<double>(i + 1));
    adjusted[order[i]] = lowest;
  }
  return adjusted;
}

}  // namespace switchyard::stats
