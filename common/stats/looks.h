#pragma once

#include <cstddef>
#include <span>

#include "common/stats/descriptive.h"

// Looking at a comparison more than once (analyses N18).
namespace switchyard::stats {

// Of `looks` planned looks, each is made at alpha / looks: p = min(1, looks * p).
double AdjustForLooks(double p, size_t looks);

// Evidence against a mean of 0 that may be looked at any time: the Bayes factor of the t test with
// an effect of N(0, g) and a right-Haar scale; n >= 2. An infinite t gives infinity.
double AnytimeEvidence(double t, size_t n, double g = 1);
// p after a series of looks: min(1, 1 / max evidence).
double AnytimeP(std::span<const double> evidences);
// All means that the evidence does not reject at alpha; unbounded while n is too small.
Interval AnytimeInterval(double mean, double standard_error, size_t n, double alpha, double g = 1);

// Share of all ways (at most `most`, in order) to split `values` into two arms, the first of size
// n_a, at which Welch's test rejects at alpha (analyses N19: the splits of one pool depend on each
// other, so the share has no bound to be held against). NaN when an arm would have fewer than 2.
double SplitRejectionShare(std::span<const double> values, size_t n_a, double alpha,
                           size_t most = 10'000);

}  // namespace switchyard::stats
