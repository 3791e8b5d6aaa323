#include "common/stats/distributions.h"

#include <boost/math/distributions/binomial.hpp>
#include <boost/math/distributions/chi_squared.hpp>
#include <boost/math/distributions/non_central_t.hpp>
#include <boost/math/distributions/normal.hpp>
#include <boost/math/distributions/students_t.hpp>
#include <boost/math/quadrature/gauss_kronrod.hpp>
#include <cmath>
#include <limits>

namespace switchyard::stats {
namespace bm = boost::math;

double NormalCdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

double NormalQuantile(double p) { return bm::quantile(bm::normal_distribution<double>(), p); }

double StudentCdf(double t, double df) { return StudentTail(-t, df); }

double StudentTail(double t, double df) {
  if (std::isnan(t)) return t;
  if (std::isinf(t)) return t > 0 ? 0 : 1;
  return bm::cdf(bm::complement(bm::students_t_distribution<double>(df), t));
}

double StudentQuantile(double p, double df) {
  if (p <= 0) return -std::numeric_limits<double>::infinity();
  if (p >= 1) return std::numeric_limits<double>::infinity();
  return bm::quantile(bm::students_t_distribution<double>(df), p);
}

double NoncentralStudentCdf(double t, double df, double delta) {
  if (delta == 0) return StudentCdf(t, df);
  return bm::cdf(bm::non_central_t_distribution<double>(df, delta), t);
}

double ChiSquareQuantile(double p, double df) {
  return bm::quantile(bm::chi_squared_distribution<double>(df), p);
}

double ChiSquareDensity(double x, double df) {
  return bm::pdf(bm::chi_squared_distribution<double>(df), x);
}

double BinomialCdf(double k, double n, double p) {
  return bm::cdf(bm::binomial_distribution<double>(n, p), k);
}

double Integrate(double low, double high, double (*f)(double x, const void* context),
                 const void* context) {
  return bm::quadrature::gauss_kronrod<double, 61>::integrate(
      [f, context](double x) { return f(x, context); }, low, high, 12, 1e-12);
}

}  // namespace switchyard::stats
