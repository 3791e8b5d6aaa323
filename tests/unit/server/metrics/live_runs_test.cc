#include "server/metrics/live_runs.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::server_metrics {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

RunId MakeRun(uint64_t number) { return {{0, number}}; }
SweepId MakeSweep(uint64_t number) { return {{1, number}}; }

class LiveRunsTest : public testing::Test {
 protected:
  void Start(uint64_t run) {
    live_.Start({.run = MakeRun(run), .sweep = MakeSweep(1), .project = "p", .router = "smoe"}, 1);
  }
  // Values of a family, one per run or sweep; empty: it has none.
  std::vector<double> Values(const std::string& name) {
    live_.Publish();
    std::vector<double> values;
    for (const prometheus::MetricFamily& family : live_.MakeCollectable(nullptr)->Collect()) {
      if (family.name != name) continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        values.push_back(family.type == prometheus::MetricType::Counter ? metric.counter.value
                                                                        : metric.gauge.value);
      }
    }
    return values;
  }
  double Value(const std::string& name) {
    const std::vector<double> values = Values(name);
    EXPECT_EQ(values.size(), 1u) << name;
    return values.empty() ? kNaN : values[0];
  }

  LiveRuns live_;
};

// Kind 8: a loss that is no number is shown as one; a later finite one takes its place.
TEST_F(LiveRunsTest, ShowsValuesOfEveryClass) {
  Start(1);
  live_.SetScalar(MakeRun(1), "train/nats_per_token", 5, kNaN, 1000);
  EXPECT_TRUE(std::isnan(Value("switchyard_run_train_loss")));
  live_.SetScalar(MakeRun(1), "train/nats_per_token", 6, -kInf, 2000);
  EXPECT_EQ(Value("switchyard_run_train_loss"), -kInf);
  live_.SetScalar(MakeRun(1), "train/nats_per_token", 7, 2.5, 3000);
  EXPECT_EQ(Value("switchyard_run_train_loss"), 2.5);
  EXPECT_EQ(Value("switchyard_run_step"), 7);
  EXPECT_EQ(Value("switchyard_run_last_step_timestamp_seconds"), 3);
}

// Kinds 8, 9: a counter never falls, though a resumed attempt counts its steps again, and never
// takes a value that is no count: the sweep's sum would stay so for ever.
TEST_F(LiveRunsTest, CountersRiseAndStayFinite) {
  Start(1);
  live_.SetSweep(MakeSweep(1), "p", {});
  for (const double value : {100.0, kInf, kNaN, 80.0}) {
    live_.SetScalar(MakeRun(1), "train/tokens", 5, value, 1000);
    EXPECT_EQ(Value("switchyard_run_train_tokens_total"), 100) << value;
  }
  EXPECT_EQ(Value("switchyard_sweep_tokens_total"), 100);
  live_.End(MakeRun(1));
  EXPECT_EQ(Value("switchyard_sweep_tokens_total"), 100);
  EXPECT_TRUE(Values("switchyard_run_step").empty());
}

// Kind 15: however many runs are live, the newest are shown, up to the cap.
TEST_F(LiveRunsTest, RunsBeyondTheCapAreLeftOut) {
  for (uint64_t run = 1; run <= 1000; ++run) {
    Start(run);
    live_.SetScalar(MakeRun(run), "train/lr", run, 0.1, 1000);
  }
  const std::vector<double> steps = Values("switchyard_run_step");
  EXPECT_EQ(steps.size(), LiveRuns::Caps{}.runs);
  EXPECT_THAT(steps, testing::Each(testing::Gt(600)));
}

}  // namespace
}  // namespace switchyard::server_metrics
