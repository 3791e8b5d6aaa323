#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// Summaries of samples. All sums are compensated (Neumaier), so that the order of magnitude of the
// values does not decide how many digits of a small variance survive.
namespace switchyard::stats {

struct Interval {
  double low = 0;
  double high = 0;
  double width() const { return high - low; }
  // Strictly inside (-margin, margin).
  bool IsInside(double margin) const { return low > -margin && high < margin; }
  bool Contains(double value) const { return low <= value && value <= high; }
};

// Refuses the first value that is not finite; `what` is how one is called ("bootstrap: unit").
Status CheckFinite(std::span<const double> values, std::string_view what);

double Sum(std::span<const double> values);
// NaN when empty.
double Mean(std::span<const double> values);
// Divided by n - 1; NaN below two values.
double Variance(std::span<const double> values);
double StandardDeviation(std::span<const double> values);
// Linear interpolation between order statistics (numpy's default): position q * (n - 1). `sorted`
// rises and is not empty; 0 <= q <= 1.
double Quantile(std::span<const double> sorted, double q);
// Pearson's; NaN when either side is constant or n < 2. Sizes are equal.
double Correlation(std::span<const double> x, std::span<const double> y);
// Sum of products of deviations `lag` apart over the sum of squares; 0 for a constant series.
double Autocorrelation(std::span<const double> series, size_t lag);

struct Gini {
  double value = 0;
  // All values were 0: the coefficient is undefined and 0 is given.
  bool is_degenerate = false;
};
// G = sum (2i - n - 1) x_(i) / (n sum x), 0 .. 1 - 1/n. A negative or non-finite value is refused.
Result<Gini> GiniCoefficient(std::vector<double> values);

// At most 4 significant digits and no trailing zeros: for sentences, never for files.
std::string ShortNumber(double value);

}  // namespace switchyard::stats
