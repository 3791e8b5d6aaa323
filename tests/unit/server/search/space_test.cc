#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "server/search/sobol.h"
#include "tests/unit/server/search/worlds.h"

namespace switchyard::search {
namespace {

TEST(Space, EveryUnitGivesAValueOfTheDimension) {
  Dimension stepped = Real("stepped", 0.1, 0.7);
  stepped.step = 0.2;
  Dimension log_int = Int("log_int", 1, 1000);
  log_int.is_log = true;
  const Space space{{Categorical("c", 5),
                     Real("r", -2, 3),
                     Log("l", 1e-4, 3e-3),
                     Int("i", -3, 9),
                     stepped,
                     log_int,
                     Real("to_zero", -1, 0),
                     {.name = "n", .kind = DimensionKind::kNormal, .mean = 2, .sd = 3}}};
  ASSERT_TRUE(space.Check().ok());
  for (const double unit : {0.0, 1e-17, 0.1, 0.25, 0.5, 0.75, 0.999999, std::nextafter(1.0, 0.0)}) {
    const Point point = space.At([unit](size_t) { return unit; });
    EXPECT_TRUE(space.CheckPoint(point).ok()) << unit << " " << space.CheckPoint(point).message();
  }
}

TEST(Space, RealsHaveSixSignificantDigits) {
  EXPECT_EQ(FromUnit(Real("r", 0, 1), 0.123456789), 0.123457);
  EXPECT_EQ(FromUnit(Real("r", 0, 1e6), 0.123456789), 123457);
  EXPECT_EQ(FromUnit(Log("l", 1e-4, 1e-2), 0.5), 0.001);
}

// [low, high): rounding to six digits must not reach the open end.
TEST(Space, RoundingNeverReachesTheOpenEnd) {
  for (const auto& [low, high] :
       {std::pair{0.0, 1.0}, {1e-4, 3e-3}, {-2.0, -1.0}, {-1.0, 0.0}, {0.9999991, 0.9999999}}) {
    const double value = FromUnit(Real("r", low, high), std::nextafter(1.0, 0.0));
    EXPECT_GE(value, low);
    EXPECT_LT(value, high);
  }
}

TEST(Space, StepsAreWholeAndTheLastOneOfARealIsBelowHigh) {
  Dimension d = Real("d", 0, 0.3);
  d.step = 0.1;
  ASSERT_EQ(ValueCount(d), 3U);
  EXPECT_EQ(ValueAt(d, 2), 0.2);
  Dimension i = Int("i", 2, 9);
  i.step = 3;
  ASSERT_EQ(ValueCount(i), 3U);
  EXPECT_EQ(ValueAt(i, 2), 8);
  EXPECT_EQ(ValueCount(Int("i", 4, 32)), 29U);
}

TEST(Space, ToUnitIsTheMiddleOfWhatMapsThere) {
  for (const Dimension& d : {Real("r", -2, 3), Log("l", 1e-4, 3e-3), Int("i", 4, 32)}) {
    for (const double unit : {0.03, 0.2, 0.5, 0.77, 0.98}) {
      const double value = FromUnit(d, unit);
      EXPECT_EQ(FromUnit(d, ToUnit(d, value)), value);
      EXPECT_NEAR(ToUnit(d, value), unit, d.kind == DimensionKind::kInt ? 0.5 / 29 + 1e-9 : 1e-5);
    }
  }
}

TEST(Space, NormalQuantileInvertsTheDistribution) {
  EXPECT_NEAR(NormalQuantile(0.5), 0, 1e-15);
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(NormalQuantile(1e-10), -6.361340902404056, 1e-10);
}

TEST(Space, FaultsNameTheDimension) {
  const auto fault = [](Dimension d) { return Space{{std::move(d)}}.Check().message(); };
  EXPECT_EQ(fault(Real("train.lr", 2, 1)),
            "dimension train.lr: low 2, high 1; low must be below high");
  EXPECT_EQ(fault(Log("lr", 0, 1)), "dimension lr: low 0; a logarithmic one begins above 0");
  EXPECT_NE(fault(Real("r", 0, std::numeric_limits<double>::infinity())), "");
  EXPECT_NE(fault(Int("i", 0.5, 2)), "");
  EXPECT_NE(fault(Categorical("c", 0)), "");
  EXPECT_NE(fault({.name = "n", .kind = DimensionKind::kNormal, .mean = 0, .sd = 0}), "");
  EXPECT_NE(fault(Under(Real("r", 0, 1), 0, 0)), "");
  EXPECT_NE((Space{{Categorical("c", 2), Under(Real("r", 0, 1), 0, 2)}}.Check().message()), "");
  EXPECT_NE((Space{{Real("a", 0, 1), Real("a", 0, 1)}}.Check().message()), "");
}

TEST(Space, PointsFromOutsideAreChecked) {
  const Space space{{Categorical("c", 2), Under(Int("i", 1, 4), 0, 1), Real("r", 0, 1)}};
  EXPECT_TRUE(space.CheckPoint({0.0, std::nullopt, 0.5}).ok());
  EXPECT_TRUE(space.CheckPoint({1.0, 4.0, 0.5}).ok());
  const std::vector<Point> wrong = {{0.0, 1.0, 0.5},  // exists only under the other alternative
                                    {1.0, std::nullopt, 0.5},  // lacks what exists
                                    {2.0, std::nullopt, 0.5},
                                    {1.0, 2.5, 0.5},
                                    {1.0, 5.0, 0.5},
                                    {0.0, std::nullopt, 1.0},
                                    {0.0, std::nullopt, std::numeric_limits<double>::quiet_NaN()},
                                    {0.0, std::nullopt}};
  for (const Point& point : wrong) EXPECT_FALSE(space.CheckPoint(point).ok());
}

// The defining property: 2^m points from a multiple of 2^m put one in each interval of length 2^-m,
// in every dimension, also scrambled.
TEST(Sobol, EveryDyadicIntervalHoldsOnePoint) {
  const SobolSequence sobol(40, RandomKey{99});
  for (size_t d = 0; d < 40; ++d) {
    for (const uint64_t first : {0, 64, 4096}) {
      std::set<int> cells;
      for (uint64_t i = 0; i < 64; ++i) {
        cells.insert(static_cast<int>(sobol.At(d, first + i) * 64));
      }
      ASSERT_EQ(cells.size(), 64U) << "dimension " << d;
    }
  }
}

// Two dimensions together: how many cells of a 16 by 16 grid 256 points reach. Independent draws
// reach 162; a pair that is not perfect reaches a power of two.
TEST(Sobol, PairsOfDimensionsAreEven) {
  constexpr size_t kDimensions = 12;
  const SobolSequence sobol(kDimensions, RandomKey{5});
  double sum = 0;
  for (size_t a = 0; a < kDimensions; ++a) {
    for (size_t b = a + 1; b < kDimensions; ++b) {
      std::set<std::pair<int, int>> cells;
      for (uint64_t i = 0; i < 256; ++i) {
        cells.emplace(static_cast<int>(sobol.At(a, i) * 16), static_cast<int>(sobol.At(b, i) * 16));
      }
      EXPECT_GE(cells.size(), b < 4 ? 128U : 64U) << a << " " << b;
      sum += static_cast<double>(cells.size());
    }
  }
  EXPECT_GE(sum / (kDimensions * (kDimensions - 1) / 2), 190);
}

TEST(Sobol, AnotherSeedIsAnotherScramble) {
  const SobolSequence a(3, RandomKey{1});
  const SobolSequence b(3, RandomKey{2});
  int equal = 0;
  for (uint64_t i = 0; i < 100; ++i) equal += a.At(1, i) == b.At(1, i) ? 1 : 0;
  EXPECT_EQ(equal, 0);
}

}  // namespace
}  // namespace switchyard::search
