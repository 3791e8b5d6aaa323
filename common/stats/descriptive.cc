#include "common/stats/descriptive.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "common/base/check.h"
#include "common/base/strings.h"

namespace switchyard::stats {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class CompensatedSum {
 public:
  void Add(double value) {
    const double next = sum_ + value;
    carry_ += std::abs(sum_) >= std::abs(value) ? (sum_ - next) + value : (value - next) + sum_;
    sum_ = next;
  }
  // A sum that ran to infinity has a carry of NaN.
  double value() const { return std::isfinite(sum_) ? sum_ + carry_ : sum_; }

 private:
  double sum_ = 0;
  double carry_ = 0;
};

}  // namespace

Status CheckFinite(std::span<const double> values, std::string_view what) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      return InvalidArgument(StrCat(what, " ", i, " is ", values[i], ", wanted a finite number"));
    }
  }
  return OkStatus();
}

double Sum(std::span<const double> values) {
  CompensatedSum sum;
  for (const double value : values) sum.Add(value);
  return sum.value();
}

double Mean(std::span<const double> values) {
  return values.empty() ? kNaN : Sum(values) / static_cast<double>(values.size());
}

double Variance(std::span<const double> values) {
  if (values.size() < 2) return kNaN;
  const double mean = Mean(values);
  CompensatedSum squares;
  for (const double value : values) squares.Add((value - mean) * (value - mean));
  return squares.value() / static_cast<double>(values.size() - 1);
}

double StandardDeviation(std::span<const double> values) { return std::sqrt(Variance(values)); }

double Quantile(std::span<const double> sorted, double q) {
  SWITCHYARD_CHECK(!sorted.empty() && q >= 0 && q <= 1) << "quantile " << q;
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  if (below + 1 >= sorted.size()) return sorted.back();
  const double share = position - static_cast<double>(below);
  const double low = sorted[below];
  const double high = sorted[below + 1];
  // From the nearer end, so that the result never leaves [low, high] by rounding.
  return share < 0.5 ? low + share * (high - low) : high - (1 - share) * (high - low);
}

double Correlation(std::span<const double> x, std::span<const double> y) {
  SWITCHYARD_CHECK(x.size() == y.size());
  if (x.size() < 2) return kNaN;
  const double mean_x = Mean(x);
  const double mean_y = Mean(y);
  CompensatedSum xx;
  CompensatedSum yy;
  CompensatedSum xy;
  for (size_t i = 0; i < x.size(); ++i) {
    xx.Add((x[i] - mean_x) * (x[i] - mean_x));
    yy.Add((y[i] - mean_y) * (y[i] - mean_y));
    xy.Add((x[i] - mean_x) * (y[i] - mean_y));
  }
  const double scale = std::sqrt(xx.value()) * std::sqrt(yy.value());
  return scale > 0 ? std::clamp(xy.value() / scale, -1.0, 1.0) : kNaN;
}

double Autocorrelation(std::span<const double> series, size_t lag) {
  const double mean = Mean(series);
  CompensatedSum squares;
  CompensatedSum products;
  for (size_t i = 0; i < series.size(); ++i) {
    squares.Add((series[i] - mean) * (series[i] - mean));
    if (i + lag < series.size()) products.Add((series[i] - mean) * (series[i + lag] - mean));
  }
  return squares.value() > 0 ? products.value() / squares.value() : 0;
}

Result<Gini> GiniCoefficient(std::vector<double> values) {
  if (values.empty()) return InvalidArgument("Gini coefficient of no values");
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] >= 0) || !std::isfinite(values[i])) {
      return InvalidArgument(StrCat("Gini coefficient: value ", i, " is ", values[i],
                                    ", wanted a finite number of at least 0"));
    }
  }
  std::sort(values.begin(), values.end());
  const double total = Sum(values);
  if (total == 0) return Gini{.value = 0, .is_degenerate = true};
  const auto n = static_cast<double>(values.size());
  CompensatedSum weighted;
  for (size_t i = 0; i < values.size(); ++i) {
    weighted.Add((2 * static_cast<double>(i + 1) - n - 1) * values[i]);
  }
  return Gini{.value = weighted.value() / (n * total)};
}

std::string ShortNumber(double value) {
  if (value == 0) return "0";
  char text[32];
  const int size = std::snprintf(text, sizeof text, "%.4g", value);
  return {text, static_cast<size_t>(size)};
}

}  // namespace switchyard::stats
