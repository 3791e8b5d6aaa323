#include "common/stats/descriptive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace switchyard::stats {
namespace {

TEST(DescriptiveTest, SmallSpreadOnALargeLevelSurvives) {
  const std::vector<double> values = {1e9 + 4, 1e9 + 7, 1e9 + 13, 1e9 + 16};
  EXPECT_EQ(Mean(values), 1e9 + 10);
  EXPECT_EQ(Variance(values), 30);
}

TEST(DescriptiveTest, SumsKeepWhatIsLostOnTheWay) {
  EXPECT_EQ(Sum(std::vector<double>{1, 1e100, 1, -1e100}), 2);
  EXPECT_TRUE(std::isinf(Sum(std::vector<double>{1e308, 1e308})));
  EXPECT_TRUE(std::isnan(Mean({})));
  EXPECT_TRUE(std::isnan(Variance(std::vector<double>{1})));
}

TEST(DescriptiveTest, CorrelationOfAConstantIsNotANumber) {
  EXPECT_TRUE(std::isnan(Correlation(std::vector<double>{1, 1}, std::vector<double>{1, 2})));
  EXPECT_NEAR(Correlation(std::vector<double>{1, 2, 3}, std::vector<double>{-2, -4, -6}), -1,
              1e-15);
}

TEST(DescriptiveTest, AutocorrelationOfAnAlternatingSeries) {
  const std::vector<double> series = {1, -1, 1, -1};
  EXPECT_EQ(Autocorrelation(series, 0), 1);
  EXPECT_EQ(Autocorrelation(series, 1), -0.75);
  EXPECT_EQ(Autocorrelation(std::vector<double>{2, 2, 2}, 1), 0);
}

TEST(DescriptiveTest, ShortNumbers) {
  EXPECT_EQ(ShortNumber(-0.0), "0");
  EXPECT_EQ(ShortNumber(0.0101627), "0.01016");
  EXPECT_EQ(ShortNumber(90), "90");
}

}  // namespace
}  // namespace switchyard::stats
