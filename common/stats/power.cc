#include "common/stats/power.h"

#include <algorithm>
#include <cmath>

#include "common/base/strings.h"
#include "common/stats/distributions.h"

namespace switchyard::stats {
namespace {

struct TostContext {
  double upper;     // (margin - truth) sqrt(n)
  double lower;     // (margin + truth) sqrt(n)
  double critical;  // t_{1 - alpha, df}
  double df;
};

// The integrand of N17 in u = s / sigma, whose square times df is chi-squared.
double TostIntegrand(double u, const void* opaque) {
  const auto& c = *static_cast<const TostContext*>(opaque);
  if (u <= 0) return 0;
  const double inside = NormalCdf(c.upper - c.critical * u) - NormalCdf(-c.lower + c.critical * u);
  if (inside <= 0) return 0;
  return inside * 2 * c.df * u * ChiSquareDensity(c.df * u * u, c.df);
}

template <typename Power>
Result<size_t> Smallest(const Power& reaches, double goal) {
  size_t low = 1;  // known not to reach, or not defined
  size_t high = 2;
  while (reaches(high) < goal) {
    low = high;
    high *= 2;
    if (high > 2 * kMostPairs) {
      return FailedPrecondition(
          StrCat("more than ", kMostPairs, " pairs would be needed for a power of ", goal));
    }
  }
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    (reaches(middle) < goal ? low : high) = middle;
  }
  return high;
}

Status CheckGoal(double alpha, double power) {
  if (!(alpha > 0 && alpha < 0.5)) {
    return InvalidArgument(StrCat("alpha ", alpha, ", wanted a number in (0, 0.5)"));
  }
  if (!(power > 0 && power < 1)) {
    return InvalidArgument(StrCat("power ", power, ", wanted a number in (0, 1)"));
  }
  return OkStatus();
}

}  // namespace

double PairedTPower(size_t n, double effect, double alpha) {
  const auto df = static_cast<double>(n - 1);
  const double critical = StudentQuantile(1 - alpha / 2, df);
  const double delta = std::abs(effect) * std::sqrt(static_cast<double>(n));
  // Far out the distribution's series loses its footing, and the power is 1 to the last digit.
  if (delta > critical + 40) return 1;
  return 1 - NoncentralStudentCdf(critical, df, delta) + NoncentralStudentCdf(-critical, df, delta);
}

double TostPower(size_t n, double margin, double truth, double alpha) {
  const double root = std::sqrt(static_cast<double>(n));
  const TostContext context{.upper = (margin - truth) * root,
                            .lower = (margin + truth) * root,
                            .critical = StudentQuantile(1 - alpha, static_cast<double>(n - 1)),
                            .df = static_cast<double>(n - 1)};
  const double last = (context.upper + context.lower) / (2 * context.critical);
  // Beyond 40 standard deviations of u there is no mass.
  const double spread = 40 / std::sqrt(2 * context.df);
  const double low = std::max(0.0, 1 - spread);
  const double high = std::min(last, 1 + spread);
  if (high <= low) return 0;
  return Integrate(low, high, &TostIntegrand, &context);
}

Result<size_t> PairsForDifference(double effect, double alpha, double power) {
  SWITCHYARD_RETURN_IF_ERROR(CheckGoal(alpha, power));
  if (!(std::abs(effect) > 0)) {
    return FailedPrecondition("no number of pairs detects a difference of 0");
  }
  return Smallest([&](size_t n) { return PairedTPower(n, effect, alpha); }, power);
}

Result<size_t> PairsForEquivalence(double margin, double truth, double alpha, double power) {
  SWITCHYARD_RETURN_IF_ERROR(CheckGoal(alpha, power));
  if (!(margin > std::abs(truth))) {
    return FailedPrecondition(
        StrCat("no number of pairs shows a difference of ", truth, " to be inside ±", margin));
  }
  return Smallest([&](size_t n) { return TostPower(n, margin, truth, alpha); }, power);
}

double PilotUpperSd(double sd, size_t n) {
  const auto df = static_cast<double>(n - 1);
  return sd * std::sqrt(df / ChiSquareQuantile(0.2, df));
}

}  // namespace switchyard::stats
