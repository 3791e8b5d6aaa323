// The known answers of published tables and of simulation that each statistic has to give.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "common/base/rng.h"
#include "common/stats/descriptive.h"
#include "common/stats/information.h"
#include "common/stats/looks.h"
#include "common/stats/mean_tests.h"
#include "common/stats/multiple_testing.h"
#include "common/stats/permutation.h"
#include "common/stats/power.h"
#include "common/stats/rank_tests.h"

namespace switchyard::stats {
namespace {

// Three differences with mean 0.101627 and standard deviation 0.002547.
std::vector<double> ThreeDifferences() {
  return {0.101627 - 0.002547, 0.101627, 0.101627 + 0.002547};
}

TEST(KnownAnswersTest, PairedTOnThreeSeeds) {
  const Result<MeanTest> test = PairedT(ThreeDifferences());
  ASSERT_TRUE(test.ok());
  EXPECT_NEAR(test->t, 69.110, 0.02);  // the published 69.120 has unrounded inputs
  EXPECT_NEAR(test->p, 2.0924e-4, 1e-6);
  EXPECT_NEAR(test->At(0.95).low, 0.095301, 2e-6);
  EXPECT_NEAR(test->At(0.95).high, 0.107953, 2e-6);
}

TEST(KnownAnswersTest, TostFromPrintedMeansOfWideAndDeep) {
  // A difference of 0.43 with a standard error of 0.14537 and 2.0576 degrees of freedom.
  const MeanTest test{.estimate = -0.43, .standard_error = 0.14537, .df = 2.0576, .n = 3};
  const Result<Tost> tost = TostOf(test, 1);
  ASSERT_TRUE(tost.ok());
  EXPECT_NEAR(tost->t_low, 3.921, 5e-4);
  EXPECT_NEAR(tost->p, 0.0283, 5e-5);
}

TEST(KnownAnswersTest, TostEdges) {
  const std::vector<double> equal(4, 0.0);
  EXPECT_EQ(TostOf(*PairedT(equal), 1e-9)->p, 0);
  const std::vector<double> shifted(4, 0.5);
  EXPECT_EQ(TostOf(*PairedT(shifted), 0.5)->p, 1);
  EXPECT_EQ(TostOf(*PairedT(shifted), 0.6)->p, 0);
  EXPECT_FALSE(PairedT(std::vector<double>{0.1}).ok());
  EXPECT_FALSE(TostOf(*PairedT(equal), 0).ok());
  EXPECT_FALSE(TostOf(*PairedT(equal), NAN).ok());
  // A difference of exactly the margin is a coin toss.
  EXPECT_NEAR(TostOf(*PairedT(std::vector<double>{0.4, 0.5, 0.6, 0.5}), 0.5)->p, 0.5, 1e-9);
}

TEST(KnownAnswersTest, TostAgreesWithItsInterval) {
  for (uint64_t i = 0; i < 200; ++i) {
    std::vector<double> d;
    for (uint64_t j = 0; j < 6; ++j) {
      d.push_back(0.3 * RandomNormal(RandomKey::For(i, "tost"), j) + 0.1);
    }
    const MeanTest test = *PairedT(d);
    const double margin = 0.35;
    EXPECT_EQ(TostOf(test, margin)->p < 0.05, test.At(0.90).IsInside(margin)) << i;
    EXPECT_NEAR(TostOf(test, SmallestMargin(test, 0.05))->p, 0.05, 1e-9);
  }
}

TEST(KnownAnswersTest, HolmAndBenjaminiHochberg) {
  const std::vector<double> raw = {.001, .008, .039, .041, .042};
  const std::vector<double> holm = Adjust(raw, Correction::kHolm);
  const std::vector<double> bh = Adjust(raw, Correction::kBenjaminiHochberg);
  const std::vector<double> expected_holm = {.005, .032, .117, .117, .117};
  const std::vector<double> expected_bh = {.005, .02, .042, .042, .042};
  for (size_t i = 0; i < raw.size(); ++i) {
    EXPECT_NEAR(holm[i], expected_holm[i], 1e-12);
    EXPECT_NEAR(bh[i], expected_bh[i], 1e-12);
  }
}

TEST(KnownAnswersTest, McNemarOfTwelveAgainstFour) {
  EXPECT_NEAR(McNemarExact(12, 4), 0.076813, 5e-7);
  EXPECT_EQ(McNemarExact(0, 0), 1);
}

TEST(KnownAnswersTest, PairsForADifferenceOrEquivalence) {
  struct Row {
    double effect;
    size_t t;
    double t_power;
    size_t tost;
    double tost_power;
    size_t tost_half;
  };
  for (const Row& row : std::vector<Row>{{.5, 34, .8078, 36, .8051, 101},
                                         {1, 10, .8031, 11, .8490, 27},
                                         {1.5, 6, .8325, 6, .8629, 13},
                                         {2, 5, .9089, 4, .8278, 8},
                                         {3, 4, .9670, 3, .8804, 5}}) {
    EXPECT_EQ(*PairsForDifference(row.effect, 0.05), row.t) << row.effect;
    EXPECT_NEAR(PairedTPower(row.t, row.effect, 0.05), row.t_power, 6e-5);
    EXPECT_EQ(*PairsForEquivalence(row.effect, 0, 0.05), row.tost) << row.effect;
    EXPECT_NEAR(TostPower(row.tost, row.effect, 0, 0.05), row.tost_power, 6e-5);
    EXPECT_EQ(*PairsForEquivalence(row.effect, row.effect / 2, 0.05), row.tost_half) << row.effect;
  }
  // Three pairs detect 3.27 and support margins from 2.66 standard deviations.
  EXPECT_NEAR(PairedTPower(3, 3.27, 0.05), 0.8, 2e-3);
  EXPECT_NEAR(TostPower(3, 2.66, 0, 0.05), 0.8, 2e-3);
  EXPECT_FALSE(PairsForDifference(0, 0.05).ok());
  EXPECT_FALSE(PairsForEquivalence(0.1, 0.1, 0.05).ok());
}

TEST(KnownAnswersTest, TostPowerEqualsSimulation) {
  const RandomKey key = RandomKey::For(1, "tost_power");
  size_t passed = 0;
  const size_t trials = 4000;
  for (size_t i = 0; i < trials; ++i) {
    std::vector<double> d;
    for (size_t j = 0; j < 11; ++j) d.push_back(RandomNormal(key, i * 11 + j));
    passed += TostOf(*PairedT(d), 1)->p < 0.05 ? 1 : 0;
  }
  const double p = TostPower(11, 1, 0, 0.05);
  EXPECT_NEAR(static_cast<double>(passed) / trials, p, 4 * std::sqrt(p * (1 - p) / trials));
}

TEST(KnownAnswersTest, UpperLimitOfAPilotsSpread) {
  const std::vector<std::pair<size_t, double>> rows = {
      {3, 2.12}, {4, 1.73}, {5, 1.56}, {8, 1.35}, {10, 1.29}};
  for (const auto& [n, factor] : rows) EXPECT_NEAR(PilotUpperSd(1, n), factor, 5e-3) << n;
}

TEST(KnownAnswersTest, AnytimeEvidence) {
  EXPECT_NEAR(AnytimeEvidence(2.5, 5, 1), 2.406017, 1e-6);
  EXPECT_NEAR(AnytimeEvidence(4, 8, 1), 15.712734, 1e-6);
  EXPECT_NEAR(AnytimeEvidence(1, 3, 0.5), 0.883883, 1e-6);
}

TEST(KnownAnswersTest, Gini) {
  EXPECT_EQ(GiniCoefficient({2, 2, 2})->value, 0);
  std::vector<double> one_hot(10, 0);
  one_hot[3] = 1;
  EXPECT_NEAR(GiniCoefficient(one_hot)->value, 0.9, 1e-15);
  EXPECT_NEAR(GiniCoefficient({5, 3, 1, 2, 4})->value, 4.0 / 15, 1e-15);
  EXPECT_TRUE(GiniCoefficient({0, 0})->is_degenerate);
  EXPECT_FALSE(GiniCoefficient({1, -1}).ok());
  EXPECT_FALSE(GiniCoefficient({1, NAN}).ok());
}

TEST(KnownAnswersTest, ExpectedInformationAgreesWithPermutations) {
  std::vector<uint32_t> group;
  std::vector<uint32_t> expert;
  const RandomKey key = RandomKey::For(3, "labels");
  for (uint64_t i = 0; i < 2000; ++i) {
    group.push_back(static_cast<uint32_t>(RandomBelow(key, 2 * i, 16)));
    expert.push_back(static_cast<uint32_t>(RandomBelow(key, 2 * i + 1, 16)));
  }
  const MutualInformation exact = MutualInformationOf(*Contingency::Of(group, expert, 16, 16));
  EXPECT_NEAR(PermutedInformation(group, expert, 16, 16, 50, 1), exact.expected,
              4 * 0.0021 / std::sqrt(50.0));
  EXPECT_FALSE(exact.is_collapsed);
}

TEST(KnownAnswersTest, OneClassIsCollapsedAndNotAgreement) {
  const std::vector<uint32_t> zeros(10, 0);
  const MutualInformation both = MutualInformationOf(*Contingency::Of(zeros, zeros, 4, 4));
  EXPECT_TRUE(both.is_collapsed);
  EXPECT_EQ(both.normalised, 0);
  EXPECT_FALSE(Contingency::Of(zeros, std::vector<uint32_t>(9, 0), 4, 4).ok());
  EXPECT_FALSE(Contingency::Of(zeros, std::vector<uint32_t>(10, 7), 4, 4).ok());
}

}  // namespace
}  // namespace switchyard::stats
