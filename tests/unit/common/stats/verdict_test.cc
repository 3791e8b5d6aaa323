#include "common/stats/verdict.h"

#include <gtest/gtest.h>

namespace switchyard::stats {
namespace {

VerdictInput Input() {
  return {.estimate = 0.001,
          .difference_p = 0.7,
          .margin = 0.01,
          .equivalence_p = 0.01,
          .difference_interval = {-0.005, 0.007},
          .equivalence_interval = {-0.004, 0.006},
          .n = 8,
          .unit = "bits per byte",
          .sample = "pairs",
          .withheld = ""};
}

TEST(VerdictTest, Equivalent) {
  const Verdict verdict = Judge(Input());
  EXPECT_EQ(verdict.finding, Finding::kEquivalent);
  EXPECT_EQ(verdict.sentence,
            "equivalent within ±0.01 bits per byte, 90 % interval [-0.004, 0.006], 8 pairs");
}

TEST(VerdictTest, EquivalentAndResolved) {
  VerdictInput input = Input();
  input.difference_p = 0.01;
  EXPECT_EQ(Judge(input).finding, Finding::kEquivalentResolved);
  EXPECT_EQ(Judge(input).sentence,
            "equivalent within ±0.01 bits per byte; a difference of 0.001 bits per byte is "
            "resolved, 90 % interval [-0.004, 0.006], 8 pairs");
}

TEST(VerdictTest, BetterAndWorseFollowTheGoal) {
  VerdictInput input = Input();
  input.equivalence_p = 0.8;
  input.difference_p = 0.001;
  input.estimate = -0.05;
  input.difference_interval = {-0.06, -0.04};
  EXPECT_EQ(Judge(input).sentence,
            "better by 0.05 bits per byte (by more than 0.01), 95 % interval [-0.06, -0.04], 8 "
            "pairs");
  input.minimise = false;
  EXPECT_EQ(Judge(input).finding, Finding::kWorse);
  input.difference_interval = {-0.06, -0.002};
  EXPECT_FALSE(Judge(input).is_beyond_margin);
}

TEST(VerdictTest, ANullIsAnIntervalAndNeverNoDifference) {
  VerdictInput input = Input();
  input.equivalence_p = 0.4;
  input.deciding_n = 14;
  const Verdict verdict = Judge(input);
  EXPECT_EQ(verdict.finding, Finding::kUndecided);
  EXPECT_EQ(verdict.sentence,
            "undecided: -0.005 to 0.007 bits per byte is possible (95 % interval, 8 pairs); 14 "
            "pairs would decide");
  EXPECT_EQ(verdict.sentence.find("no difference"), std::string::npos);
}

TEST(VerdictTest, AnInformativeLossWithholdsTheGoodNews) {
  VerdictInput input = Input();
  input.withheld = "seed 3 of mcf ended by guard, memory or time, which may depend on the arm";
  EXPECT_EQ(Judge(input).finding, Finding::kWithheld);
  input.equivalence_p = 0.9;
  EXPECT_EQ(Judge(input).finding, Finding::kUndecided);
}

}  // namespace
}  // namespace switchyard::stats
