#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "server/results/lineage.h"
#include "server/results/summaries.h"

namespace switchyard::results {
namespace {

using scheduler::SummaryRow;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Three attempts, each falling back below the one before: what was cut away stays away.
TEST(Lineage, CutsEachAttemptWhereItsSuccessorResumed) {
  const std::vector<AttemptStart> attempts = {
      {.epoch = {10}, .ordinal = 1, .is_reported = true},
      {.epoch = {20}, .ordinal = 2, .is_reported = true, .resumed_epoch = {10}, .resumed_step = 50},
      {.epoch = {30}, .ordinal = 3, .is_reported = true, .resumed_epoch = {20}, .resumed_step = 40},
      {.epoch = {40}, .ordinal = 4},
  };
  EXPECT_EQ(CanonicalHead(attempts), Epoch{30});
  EXPECT_THAT(CanonicalSegments(attempts, {30}),
              ElementsAre(Segment{{10}, 1, 40}, Segment{{20}, 2, 40}, Segment{{30}, 3, kStepMax}));
  EXPECT_THAT(CanonicalSegments(attempts, {20}, 45),
              ElementsAre(Segment{{10}, 1, 45}, Segment{{20}, 2, 45}));
  EXPECT_THAT(CanonicalSegments(attempts, {0}), IsEmpty());
}

// A trainer that claims to resume from itself, or from a later attempt, cannot make the walk go in
// circles.
TEST(Lineage, EndsAtClaimsThatDoNotGoBack) {
  const std::vector<AttemptStart> attempts = {
      {.epoch = {10}, .ordinal = 1, .is_reported = true, .resumed_epoch = {20}, .resumed_step = 5},
      {.epoch = {20}, .ordinal = 2, .is_reported = true, .resumed_epoch = {10}, .resumed_step = 5},
  };
  EXPECT_THAT(CanonicalSegments(attempts, {20}),
              ElementsAre(Segment{{10}, 1, 5}, Segment{{20}, 2, kStepMax}));
}

void Add(uint64_t step, double value, SummaryRow* row) {
  AddPoint(step, {.value = value, .is_finite = std::isfinite(value)}, row);
}

// Best follows the series' direction and keeps its own step, last is the last, and NaN is counted
// and never best (cases ME2, ME3).
TEST(Summaries, KeepBestAndLastApart) {
  SummaryRow ppl{.series = "valid/word_ppl"};
  for (const auto& [step, value] :
       std::vector<std::pair<uint64_t, double>>{{1, 30}, {2, 20}, {3, 25}, {4, 20}, {5, kNaN}}) {
    Add(step, value, &ppl);
  }
  EXPECT_EQ(ppl.best, 20);
  EXPECT_EQ(ppl.best_step, 2u);
  EXPECT_TRUE(std::isnan(ppl.last));
  EXPECT_EQ(ppl.last_step, 5u);
  EXPECT_EQ(ppl.count, 5u);
  EXPECT_EQ(ppl.non_finite, 1u);
  SummaryRow accuracy{.series = "valid/accuracy"};
  for (const double value : {0.6, 0.9, 0.7}) Add(accuracy.count + 1, value, &accuracy);
  EXPECT_EQ(accuracy.best, 0.9);
  SummaryRow rate{.series = "train/lr"};
  Add(1, 0.1, &rate);
  EXPECT_FALSE(rate.has_best);
  SummaryRow loss{.series = "valid/nats_per_token"};
  for (const double value : {-7.539e-05, -1.2}) Add(loss.count + 1, value, &loss);
  EXPECT_EQ(loss.best, -1.2);
}

// Steps that fall (lenient_steps): last is the end of the curve, not what came last; of equal bests
// the earliest step counts; and batches joined in their order say the same as points one by one.
TEST(Summaries, GoByStepWhateverTheOrderOfArrival) {
  const std::vector<std::pair<uint64_t, double>> points = {{10, 3}, {40, 2}, {20, 2},
                                                           {30, 5}, {40, 4}, {35, 2}};
  SummaryRow whole{.series = "valid/nats_per_token"};
  for (const auto& [step, value] : points) Add(step, value, &whole);
  EXPECT_EQ(whole.last, 4);
  EXPECT_EQ(whole.last_step, 40u);
  EXPECT_EQ(whole.best, 2);
  EXPECT_EQ(whole.best_step, 20u);
  for (size_t cut = 0; cut <= points.size(); ++cut) {
    SummaryRow joined{.series = "valid/nats_per_token"};
    SummaryRow rest = joined;
    for (size_t i = 0; i < points.size(); ++i) {
      Add(points[i].first, points[i].second, i < cut ? &joined : &rest);
    }
    Join(rest, &joined);
    EXPECT_EQ(joined.last, whole.last) << cut;
    EXPECT_EQ(joined.last_step, whole.last_step) << cut;
    EXPECT_EQ(joined.best, whole.best) << cut;
    EXPECT_EQ(joined.best_step, whole.best_step) << cut;
    EXPECT_EQ(joined.count, whole.count) << cut;
  }
}

// Points in columns count as one by one would, vectors by the mean of their finite elements, and
// those above the asked step not at all.
TEST(Summaries, CountColumnsAndVectors) {
  SummaryRow row{.series = "routing/load", .is_vector = true, .shape = {2}};
  const std::vector<float> values = {1,
                                     3,
                                     std::numeric_limits<float>::infinity(),
                                     5,
                                     std::numeric_limits<float>::quiet_NaN(),
                                     -std::numeric_limits<float>::infinity(),
                                     7,
                                     7};
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size() * 4);
  AddPoints(std::vector<uint64_t>{1, 2, 3, 4}, bytes, 2, 3, &row);
  EXPECT_EQ(row.count, 3u);
  // One element that is not finite is enough: it is in no mean.
  EXPECT_EQ(row.non_finite, 2u);
  EXPECT_TRUE(std::isnan(row.last));
  EXPECT_EQ(ValueOf(bytes.substr(0, 8), true).value, 2);
  EXPECT_EQ(ValueOf(bytes.substr(8, 8), true).value, 5);
}

}  // namespace
}  // namespace switchyard::results
