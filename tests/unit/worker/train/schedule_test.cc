#include "worker/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace switchyard::train {
namespace {

// A warm-up of 16 updates lasts 16 updates: rates at 1, 8, 16 and 17.
TEST(LrSchedule, WarmsUpByUpdates) {
  const LrSchedule schedule{.peak = 1.6, .warmup_steps = 16};
  EXPECT_DOUBLE_EQ(schedule.Rate(1), 0.1);
  EXPECT_DOUBLE_EQ(schedule.Rate(8), 0.8);
  EXPECT_DOUBLE_EQ(schedule.Rate(16), 1.6);
  EXPECT_DOUBLE_EQ(schedule.Rate(17), 1.6);
}

// The cosine runs on the absolute update: the warm-up does not shift it, the last update is at 0.
TEST(LrSchedule, CosineIsNotShiftedByTheWarmUp) {
  const LrSchedule schedule{
      .peak = 2, .decay = DecayKind::kCosine, .warmup_steps = 10, .steps_max = 100};
  EXPECT_DOUBLE_EQ(schedule.Rate(9), 1.8);
  EXPECT_DOUBLE_EQ(schedule.Rate(10), 1 + std::cos(std::numbers::pi * 0.1));
  EXPECT_NEAR(schedule.Rate(50), 1, 1e-15);
  EXPECT_NEAR(schedule.Rate(100), 0, 1e-15);
}

// The curve of the MCF-MoE study: peak 7e-4, warm-up 4,000 of 80,000 updates (TXL-6).
TEST(LrSchedule, FollowsTheStudysCurve) {
  const LrSchedule schedule{
      .peak = 7e-4, .decay = DecayKind::kCosine, .warmup_steps = 4000, .steps_max = 80000};
  const auto cosine = [](double part) { return 3.5e-4 * (1 + std::cos(std::numbers::pi * part)); };
  EXPECT_EQ(schedule.Rate(0), 0.0);
  EXPECT_NEAR(schedule.Rate(1), 1.75e-7, 1e-12);
  EXPECT_NEAR(schedule.Rate(3999), 7e-4 * 3999 / 4000, 1e-12);
  EXPECT_NEAR(schedule.Rate(4000), cosine(0.05), 1e-12);
  EXPECT_NEAR(schedule.Rate(4001), cosine(4001.0 / 80000), 1e-12);
  EXPECT_NEAR(schedule.Rate(40000), 3.5e-4, 1e-12);
  EXPECT_NEAR(schedule.Rate(80000), 0.0, 1e-12);
}

// The reference sets the rate after an update: the first runs at the peak, the others one behind.
TEST(LrSchedule, TxlCompatibleRatesAreOneUpdateLate) {
  LrSchedule schedule{.peak = 2, .decay = DecayKind::kCosine, .warmup_steps = 10, .steps_max = 100};
  const double third = schedule.Rate(3);
  schedule.is_txl_compatible = true;
  EXPECT_DOUBLE_EQ(schedule.Rate(1), 2);
  EXPECT_DOUBLE_EQ(schedule.Rate(4), third);
}

// Without a warm-up the first update is already at the schedule's rate.
TEST(LrSchedule, NoWarmUpStartsAtThePeak) {
  const LrSchedule schedule{.peak = 0.3};
  EXPECT_DOUBLE_EQ(schedule.Rate(1), 0.3);
}

}  // namespace
}  // namespace switchyard::train
