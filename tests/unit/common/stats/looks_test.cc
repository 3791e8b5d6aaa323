#include "common/stats/looks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "common/stats/mean_tests.h"

namespace switchyard::stats {
namespace {

std::vector<double> Normals(uint64_t seed, size_t n) {
  const RandomKey key = RandomKey::For(seed, "looks");
  std::vector<double> values;
  for (size_t i = 0; i < n; ++i) values.push_back(RandomNormal(key, i));
  return values;
}

TEST(LooksTest, PlannedLooksKeepTheErrorAndUnplannedOnesDoNot) {
  const size_t trials = 3000;
  size_t uncorrected = 0;
  size_t corrected = 0;
  for (size_t i = 0; i < trials; ++i) {
    const std::vector<double> d = Normals(i, 8);
    double lowest = 1;
    for (const size_t n : {3, 5, 8}) lowest = std::min(lowest, PairedT(std::span(d).first(n))->p);
    uncorrected += lowest <= 0.05 ? 1 : 0;
    corrected += AdjustForLooks(lowest, 3) <= 0.05 ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(uncorrected) / trials, 0.118, 0.024);
  EXPECT_NEAR(static_cast<double>(corrected) / trials, 0.043, 0.015);
}

TEST(LooksTest, AnytimeEvidenceMayBeLookedAtAfterEveryPair) {
  const size_t trials = 1500;
  size_t rejected = 0;
  for (size_t i = 0; i < trials; ++i) {
    const std::vector<double> d = Normals(10'000 + i, 200);
    double largest = 0;
    for (size_t n = 2; n <= 200; ++n) {
      const MeanTest test = *PairedT(std::span(d).first(n));
      largest = std::max(largest, AnytimeEvidence(test.t, n));
    }
    rejected += AnytimeP({{largest}}) <= 0.05 ? 1 : 0;
  }
  EXPECT_LE(static_cast<double>(rejected) / trials, 0.05);
}

TEST(LooksTest, AnytimeIntervalIsWhereTheEvidenceStops) {
  const Interval interval = AnytimeInterval(1.5, 0.2, 12, 0.05);
  EXPECT_NEAR(AnytimeEvidence((1.5 - interval.low) / 0.2, 12), 20, 1e-9);
  EXPECT_NEAR(interval.high - 1.5, 1.5 - interval.low, 1e-12);
  EXPECT_TRUE(std::isinf(AnytimeInterval(1.5, 0.2, 2, 0.05).high));
}

TEST(LooksTest, TwoArmsOfOneSpecAreRejectedAtTheNominalRate) {
  // 2,000 independent comparisons; the exact binomial 99.9 % range at 0.05.
  const size_t trials = 2000;
  size_t welch = 0;
  size_t paired = 0;
  for (size_t i = 0; i < trials; ++i) {
    const std::vector<double> x = Normals(50'000 + i, 16);
    const std::span<const double> a = std::span(x).first(8);
    const std::span<const double> b = std::span(x).last(8);
    welch += WelchT(a, b)->p <= 0.05 ? 1 : 0;
    std::vector<double> d;
    for (size_t j = 0; j < 8; ++j) d.push_back(a[j] - b[j]);
    paired += PairedT(d)->p <= 0.05 ? 1 : 0;
  }
  for (const size_t rejected : {welch, paired}) {
    const double rate = static_cast<double>(rejected) / trials;
    EXPECT_GE(rate, 0.0345);
    EXPECT_LE(rate, 0.0665);
  }
}

TEST(LooksTest, SplitsOfOnePool) {
  const double share = SplitRejectionShare(Normals(1, 10), 5, 0.05);
  EXPECT_GE(share, 0);
  EXPECT_LE(share, 0.2);
  EXPECT_TRUE(std::isnan(SplitRejectionShare(Normals(1, 3), 2, 0.05)));
  // Two values far from the rest: the split that parts them from the rest rejects.
  EXPECT_GT(SplitRejectionShare(std::vector<double>{0, 0.1, 0.2, 9, 9.1, 9.2}, 3, 0.05), 0.09);
}

}  // namespace
}  // namespace switchyard::stats
