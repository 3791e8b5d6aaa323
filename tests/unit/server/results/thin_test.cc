#include "server/results/thin.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

namespace switchyard::results {
namespace {

std::vector<store::CurvePoint> Curve(size_t n) {
  std::vector<store::CurvePoint> points;
  for (size_t i = 0; i < n; ++i) {
    points.push_back({.step = i, .value = std::sin(static_cast<double>(i) / 50)});
  }
  return points;
}

// One spike among thousands of points is what a reader looks for: every mean would hide it.
TEST(Thin, KeepsExtremesAndEnds) {
  std::vector<store::CurvePoint> points = Curve(10'000);
  points[4321].value = 99;
  points[8765].value = -99;
  const std::vector<store::CurvePoint> thin = Thin(points, 100);
  ASSERT_LE(thin.size(), 100U);
  EXPECT_GE(thin.size(), 90U);
  EXPECT_EQ(thin.front().step, 0U);
  EXPECT_EQ(thin.back().step, 9999U);
  uint64_t highest = 0;
  uint64_t lowest = 0;
  for (size_t i = 0; i < thin.size(); ++i) {
    if (i > 0) {
      EXPECT_LT(thin[i - 1].step, thin[i].step);
    }
    if (thin[i].value == 99) highest = thin[i].step;
    if (thin[i].value == -99) lowest = thin[i].step;
  }
  EXPECT_EQ(highest, 4321U);
  EXPECT_EQ(lowest, 8765U);
}

// A curve that has diverged must not look healthy because its NaN fell between two kept points.
TEST(Thin, KeepsWhatIsNotFinite) {
  std::vector<store::CurvePoint> points = Curve(1000);
  for (size_t i = 600; i < 1000; ++i) points[i].value = std::numeric_limits<double>::quiet_NaN();
  points[300].value = std::numeric_limits<double>::infinity();
  const std::vector<store::CurvePoint> thin = Thin(points, 30);
  ASSERT_LE(thin.size(), 30U);
  size_t nan = 0;
  size_t infinite = 0;
  for (const store::CurvePoint& point : thin) {
    nan += std::isnan(point.value) ? 1 : 0;
    infinite += std::isinf(point.value) ? 1 : 0;
  }
  EXPECT_GE(nan, 3U);
  EXPECT_EQ(infinite, 1U);
}

TEST(Thin, LeavesShortCurvesAlone) {
  EXPECT_EQ(Thin(Curve(8), 8).size(), 8U);
  EXPECT_EQ(Thin({}, 8).size(), 0U);
  EXPECT_LE(Thin(Curve(9), 8).size(), 8U);
}

}  // namespace
}  // namespace switchyard::results
