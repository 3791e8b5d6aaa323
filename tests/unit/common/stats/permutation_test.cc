#include "common/stats/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace switchyard::stats {
namespace {

TEST(PermutationTest, FloorsOfP) {
  EXPECT_EQ(SmallestPairedP(3), 0.25);
  EXPECT_EQ(SmallestPairedP(5), 0.0625);
  EXPECT_EQ(SmallestPairedP(6), 0.03125);
  EXPECT_NEAR(SmallestUnpairedP(3, 3), 0.1, 1e-15);
  EXPECT_NEAR(SmallestUnpairedP(4, 4), 0.0286, 5e-5);
}

TEST(PermutationTest, ATestThatCannotReachAlphaIsRefusedWithTheNumberItNeeds) {
  const Status paired = CheckCanReach(0.05, 5);
  ASSERT_FALSE(paired.ok());
  EXPECT_NE(paired.message().find("0.0625"), std::string::npos) << paired.message();
  EXPECT_NE(paired.message().find("6 pairs are needed"), std::string::npos) << paired.message();
  EXPECT_TRUE(CheckCanReach(0.05, 6).ok());
  EXPECT_FALSE(CheckCanReach(0.05, 3, 3).ok());
  EXPECT_TRUE(CheckCanReach(0.05, 4, 4).ok());
}

TEST(PermutationTest, AllOnOneSideGivesTheFloor) {
  EXPECT_EQ(SignFlip(std::vector<double>{.1, .2, .3, .4, .5, .6}, 0)->p, 0.03125);
  EXPECT_NEAR(
      LabelPermutation(std::vector<double>{10, 11, 12, 13}, std::vector<double>{1, 2, 3, 4}, 0)->p,
      2.0 / 70, 1e-15);
}

TEST(PermutationTest, ManyPairsAreDrawnAndNeverGiveZero) {
  const std::vector<double> d(40, 1.0);
  const Permutation test = *SignFlip(d, 1);
  EXPECT_FALSE(test.is_exact);
  EXPECT_NEAR(test.p, 1.0 / 10001, 1e-12);
  EXPECT_EQ(SignFlip(d, 1)->p, SignFlip(d, 1)->p);
}

TEST(PermutationTest, EqualValuesAreNoEvidence) {
  EXPECT_EQ(SignFlip(std::vector<double>(6, 0.0), 0)->p, 1);
  EXPECT_EQ(LabelPermutation(std::vector<double>(4, 2.5), std::vector<double>(4, 2.5), 0)->p, 1);
  EXPECT_FALSE(SignFlip(std::vector<double>{NAN}, 0).ok());
}

}  // namespace
}  // namespace switchyard::stats
