#include "server/scheduler/core_clock.h"

#include <gtest/gtest.h>

namespace switchyard::scheduler {
namespace {

// Placement is looked at now and then although nothing happens, first a period after the start.
TEST(CoreClock, ReviewsPlacement) {
  CoreClock clock(Milliseconds(30000));
  clock.Start({1000});
  EXPECT_FALSE(clock.TakeReview({1000 + CoreClock::kReviewPeriod.count() - 1}));
  EXPECT_TRUE(clock.TakeReview({1000 + CoreClock::kReviewPeriod.count()}));
  EXPECT_FALSE(clock.TakeReview({1001 + CoreClock::kReviewPeriod.count()}));
  EXPECT_TRUE(clock.TakeReview({1000 + 2 * CoreClock::kReviewPeriod.count()}));
}

}  // namespace
}  // namespace switchyard::scheduler
