#include "common/spec/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string With(std::string_view report) {
  return StrCat(kSmallSweep,
                "space: {grid: {model.moe.top_k: [2, 4], train.batch: [8, 16]}}\nreport:\n",
                report);
}

// Names are checked against the axes that there are, at submission.
TEST(CheckReport, RefusesWhatCannotBeShown) {
  const std::vector<std::pair<std::string_view, std::string>> cases = {
      {"  compare: [{by: model.moe.top_k, against: 2, margins: [0.01], pool: [train.batch]}]\n",
       ""},
      {"  compare: [{by: model.moe.top_k, pairs: all, at: {train.flops: 1e12}}]\n", ""},
      {"  compare: [{by: seed, unit: batch, pairs: all}]\n", ""},
      {"  compare: [{against: 2}]\n", "report.compare[0].by: is required"},
      {"  compare: [{by: seed, pairs: all}]\n", "goes with unit batch only"},
      {"  compare: [{by: model.moe.top_kk, pairs: all}]\n", "nearest: model.moe.top_k"},
      {"  compare: [{by: train.batch}]\n", "report.compare[0].against: is required, or pairs: all"},
      {"  compare: [{by: train.batch, against: 8, pairs: all}]\n", "one of the two is wanted"},
      {"  compare: [{by: train.batch, against: 8, margins: [0]}]\n", "must be above 0"},
      {"  compare: [{by: train.batch, against: 8, alpha: 0.7}]\n", "not between 0 and 0.5"},
      {"  compare: [{by: train.batch, against: 8, looks: 0}]\n", "0 is not between 1 and 100"},
      {"  compare: [{by: train.batch, against: 8, at: {tokens: 1, wall_seconds: 2}}]\n",
       "names more than one point"},
      {"  compare: [{by: train.batch, against: 8, at: {token: 1}}]\n", "nearest: tokens"},
      {"  compare: [{by: train.batch, against: 8, match: {train.flop: 0.01}}]\n",
       "nearest: train.flops"},
      {"  compare: [{by: train.batch, against: 8, within: [train.batch]}]\n",
       "is in within or pool as well"},
      {"  compare: [{by: train.batch, against: 8, test: mcnemar}]\n", "goes with unit example"},
      {"  compare: [{by: train.batch, against: 8, unit: seed_batch, test: wilcoxon}]\n",
       "is bootstrap, and no other"},
      {"  compare: [{by: train.batch, against: 8, metric: loss}]\n", "not a series SPLIT/METRIC"},
      {"  compare: [{by: train.batch, against: 8, stage: tune}]\n", "the sweep has no stages"},
      {"  compare: [{by: train.batch, against: 8, where: \"batch >\"}]\n",
       "column 8: a value was expected, found the end"},
      {"  compare: [{by: train.batch, against: 8, where: \"batch > 3\"}]\n",
       "nearest: train.batch"},
      {"  table: [{rows: [model.moe.top_k], columns: [train.batch, seed], show: each}]\n", ""},
      {"  table: [{columns: [train.batch]}]\n", "report.table[0].rows: at least one is required"},
      {"  table: [{rows: [expert]}]\n", "'expert' is not an axis"},
      {"  plot: [{y: valid/bits_per_byte, by: [train.batch], band: ci}]\n", ""},
      {"  plot: [{kind: bar}]\n", "report.plot[0].x: is required"},
      {"  plot: [{x: train.batch}]\n", "is no clock of a curve"},
      {"  plot: [{kind: scatter, x: params.total}]\n", "is not an axis"},
      {"  analysis: [usage_entropy, {essi: {rank: 3}}]\n", ""},
      {"  analysis: [usage_entropy, usage_entropy]\n", "is in the list twice"},
  };
  for (const auto& [text, fault] : cases) {
    const std::string found = PlanFaults(With(text));
    if (fault.empty()) {
      EXPECT_EQ(found, "") << text;
    } else {
      EXPECT_THAT(found, HasSubstr(fault)) << text;
    }
  }
}

// Arms in the order of the file, without those that the constraints leave no cell for.
TEST(ArmsOf, AreTheValuesThatCellsHave) {
  EXPECT_THAT(ArmsOf(*PlanOf(With("  plot: [{}]\n")), "model.moe.top_k"), ElementsAre("2", "4"));
  EXPECT_THAT(ArmsOf(*PlanOf(StrCat(kSmallSweep, R"(space:
  grid: {model.moe.top_k: [1, 2, 4]}
  constraints: [model.moe.top_k > 1]
)")),
                     "model.moe.top_k"),
              ElementsAre("2", "4"));
}

// What is registered: the comparison with its defaults, objective, arms and seeds, and no more.
TEST(RegistrationHash, ChangesWithThePlanOnly) {
  pb::CompareSpec compare;
  compare.set_by("arm");
  compare.set_against("smoe");
  compare.add_margins(0.02);
  compare.add_margins(0.01);
  pb::ObjectiveSpec objective;
  objective.set_metric("valid/bits_per_byte");
  const auto hash = [&](const pb::CompareSpec& plan, const pb::ObjectiveSpec& of,
                        const std::vector<std::string>& arms, const std::vector<uint64_t>& seeds) {
    return RegistrationHash(plan, of, arms, seeds);
  };
  const std::string registered = hash(compare, objective, {"smoe", "mcf"}, {1, 2});
  EXPECT_EQ(registered.size(), 64U);
  // Defaults written out, margins and seeds in another order: the same plan.
  pb::CompareSpec written = compare;
  FillCompareDefaults(objective.metric(), &written);
  EXPECT_EQ(written.alpha(), 0.05);
  EXPECT_EQ(written.test(), pb::COMPARE_TEST_PAIRED_T);
  EXPECT_EQ(written.metric(), "valid/bits_per_byte");
  EXPECT_EQ(hash(written, objective, {"smoe", "mcf"}, {2, 1}), registered);
  // Another one.
  pb::CompareSpec looks = compare;
  looks.set_looks(3);
  EXPECT_NE(hash(looks, objective, {"smoe", "mcf"}, {1, 2}), registered);
  EXPECT_NE(hash(compare, objective, {"smoe", "mcf", "rmoe"}, {1, 2}), registered);
  EXPECT_NE(hash(compare, objective, {"smoe", "mcf"}, {1, 2, 3}), registered);
  pb::ObjectiveSpec other = objective;
  other.set_metric("valid/loss");
  EXPECT_NE(hash(compare, other, {"smoe", "mcf"}, {1, 2}), registered);
  // Names that run into each other are not the same names.
  EXPECT_NE(hash(compare, objective, {"ab", "c"}, {1}), hash(compare, objective, {"a", "bc"}, {1}));
}

}  // namespace
}  // namespace switchyard::spec
