#pragma once

// Tail probabilities and quantiles, in double precision over the whole range (Boost.Math). Kept in
// one place so that no other file includes its headers.
namespace switchyard::stats {

double NormalCdf(double x);
double NormalQuantile(double p);
// P(T <= t) and P(T > t), df > 0.
double StudentCdf(double t, double df);
double StudentTail(double t, double df);
double StudentQuantile(double p, double df);
// P(T <= t) for the noncentral t with noncentrality `delta`.
double NoncentralStudentCdf(double t, double df, double delta);
double ChiSquareQuantile(double p, double df);
double ChiSquareDensity(double x, double df);
// P(X <= k) for X ~ Binomial(n, p).
double BinomialCdf(double k, double n, double p);
// Integral of f over [low, high] by adaptive Gauss-Kronrod quadrature.
double Integrate(double low, double high, double (*f)(double x, const void* context),
                 const void* context);

}  // namespace switchyard::stats
