#pragma once

#include <cstddef>
#include <span>

#include "common/base/status.h"
#include "common/stats/descriptive.h"

// Tests of a difference of means, and of its equivalence to 0.
namespace switchyard::stats {

// A difference `estimate` with a standard error that has `df` degrees of freedom. With a standard
// error of 0, t is infinite (0 when the difference is 0 as well).
struct MeanTest {
  double estimate = 0;
  double standard_error = 0;
  double df = 0;
  double t = 0;
  // Two-sided, for a difference of 0.
  double p = 1;
  // Pairs, or the smaller of the two samples.
  size_t n = 0;
  // Of the paired differences; NaN in the unpaired form.
  double sd = 0;

  // Two-sided interval, 0 < confidence < 1.
  Interval At(double confidence) const;
};

// Differences of pairs; refused below 2 or with a non-finite value.
Result<MeanTest> PairedT(std::span<const double> differences);
// Unequal variances; Welch-Satterthwaite degrees of freedom. estimate = mean(a) - mean(b).
Result<MeanTest> WelchT(std::span<const double> a, std::span<const double> b);
// From printed summaries.
Result<MeanTest> WelchFromSummaries(double mean_a, double sd_a, size_t n_a, double mean_b,
                                    double sd_b, size_t n_b);

// Two one-sided tests (Schuirmann): equivalent at alpha iff p < alpha, which is the same as the
// (1 - 2 alpha) interval lying inside (-margin, margin).
struct Tost {
  double margin = 0;
  double t_low = 0;
  double t_high = 0;
  double p = 1;
};
// margin > 0, in the metric's unit.
Result<Tost> TostOf(const MeanTest& test, double margin);
// The smallest margin that passes at alpha: the larger end of the (1 - 2 alpha) interval.
double SmallestMargin(const MeanTest& test, double alpha);

}  // namespace switchyard::stats
