#include "common/stats/comparison.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/base/rng.h"
#include "common/stats/mean_tests.h"

namespace switchyard::stats {
namespace {

void Add(std::vector<Observation>& out, const std::string& arm, uint64_t seed, double value,
         const std::string& within = "", const std::string& pool = "") {
  out.push_back(
      {.arm = arm, .within = within, .pool = pool, .seed = seed, .value = value, .parts = {}});
}

std::vector<Observation> TwoArms(size_t seeds, double shift, double noise) {
  std::vector<Observation> out;
  const RandomKey key = RandomKey::For(1, "arms");
  for (uint64_t s = 1; s <= seeds; ++s) {
    const double level = 2 + 0.1 * RandomNormal(key, s);
    Add(out, "smoe", s, level);
    Add(out, "mcf", s, level + shift + noise * RandomNormal(key, 100 + s));
  }
  return out;
}

ComparisonPlan Plan() {
  ComparisonPlan plan;
  plan.against = "smoe";
  plan.metric_unit = "bits per byte";
  return plan;
}

TEST(ComparisonTest, PairsBySeedAndNotByOrder) {
  std::vector<Observation> data = TwoArms(8, 0.001, 0.002);
  ComparisonPlan plan = Plan();
  plan.margins = {0.01};
  const Result<Comparison> in_order = Compare(plan, data);
  std::reverse(data.begin() + 2, data.end());
  const Result<Comparison> reversed = Compare(plan, data);
  ASSERT_TRUE(in_order.ok()) << in_order.status().ToString();
  ASSERT_TRUE(reversed.ok());
  const ComparisonResult& result = in_order->results[0];
  EXPECT_EQ(result.arm, "mcf");
  EXPECT_EQ(result.n, 8u);
  EXPECT_GT(result.correlation, 0.9);
  EXPECT_EQ(result.verdict.finding, Finding::kEquivalent) << result.verdict.sentence;
  EXPECT_EQ(result.p, reversed->results[0].p);
}

TEST(ComparisonTest, ASeedWithoutBothArmsIsNamedAndLeft) {
  std::vector<Observation> data = TwoArms(6, 0.2, 0.01);
  data[4].absence = Absence::kFailed;  // smoe, seed 3
  const Comparison comparison = *Compare(Plan(), data);
  const ComparisonResult& result = comparison.results[0];
  EXPECT_EQ(result.n, 5u);
  ASSERT_EQ(result.missing.size(), 1u);
  EXPECT_EQ(result.missing[0].seed, 3u);
  EXPECT_EQ(result.missing[0].arm, "smoe");
  EXPECT_EQ(result.verdict.finding, Finding::kWorse);
}

TEST(ComparisonTest, ALossThatMayDependOnTheArmWithholdsABetterVerdict) {
  std::vector<Observation> data = TwoArms(6, -0.2, 0.01);
  data[5].absence = Absence::kInformative;  // mcf, seed 3
  const Comparison comparison = *Compare(Plan(), data);
  EXPECT_EQ(comparison.results[0].verdict.finding, Finding::kWithheld);
  EXPECT_NE(comparison.results[0].verdict.sentence.find("seed 3 of mcf"), std::string::npos);
}

TEST(ComparisonTest, ChildrenOfASeedAreAveragedFirst) {
  std::vector<Observation> data;
  for (uint64_t s = 1; s <= 4; ++s) {
    const auto level = static_cast<double>(s);
    Add(data, "a", s, level);
    for (const double child : {-0.3, 0.1, 0.5}) Add(data, "b", s, level + child + 0.01 * level);
  }
  ComparisonPlan plan = Plan();
  plan.against = "a";
  const Comparison comparison = *Compare(plan, data);
  EXPECT_EQ(comparison.results[0].n, 4u);
  EXPECT_NEAR(comparison.results[0].estimate, 0.125, 1e-12);
}

TEST(ComparisonTest, ASeedThatLacksAPooledCellIsLeft) {
  std::vector<Observation> data;
  for (uint64_t s = 1; s <= 4; ++s) {
    for (const char* task : {"rte", "sst2"}) {
      Add(data, "a", s, 0.5, "", task);
      if (s != 2 || task[0] == 'r')
        Add(data, "b", s, 0.5 + 0.01 * static_cast<double>(s), "", task);
    }
  }
  ComparisonPlan plan = Plan();
  plan.against = "a";
  const Comparison comparison = *Compare(plan, data);
  EXPECT_EQ(comparison.results[0].n, 3u);
  EXPECT_EQ(comparison.results[0].missing.at(0).arm, "b");
}

TEST(ComparisonTest, TheFamilyIsEveryComparisonPrinted) {
  std::vector<Observation> data;
  for (const char* within : {"2 layers", "4 layers"}) {
    for (uint64_t s = 1; s <= 5; ++s) {
      const auto x = static_cast<double>(s);
      Add(data, "smoe", s, x, within);
      Add(data, "mcf", s, x + 0.1 + 0.04 * std::sin(7 * x), within);
      Add(data, "rmoe", s, x + 0.02 * std::cos(5 * x), within);
    }
  }
  const Comparison comparison = *Compare(Plan(), data);
  EXPECT_EQ(comparison.family_size, 4u);
  ASSERT_EQ(comparison.results.size(), 4u);
  for (const ComparisonResult& result : comparison.results) {
    EXPECT_GE(result.adjusted_p, result.p);
    EXPECT_GT(result.family_interval.width(), result.difference_interval.width());
  }
  ComparisonPlan pairs = Plan();
  pairs.against = "";
  EXPECT_EQ(Compare(pairs, data)->family_size, 6u);
}

TEST(ComparisonTest, LooksDivideAlphaAndMoreThanPlannedAreExploratory) {
  ComparisonPlan plan = Plan();
  plan.looks = 2;
  const std::vector<Observation> data = TwoArms(5, 0.1, 0.02);
  const Comparison first = *Compare(plan, data);
  EXPECT_FALSE(first.is_exploratory);
  EXPECT_NEAR(first.results[0].confidence, 0.975, 1e-12);
  EXPECT_NEAR(first.results[0].adjusted_p, std::min(1.0, 2 * first.results[0].p), 1e-15);
  plan.look = 3;
  EXPECT_TRUE(Compare(plan, data)->is_exploratory);
}

TEST(ComparisonTest, RefusesATestThatCannotReachAlpha) {
  ComparisonPlan plan = Plan();
  for (const TestKind test :
       {TestKind::kWilcoxon, TestKind::kSignFlip, TestKind::kLabelPermutation}) {
    plan.test = test;
    const Result<Comparison> result = Compare(plan, TwoArms(3, 0.1, 0.01));
    ASSERT_FALSE(result.ok()) << Name(test);
    EXPECT_NE(result.status().message().find("needed"), std::string::npos)
        << result.status().message();
    EXPECT_TRUE(Compare(plan, TwoArms(8, 0.1, 0.01)).ok()) << Name(test);
  }
}

// With Holm over m comparisons the smallest p must come to alpha / m: a floor above it is refused
// although one comparison alone would pass.
TEST(ComparisonTest, TheFloorOfATestIsHeldAgainstTheFamily) {
  std::vector<Observation> data = TwoArms(6, 0.1, 0.01);
  ComparisonPlan plan = Plan();
  plan.test = TestKind::kSignFlip;
  ASSERT_TRUE(Compare(plan, data).ok());
  for (uint64_t s = 1; s <= 6; ++s) Add(data, "hash", s, 3 + 0.01 * static_cast<double>(s));
  EXPECT_FALSE(Compare(plan, data).ok());
  plan.correction = Correction::kBenjaminiHochberg;
  EXPECT_TRUE(Compare(plan, data).ok());
}

// An arm that has lost its runs has no verdict; the other arms keep theirs, in a family that still
// counts it.
TEST(ComparisonTest, AnArmWithoutPairsSpoilsOnlyItsOwnVerdict) {
  std::vector<Observation> data = TwoArms(8, -0.5, 0.01);
  for (uint64_t s = 1; s <= 8; ++s) {
    Add(data, "rmoe", s, 0);
    data.back().absence = Absence::kInformative;
  }
  const Result<Comparison> comparison = Compare(Plan(), data);
  ASSERT_TRUE(comparison.ok()) << comparison.status().ToString();
  EXPECT_EQ(comparison->family_size, 2u);
  EXPECT_EQ(comparison->results[0].verdict.finding, Finding::kBetter);
  const ComparisonResult& lost = comparison->results[1];
  EXPECT_EQ(lost.verdict.finding, Finding::kWithheld);
  EXPECT_NE(lost.verdict.sentence.find("0 pairs, at least 2 are needed; seed 1 of rmoe"),
            std::string::npos)
      << lost.verdict.sentence;
  EXPECT_EQ(lost.adjusted_p, 1);
  EXPECT_TRUE(std::isnan(lost.estimate));
}

TEST(ComparisonTest, RefusesWhenNoPairIsComplete) {
  const Result<Comparison> comparison = Compare(Plan(), TwoArms(1, 0.1, 0.01));
  ASSERT_FALSE(comparison.ok());
  EXPECT_EQ(comparison.status().message(),
            "mcf against smoe: 1 seeds have a value in both arms; at least 2 are needed");
}

// Two arms of one spec with disjoint seeds (analyses N19), over 2,000 independent experiments: the
// rejections of an exact test lie in the exact binomial 99.9 % range at alpha = 0.05.
TEST(ComparisonTest, AnAAComparisonRejectsAsOftenAsAlphaSays) {
  constexpr size_t kTrials = 2000;
  constexpr uint64_t kSeeds = 8;
  const RandomKey key = RandomKey::For(7, "a/a");
  for (const TestKind test : {TestKind::kWelchT, TestKind::kLabelPermutation}) {
    ComparisonPlan plan = Plan();
    plan.against = "first";
    plan.test = test;
    plan.margins = {};
    size_t rejections = 0;
    for (uint64_t trial = 0; trial < kTrials; ++trial) {
      std::vector<Observation> data;
      for (uint64_t s = 0; s < 2 * kSeeds; ++s) {
        const double noise = RandomNormal(key, trial * 2 * kSeeds + s);
        Add(data, s < kSeeds ? "first" : "second", s, 1.2 + 0.01 * noise);
      }
      const Result<Comparison> comparison = Compare(plan, data);
      ASSERT_TRUE(comparison.ok()) << comparison.status().ToString();
      const Finding finding = comparison->results[0].verdict.finding;
      rejections += finding == Finding::kBetter || finding == Finding::kWorse ? 1 : 0;
    }
    const double share = static_cast<double>(rejections) / kTrials;
    EXPECT_LE(share, 0.0665) << Name(test);
    if (test == TestKind::kWelchT) {
      EXPECT_GE(share, 0.0345);
    }
  }
}

// The same through pairs, a family of three and Holm: some rejection in at most alpha of the
// experiments.
TEST(ComparisonTest, AFamilyOfAAComparisonsHoldsItsLevel) {
  constexpr size_t kTrials = 2000;
  const RandomKey key = RandomKey::For(8, "a/a family");
  size_t rejections = 0;
  for (uint64_t trial = 0; trial < kTrials; ++trial) {
    std::vector<Observation> data;
    for (uint64_t s = 0; s < 6; ++s) {
      const double level = RandomNormal(key, trial * 64 + 60 - s);
      for (uint64_t arm = 0; arm < 4; ++arm) {
        Add(data, arm == 0 ? "smoe" : "arm" + std::to_string(arm), s,
            level + 0.1 * RandomNormal(key, trial * 64 + s * 4 + arm));
      }
    }
    const Comparison comparison = *Compare(Plan(), data);
    rejections += std::any_of(comparison.results.begin(), comparison.results.end(),
                              [](const ComparisonResult& result) {
                                return result.verdict.finding != Finding::kUndecided;
                              })
                      ? 1
                      : 0;
  }
  EXPECT_LE(static_cast<double>(rejections) / kTrials, 0.0665);
  EXPECT_GT(rejections, 0u);
}

TEST(ComparisonTest, RefusesWhatDoesNotGoTogether) {
  const std::vector<Observation> data = TwoArms(4, 0, 0.1);
  ComparisonPlan plan = Plan();
  plan.against = "dense";
  EXPECT_EQ(Compare(plan, data).status().message(), "against is dense; the arms are smoe, mcf");
  plan = Plan();
  plan.test = TestKind::kWilcoxon;
  plan.margins = {0.1};
  EXPECT_FALSE(Compare(plan, data).ok());
  plan = Plan();
  plan.unit = Unit::kBatch;
  EXPECT_FALSE(Compare(plan, data).ok());
  plan = Plan();
  plan.margins = {-1};
  EXPECT_FALSE(Compare(plan, data).ok());
  EXPECT_FALSE(Compare(Plan(), TwoArms(1, 0, 0.1)).ok());
  EXPECT_FALSE(Compare(Plan(), {data[0]}).ok());
}

TEST(ComparisonTest, BatchesOfTwoCheckpointsAndCrossedSeeds) {
  std::vector<Observation> data;
  const RandomKey key = RandomKey::For(4, "batches");
  for (uint64_t s = 1; s <= 5; ++s) {
    Observation a{.arm = "a", .seed = s, .value = 1, .parts = {}};
    Observation b{.arm = "b", .seed = s, .value = 1, .parts = {}};
    for (uint64_t i = 0; i < 60; ++i) {
      const double text = RandomNormal(key, i);
      a.parts.push_back(3 + text);
      b.parts.push_back(3.02 + text + 0.01 * RandomNormal(key, 1000 * s + i));
    }
    data.push_back(a);
    data.push_back(b);
  }
  ComparisonPlan plan = Plan();
  plan.against = "a";
  plan.test = TestKind::kBootstrap;
  plan.unit = Unit::kSeedBatch;
  plan.margins = {0.05};
  plan.resamples = 2000;
  const Comparison crossed = *Compare(plan, data);
  EXPECT_NEAR(crossed.results[0].estimate, 0.02, 0.002);
  EXPECT_EQ(crossed.results[0].verdict.finding, Finding::kEquivalentResolved);
  plan.unit = Unit::kBatch;
  EXPECT_FALSE(Compare(plan, data).ok());  // five seeds match
  data.resize(2);
  const Comparison batch = *Compare(plan, data);
  EXPECT_EQ(batch.results[0].n, 60u);
  EXPECT_FALSE(batch.results[0].warnings.empty());
}

TEST(ComparisonTest, McNemarCountsDiscordantExamples) {
  Observation a{.arm = "a", .seed = 1, .parts = {}};
  Observation b{.arm = "b", .seed = 1, .parts = {}};
  for (int i = 0; i < 40; ++i) {
    a.parts.push_back(i < 4 || i >= 16 ? 1 : 0);
    b.parts.push_back(i >= 4 ? 1 : 0);
  }
  ComparisonPlan plan = Plan();
  plan.against = "a";
  plan.minimise = false;
  plan.test = TestKind::kMcNemar;
  plan.unit = Unit::kExample;
  const Comparison comparison = *Compare(plan, {a, b});
  EXPECT_NEAR(comparison.results[0].p, 0.076813, 5e-7);
  EXPECT_NEAR(comparison.results[0].estimate, 0.2, 1e-12);
}

TEST(ComparisonTest, NamesRoundTrip) {
  for (const char* name : {"paired_t", "welch_t", "wilcoxon", "sign_flip", "label_permutation",
                           "bootstrap", "mcnemar"}) {
    EXPECT_EQ(Name(*TestNamed(name)), name);
  }
  for (const char* name : {"seed", "batch", "seed_batch", "example"}) {
    EXPECT_EQ(Name(*UnitNamed(name)), name);
  }
  EXPECT_FALSE(TestNamed("t").has_value());
  EXPECT_FALSE(UnitNamed("run").has_value());
}

}  // namespace
}  // namespace switchyard::stats
