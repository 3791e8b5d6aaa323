#include "server/search/curves.h"

#include <gtest/gtest.h>

#include "tests/unit/server/search/worlds.h"

namespace switchyard::search {
namespace {

TEST(SyntheticCurve, FallsTowardsAFloorThatDependsOnThePoint) {
  const Space space = MixedSpace();
  const Curve curve = SyntheticCurve(space, 100, 1, 0, false);
  const std::vector<Segment> history = {{{0.0, 0.01, std::nullopt, 0.2, 1.0}, 0}};
  EXPECT_GT(curve(history, 1, 10), curve(history, 1, 100));
  EXPECT_GE(curve(history, 1, 100), 1);
  EXPECT_NE(curve(history, 1, 100), curve({{{1.0, 0.01, std::nullopt, 0.2, 1.0}, 0}}, 1, 100));
  EXPECT_EQ(SyntheticCurve(space, 100, 1, 0, true)(history, 1, 10), -curve(history, 1, 10));
}

TEST(SyntheticCurve, NoiseBelongsToSeedAndStep) {
  const Space space = MixedSpace();
  const Curve curve = SyntheticCurve(space, 100, 1, 0.5, false);
  const std::vector<Segment> history = {{{0.0, 0.01, std::nullopt, 0.2, 1.0}, 0}};
  EXPECT_EQ(curve(history, 1, 10), curve(history, 1, 10));
  EXPECT_NE(curve(history, 1, 10), curve(history, 2, 10));
}

TEST(RecordedCurve, TakesTheNearestCellAndTheLineBetweenSteps) {
  const Space space{{Categorical("router", 2), Log("lr", 1e-4, 1)}};
  const Curve curve = *RecordedCurve(space, {{{0.0, 0.001}, 1, 10, 5.0},
                                             {{0.0, 0.001}, 1, 20, 3.0},
                                             {{0.0, 0.001}, 2, 10, 50.0},
                                             {{1.0, 0.1}, 1, 10, 7.0}});
  const std::vector<Segment> near_first = {{{0.0, 0.5}, 0}};
  EXPECT_EQ(curve(near_first, 1, 15), 4.0);
  EXPECT_EQ(curve(near_first, 1, 5), 5.0);
  EXPECT_EQ(curve(near_first, 1, 90), 3.0);
  EXPECT_EQ(curve(near_first, 2, 10), 50.0);
  EXPECT_EQ(curve(near_first, 9, 20), 3.0);  // a seed that was not recorded
  EXPECT_EQ(curve({{{1.0, 0.002}, 0}}, 1, 10), 7.0);
}

TEST(RecordedCurve, RefusesPointsOutsideTheSpace) {
  const Space space{{Log("lr", 1e-4, 1)}};
  EXPECT_EQ(RecordedCurve(space, {}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(RecordedCurve(space, {{{2.0}, 1, 10, 5.0}}).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace switchyard::search
