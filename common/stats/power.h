#pragma once

#include <cstddef>

#include "common/base/status.h"

// How many pairs a comparison needs (analyses N17). Effects are in units of the standard deviation
// of the paired differences. No normal approximation: at an effect of 1 it asks for two pairs too
// few.
namespace switchyard::stats {

// Two-sided paired t test of n >= 2 pairs at a true difference of `effect` standard deviations.
double PairedTPower(size_t n, double effect, double alpha);
// TOST of n >= 2 pairs with `margin` and true difference `truth`, in standard deviations.
double TostPower(size_t n, double margin, double truth, double alpha);

inline constexpr double kDefaultPower = 0.8;
inline constexpr size_t kMostPairs = 1'000'000;

// The smallest n that reaches `power`. An effect (or margin - |truth|) of 0 or less is refused, as
// is a need of more than kMostPairs.
Result<size_t> PairsForDifference(double effect, double alpha, double power = kDefaultPower);
Result<size_t> PairsForEquivalence(double margin, double truth, double alpha,
                                   double power = kDefaultPower);

// Upper 80 % limit of a standard deviation that was estimated as `sd` from n >= 2 pairs: what a
// plan should assume.
double PilotUpperSd(double sd, size_t n);

}  // namespace switchyard::stats
