#include "server/scheduler/transitions.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace switchyard::scheduler {
namespace {

template <typename State>
std::set<std::pair<int, int>> AllowedPairs(int states) {
  std::set<std::pair<int, int>> out;
  for (int from = 1; from <= states; ++from) {
    for (int to = 1; to <= states; ++to) {
      if (IsAllowed(static_cast<State>(from), static_cast<State>(to))) out.insert({from, to});
    }
  }
  return out;
}

// The run's machine has exactly the transitions R2 to R18, and a terminal run never changes.
TEST(Transitions, RunsFollowTheTable) {
  const std::set<std::pair<int, int>> expected{
      {1, 3}, {1, 4}, {1, 6}, {1, 8}, {2, 1}, {2, 4}, {2, 6}, {2, 8}, {3, 1}, {3, 2},
      {3, 4}, {3, 5}, {3, 6}, {3, 7}, {3, 8}, {3, 9}, {4, 1}, {4, 6}, {4, 8}};
  EXPECT_EQ(AllowedPairs<RunState>(9), expected);
}

// A sweep is never revived, and is cancelled only through CANCELLING.
TEST(Transitions, SweepsFollowTheTable) {
  const std::set<std::pair<int, int>> expected{{1, 2}, {1, 3}, {1, 4}, {2, 1}, {2, 3}, {3, 5}};
  EXPECT_EQ(AllowedPairs<SweepState>(5), expected);
}

// Every attempt state that is not terminal can end in five ways; none goes back.
TEST(Transitions, AttemptsOnlyGoForward) {
  for (const auto& [from, to] : AllowedPairs<AttemptState>(9)) {
    EXPECT_LT(from, to);
    EXPECT_LT(from, 5);
  }
  EXPECT_EQ(AllowedPairs<AttemptState>(9).size(), 4u * 5u + 3u + 2u + 1u);
}

// A member can be lost from every live state; WEDGED is left only by its end.
TEST(Transitions, MembersFollowTheTable) {
  const std::set<std::pair<int, int>> expected{{1, 2}, {1, 3}, {1, 7}, {1, 9}, {2, 3}, {2, 7},
                                               {2, 9}, {3, 4}, {3, 6}, {3, 8}, {3, 9}, {4, 5},
                                               {4, 6}, {4, 8}, {4, 9}, {5, 6}, {5, 9}};
  EXPECT_EQ(AllowedPairs<MemberState>(9), expected);
}

}  // namespace
}  // namespace switchyard::scheduler
