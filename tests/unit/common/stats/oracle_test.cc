// Every statistic against scipy, statsmodels and scikit-learn, from tests/golden/stats/stats.json
// (written by tests/parity/make_stats_fixtures.py).
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "common/stats/assignment.h"
#include "common/stats/bootstrap.h"
#include "common/stats/information.h"
#include "common/stats/mean_tests.h"
#include "common/stats/multiple_testing.h"
#include "common/stats/permutation.h"
#include "common/stats/power.h"
#include "common/stats/rank_tests.h"

namespace switchyard::stats {
namespace {

using nlohmann::json;

const json& Golden() {
  static const json golden =
      json::parse(std::ifstream(SWITCHYARD_SOURCE_DIR "/tests/golden/stats/stats.json"));
  return golden;
}

std::vector<double> Doubles(const json& value) { return value.get<std::vector<double>>(); }

// |a - b| relative to b; absolute where b is below the smallest p that anybody reads.
void ExpectClose(double actual, double expected, double relative) {
  EXPECT_LE(std::abs(actual - expected), relative * std::abs(expected) + 1e-300)
      << actual << " against " << expected;
}

std::vector<double> Differences(const json& item) {
  std::vector<double> d = Doubles(item["a"]);
  const std::vector<double> b = Doubles(item["b"]);
  for (size_t i = 0; i < d.size(); ++i) d[i] -= b[i];
  return d;
}

TEST(OracleTest, PairedT) {
  for (const json& item : Golden()["paired"]) {
    const Result<MeanTest> test = PairedT(Differences(item));
    ASSERT_TRUE(test.ok()) << test.status().ToString();
    ExpectClose(test->t, item["t"], 1e-12);
    ExpectClose(test->p, item["p"], 1e-12);
    ExpectClose(test->At(0.95).low, item["low"], 1e-12);
    ExpectClose(test->At(0.95).high, item["high"], 1e-12);
    const Result<Tost> tost = TostOf(*test, item["margin"]);
    ASSERT_TRUE(tost.ok());
    ExpectClose(tost->p, item["tost_p"], 1e-12);
    ExpectClose(Correlation(Doubles(item["a"]), Doubles(item["b"])), item["correlation"], 1e-12);
  }
}

TEST(OracleTest, WelchT) {
  for (const json& item : Golden()["welch"]) {
    const Result<MeanTest> test = WelchT(Doubles(item["a"]), Doubles(item["b"]));
    ASSERT_TRUE(test.ok()) << test.status().ToString();
    ExpectClose(test->t, item["t"], 1e-12);
    ExpectClose(test->p, item["p"], 1e-12);
    ExpectClose(test->df, item["df"], 1e-12);
    ExpectClose(test->At(0.95).low, item["low"], 1e-11);
    ExpectClose(test->At(0.95).high, item["high"], 1e-11);
    const Result<Tost> tost = TostOf(*test, item["margin"]);
    ASSERT_TRUE(tost.ok());
    ExpectClose(tost->p, item["tost_p"], 1e-12);
  }
}

TEST(OracleTest, Wilcoxon) {
  for (const json& item : Golden()["wilcoxon"]) {
    const Result<Wilcoxon> test = WilcoxonSignedRank(Doubles(item["d"]));
    ASSERT_TRUE(test.ok()) << test.status().ToString();
    EXPECT_EQ(test->is_exact, item["exact"].get<bool>());
    ExpectClose(test->statistic, item["statistic"], 1e-12);
    ExpectClose(test->p, item["p"], 1e-12);
  }
}

TEST(OracleTest, McNemar) {
  for (const json& item : Golden()["mcnemar"]) {
    ExpectClose(McNemarExact(item["b"], item["c"]), item["p"], 1e-12);
  }
}

TEST(OracleTest, MultipleTesting) {
  for (const json& item : Golden()["adjust"]) {
    const std::vector<double> p = Doubles(item["p"]);
    const auto expect = [&](Correction correction, const char* name) {
      const std::vector<double> actual = Adjust(p, correction);
      const std::vector<double> expected = Doubles(item[name]);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t i = 0; i < p.size(); ++i) ExpectClose(actual[i], expected[i], 1e-12);
    };
    expect(Correction::kHolm, "holm");
    expect(Correction::kBenjaminiHochberg, "bh");
    expect(Correction::kBenjaminiYekutieli, "by");
    expect(Correction::kNone, "p");
  }
}

TEST(OracleTest, QuantilesInterpolateAsNumpyDoes) {
  for (const json& item : Golden()["quantiles"]) {
    ExpectClose(Quantile(Doubles(item["x"]), item["q"]), item["value"], 1e-14);
  }
}

TEST(OracleTest, BootstrapWithGivenIndicesIsBitwiseNumpys) {
  for (const json& item : Golden()["bootstrap"]) {
    const auto rows = item["index"].get<std::vector<std::vector<uint32_t>>>();
    const Result<Bootstrap> bootstrap =
        BootstrapMean(Doubles(item["x"]), rows.size(), GivenIndices(rows));
    ASSERT_TRUE(bootstrap.ok());
    ExpectClose(bootstrap->At(0.95).low, item["low"], 1e-14);
    ExpectClose(bootstrap->At(0.95).high, item["high"], 1e-14);
  }
}

TEST(OracleTest, ExactPermutations) {
  for (const json& item : Golden()["permutation"]) {
    const Result<Permutation> test = SignFlip(Doubles(item["d"]), 0);
    ASSERT_TRUE(test.ok());
    EXPECT_TRUE(test->is_exact);
    ExpectClose(test->p, item["p"], 1e-12);
  }
  for (const json& item : Golden()["labels"]) {
    const Result<Permutation> test = LabelPermutation(Doubles(item["a"]), Doubles(item["b"]), 0);
    ASSERT_TRUE(test.ok());
    EXPECT_TRUE(test->is_exact);
    ExpectClose(test->p, item["p"], 1e-12);
  }
}

TEST(OracleTest, PowerOfThePairedT) {
  for (const json& item : Golden()["power"]) {
    EXPECT_NEAR(PairedTPower(item["n"], item["effect"], item["alpha"]), item["power"].get<double>(),
                1e-6);
  }
  for (const json& item : Golden()["pilot"]) {
    ExpectClose(PilotUpperSd(1, item["n"]), item["factor"], 1e-10);
  }
}

TEST(OracleTest, MutualInformation) {
  for (const json& item : Golden()["information"]) {
    const auto group = item["group"].get<std::vector<uint32_t>>();
    const auto expert = item["expert"].get<std::vector<uint32_t>>();
    const Result<Contingency> table =
        Contingency::Of(group, expert, item["groups"], item["experts"]);
    ASSERT_TRUE(table.ok());
    const MutualInformation mi = MutualInformationOf(*table);
    EXPECT_NEAR(mi.information, item["mi"].get<double>(), 1e-12);
    EXPECT_NEAR(mi.normalised, item["nmi"].get<double>(), 1e-12);
    EXPECT_NEAR(mi.expected * (mi.group_entropy + mi.expert_entropy) / 2, item["emi"].get<double>(),
                1e-12);
  }
}

TEST(OracleTest, MinimumCostAssignment) {
  for (const json& item : Golden()["assignment"]) {
    const size_t rows = item["rows"];
    const size_t columns = item["cols"];
    const std::vector<double> cost = Doubles(item["cost"]);
    const Result<Assignment> result = stats::MinimumCostAssignment(cost, rows, columns);
    ASSERT_TRUE(result.ok());
    EXPECT_NEAR(result->cost, item["total"].get<double>(), 1e-9);
    std::vector<bool> used(columns, false);
    size_t pairs = 0;
    for (const int64_t column : result->column) {
      if (column == kUnassigned) continue;
      EXPECT_FALSE(used[static_cast<size_t>(column)]);
      used[static_cast<size_t>(column)] = true;
      ++pairs;
    }
    EXPECT_EQ(pairs, std::min(rows, columns));
  }
}

}  // namespace
}  // namespace switchyard::stats
