#include "common/stats/permutation.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "common/stats/descriptive.h"

namespace switchyard::stats {
namespace {

constexpr double kMostArrangements = 65536;

double Choose(size_t n, size_t k) {
  double result = 1;
  for (size_t i = 1; i <= k; ++i) {
    result = result * static_cast<double>(n - k + i) / static_cast<double>(i);
  }
  return std::round(result);
}

// Arrangements that equal the observed one up to rounding count as equal.
double Threshold(double observed, std::span<const double> values) {
  double scale = 0;
  for (const double value : values) scale += std::abs(value);
  return std::abs(observed) - 1e-13 * scale;
}

// The next subset of equal size in order of its bits (Gosper's rule).
uint32_t NextSubset(uint32_t bits) {
  const uint32_t lowest = bits & (~bits + 1);
  const uint32_t ripple = bits + lowest;
  return ripple | (((bits ^ ripple) >> 2) / lowest);
}

}  // namespace

Result<Permutation> SignFlip(std::span<const double> differences, uint64_t seed) {
  if (differences.empty()) return FailedPrecondition("sign-flip test: no pairs");
  SWITCHYARD_RETURN_IF_ERROR(CheckFinite(differences, "permutation test: value"));
  const size_t n = differences.size();
  const double observed = Sum(differences);
  const double threshold = Threshold(observed, differences);
  Permutation result{.estimate = observed / static_cast<double>(n)};
  uint64_t exceeding = 0;
  if (n <= 16) {
    result.is_exact = true;
    result.arrangements = uint64_t{1} << n;
    for (uint64_t mask = 0; mask < result.arrangements; ++mask) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += (mask >> i & 1) != 0 ? -differences[i] : differences[i];
      exceeding += std::abs(sum) >= threshold ? 1 : 0;
    }
    result.p = static_cast<double>(exceeding) / static_cast<double>(result.arrangements);
    return result;
  }
  const RandomKey key = RandomKey::For(seed, "sign_flip");
  result.arrangements = kMonteCarloPermutations;
  for (uint64_t r = 0; r < result.arrangements; ++r) {
    const RandomKey row = key.With(r);
    double sum = 0;
    uint64_t bits = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i % 64 == 0) bits = RandomBits(row, i / 64);
      sum += (bits >> (i % 64) & 1) != 0 ? -differences[i] : differences[i];
    }
    exceeding += std::abs(sum) >= threshold ? 1 : 0;
  }
  result.p = static_cast<double>(1 + exceeding) / static_cast<double>(1 + result.arrangements);
  return result;
}

Result<Permutation> LabelPermutation(std::span<const double> a, std::span<const double> b,
                                     uint64_t seed) {
  if (a.empty() || b.empty()) return FailedPrecondition("label permutation test: an empty sample");
  std::vector<double> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  SWITCHYARD_RETURN_IF_ERROR(CheckFinite(all, "permutation test: value"));
  // Around the mean, so that rounding is judged on the spread and not on the level.
  const double center = Mean(all);
  for (double& value : all) value -= center;
  const auto n_a = static_cast<double>(a.size());
  const auto n_b = static_cast<double>(b.size());
  const double total = Sum(all);
  const auto difference = [&](double sum_a) { return sum_a / n_a - (total - sum_a) / n_b; };
  const double observed = difference(Sum(std::span(all).first(a.size())));
  const double threshold = Threshold(observed, all);
  Permutation result{.estimate = observed};
  uint64_t exceeding = 0;
  if (all.size() < 32 && Choose(all.size(), a.size()) <= kMostArrangements) {
    result.is_exact = true;
    const uint64_t end = uint64_t{1} << all.size();
    for (uint64_t subset = (uint64_t{1} << a.size()) - 1; subset < end;
         subset = NextSubset(static_cast<uint32_t>(subset))) {
      double sum = 0;
      for (uint64_t bits = subset; bits != 0; bits &= bits - 1) sum += all[std::countr_zero(bits)];
      exceeding += std::abs(difference(sum)) >= threshold ? 1 : 0;
      ++result.arrangements;
      if (subset == ((end - 1) ^ ((uint64_t{1} << b.size()) - 1))) break;
    }
    result.p = static_cast<double>(exceeding) / static_cast<double>(result.arrangements);
    return result;
  }
  const RandomKey key = RandomKey::For(seed, "label_permutation");
  result.arrangements = kMonteCarloPermutations;
  std::vector<size_t> order(all.size());
  for (uint64_t r = 0; r < result.arrangements; ++r) {
    const RandomKey row = key.With(r);
    std::iota(order.begin(), order.end(), 0);
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      std::swap(order[i], order[i + RandomBelow(row, i, all.size() - i)]);
      sum += all[order[i]];
    }
    exceeding += std::abs(difference(sum)) >= threshold ? 1 : 0;
  }
  result.p = static_cast<double>(1 + exceeding) / static_cast<double>(1 + result.arrangements);
  return result;
}

double SmallestPairedP(size_t pairs) {
  return pairs == 0 ? 1 : std::ldexp(1.0, 1 - static_cast<int>(pairs));
}

double SmallestUnpairedP(size_t n_a, size_t n_b) {
  return std::min(1.0, 2 / Choose(n_a + n_b, std::min(n_a, n_b)));
}

Status CheckCanReach(double alpha, size_t pairs) {
  if (SmallestPairedP(pairs) <= alpha) return OkStatus();
  size_t needed = pairs;
  while (SmallestPairedP(needed) > alpha) ++needed;
  return FailedPrecondition(StrCat("with ", pairs, " pairs this test's smallest p is ",
                                   ShortNumber(SmallestPairedP(pairs)), ", above alpha ",
                                   ShortNumber(alpha), "; ", needed,
                                   " pairs are needed (paired_t has no such floor)"));
}

Status CheckCanReach(double alpha, size_t n_a, size_t n_b) {
  if (SmallestUnpairedP(n_a, n_b) <= alpha) return OkStatus();
  size_t needed = std::max<size_t>(1, std::min(n_a, n_b));
  while (SmallestUnpairedP(needed, needed) > alpha) ++needed;
  return FailedPrecondition(StrCat("with ", n_a, " and ", n_b, " seeds this test's smallest p is ",
                                   ShortNumber(SmallestUnpairedP(n_a, n_b)), ", above alpha ",
                                   ShortNumber(alpha), "; ", needed,
                                   " seeds in each arm are needed (welch_t has no such floor)"));
}

}  // namespace switchyard::stats
