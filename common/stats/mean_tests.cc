#include "common/stats/mean_tests.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/strings.h"
#include "common/stats/distributions.h"

namespace switchyard::stats {
namespace {

Status CheckSample(std::span<const double> values, std::string_view what) {
  if (values.size() < 2) {
    return FailedPrecondition(StrCat(what, ": ", values.size(), " values, at least 2 are needed"));
  }
  return CheckFinite(values, StrCat(what, ": value"));
}

double Ratio(double numerator, double standard_error) {
  if (standard_error > 0) return numerator / standard_error;
  if (numerator == 0) return 0;
  return std::copysign(std::numeric_limits<double>::infinity(), numerator);
}

MeanTest Finish(MeanTest test) {
  test.t = Ratio(test.estimate, test.standard_error);
  test.p = std::min(1.0, 2 * StudentTail(std::abs(test.t), test.df));
  return test;
}

}  // namespace

Interval MeanTest::At(double confidence) const {
  const double half = StudentQuantile(0.5 + confidence / 2, df) * standard_error;
  return {.low = estimate - half, .high = estimate + half};
}

Result<MeanTest> PairedT(std::span<const double> differences) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSample(differences, "paired t test"));
  MeanTest test;
  test.n = differences.size();
  test.estimate = Mean(differences);
  test.sd = StandardDeviation(differences);
  test.standard_error = test.sd / std::sqrt(static_cast<double>(test.n));
  test.df = static_cast<double>(test.n - 1);
  return Finish(test);
}

Result<MeanTest> WelchT(std::span<const double> a, std::span<const double> b) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSample(a, "Welch t test, first sample"));
  SWITCHYARD_RETURN_IF_ERROR(CheckSample(b, "Welch t test, second sample"));
  return WelchFromSummaries(Mean(a), StandardDeviation(a), a.size(), Mean(b), StandardDeviation(b),
                            b.size());
}

Result<MeanTest> WelchFromSummaries(double mean_a, double sd_a, size_t n_a, double mean_b,
                                    double sd_b, size_t n_b) {
  if (n_a < 2 || n_b < 2) {
    return FailedPrecondition(
        StrCat("Welch t test: samples of ", n_a, " and ", n_b, ", at least 2 each are needed"));
  }
  const double part_a = sd_a * sd_a / static_cast<double>(n_a);
  const double part_b = sd_b * sd_b / static_cast<double>(n_b);
  MeanTest test;
  test.n = std::min(n_a, n_b);
  test.sd = std::numeric_limits<double>::quiet_NaN();
  test.estimate = mean_a - mean_b;
  test.standard_error = std::sqrt(part_a + part_b);
  // Two constant samples leave 0/0; the tests then do not depend on it.
  const double spread = part_a * part_a / static_cast<double>(n_a - 1) +
                        part_b * part_b / static_cast<double>(n_b - 1);
  test.df = spread > 0 ? (part_a + part_b) * (part_a + part_b) / spread
                       : static_cast<double>(n_a + n_b - 2);
  return Finish(test);
}

Result<Tost> TostOf(const MeanTest& test, double margin) {
  if (!(margin > 0) || !std::isfinite(margin)) {
    return InvalidArgument(StrCat("equivalence margin ", margin, ", wanted a number above 0"));
  }
  Tost tost;
  tost.margin = margin;
  tost.t_low = Ratio(test.estimate + margin, test.standard_error);
  tost.t_high = Ratio(test.estimate - margin, test.standard_error);
  if (test.standard_error == 0) {
    // No spread: the difference is what it is.
    tost.p = std::abs(test.estimate) < margin ? 0 : 1;
  } else {
    tost.p = std::max(StudentTail(tost.t_low, test.df), StudentCdf(tost.t_high, test.df));
  }
  return tost;
}

double SmallestMargin(const MeanTest& test, double alpha) {
  const Interval interval = test.At(1 - 2 * alpha);
  return std::max(std::abs(interval.low), std::abs(interval.high));
}

}  // namespace switchyard::stats
