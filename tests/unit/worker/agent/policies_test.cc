#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "worker/agent/agent_state_contact.h"
#include "worker/agent/agent_state_hang.h"
#include "worker/agent/agent_state_spool.h"
#include "worker/agent/agent_state_transitions.h"

namespace switchyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kSecond = 1'000'000'000;

template <typename States>
std::set<std::pair<std::string, std::string>> AllowedPairs(const States& states) {
  std::set<std::pair<std::string, std::string>> out;
  for (const auto from : states) {
    for (const auto to : states) {
      if (IsAllowed(from, to)) out.insert({std::string(Name(from)), std::string(Name(to))});
    }
  }
  return out;
}

// All pairs: a record goes forward only, ends once, and is never launched again.
TEST(AgentTransitions, RecordsFollowTheTable) {
  const std::set<std::pair<std::string, std::string>> expected{{"NONE", "LAUNCHING"},
                                                               {"NONE", "REFUSED"},
                                                               {"LAUNCHING", "RUNNING"},
                                                               {"LAUNCHING", "EXITED"},
                                                               {"RUNNING", "EXITED"}};
  EXPECT_EQ(AllowedPairs(kRecordStates), expected);
}

// All pairs: nothing that is not committed is ever deleted.
TEST(AgentTransitions, SegmentsFollowTheTable) {
  const std::set<std::pair<std::string, std::string>> expected{{"OPEN", "SEALED"},
                                                               {"SEALED", "COMMITTED"},
                                                               {"COMMITTED", "DURABLE"},
                                                               {"COMMITTED", "DELETED"},
                                                               {"DURABLE", "DELETED"}};
  EXPECT_EQ(AllowedPairs(kSegmentStates), expected);
}

// The first try spreads a fleet over 300 a second; later ones double up to two minutes.
TEST(ContactPolicy, SpreadsAFleet) {
  EXPECT_EQ(ReconnectSpanNs(0, 1), kSecond / 5);
  EXPECT_EQ(ReconnectSpanNs(0, 9000), 30 * kSecond);
  EXPECT_EQ(ReconnectSpanNs(1, 9000), 60 * kSecond);
  EXPECT_EQ(ReconnectSpanNs(2, 9000), 120 * kSecond);
  EXPECT_EQ(ReconnectSpanNs(1000, 9000), 120 * kSecond);
  EXPECT_EQ(ReconnectSpanNs(3, 1), 8 * kSecond / 5);
  EXPECT_EQ(ReconnectSpanNs(0, 60'000), 200 * kSecond);
  EXPECT_EQ(ResendSpanNs(0), kSecond / 5);
  EXPECT_EQ(ResendSpanNs(60), 10 * kSecond);
}

TEST(HangWatch, WaitsForTenStepsAtLeastFiveMinutes) {
  HangWatch watch;
  // 100 s a step.
  for (uint64_t step = 1; step <= 5; ++step) {
    watch.Observe({.step = step, .ms = step * 100'000, .has_line = true, .has_step = true},
                  step * 100 * kSecond);
  }
  EXPECT_EQ(watch.due_ns(), (500 + 1000) * kSecond);
  EXPECT_FALSE(watch.Check(1499 * kSecond));
  EXPECT_TRUE(watch.Check(1500 * kSecond));
}

// Nothing is said while data is loaded or an evaluation runs, however long.
TEST(HangWatch, WaitsForAPhase) {
  HangWatch watch;
  watch.Observe({.step = 5, .ms = 500, .has_line = true, .has_step = true, .in_phase = true},
                kSecond);
  EXPECT_FALSE(watch.due_ns());
  EXPECT_FALSE(watch.Check(100'000 * kSecond));
  watch.Observe({.step = 5, .ms = 500, .has_line = true, .has_step = true}, 100'000 * kSecond);
  EXPECT_FALSE(watch.Check(100'299 * kSecond));
  EXPECT_TRUE(watch.Check(100'300 * kSecond));
}

// A trainer that never says anything is given a quarter of an hour.
TEST(HangWatch, FindsATrainerThatNeverStarts) {
  HangWatch watch;
  EXPECT_FALSE(watch.Check(100'000 * kSecond)) << "nothing was observed yet";
  watch.Observe({}, kSecond);
  EXPECT_FALSE(watch.due_ns()) << "it may be loading data";
  watch.Observe({.has_line = true}, kSecond);
  EXPECT_FALSE(watch.Check(900 * kSecond));
  EXPECT_EQ(watch.Check(901 * kSecond), "hang: no first step for 900 s");
}

// The same lines read again are no progress.
TEST(HangWatch, TakesNoRepetitionForProgress) {
  HangWatch watch;
  const Progress progress{.step = 1, .ms = 10, .has_line = true, .has_step = true};
  watch.Observe(progress, kSecond);
  watch.Observe(progress, 200 * kSecond);
  EXPECT_TRUE(watch.Check(301 * kSecond));
}

SegmentFacts Segment(uint64_t epoch, uint64_t hours, SegmentState state) {
  return {.key = {.epoch = epoch},
          .first_seq = 1,
          .last_seq = 10,
          .bytes = uint64_t{64} << 20,
          .age_ns = hours * 3600 * kSecond,
          .state = state};
}

TEST(SpoolPolicy, StatesFollowTheWatermarks) {
  EXPECT_EQ(SealedState(10, 9, 0), SegmentState::kSealed);
  EXPECT_EQ(SealedState(10, 10, 9), SegmentState::kCommitted);
  EXPECT_EQ(SealedState(10, 12, 10), SegmentState::kDurable);
  EXPECT_EQ(SealedState(10, 9, 10), SegmentState::kSealed);
}

// Durable segments go at once, committed ones by age; unsent data is never deleted.
TEST(SpoolPolicy, DeletesByAge) {
  EXPECT_THAT(ChooseDeletions(
                  {Segment(1, 100, SegmentState::kSealed), Segment(2, 100, SegmentState::kOpen),
                   Segment(3, 73, SegmentState::kCommitted),
                   Segment(4, 71, SegmentState::kCommitted), Segment(5, 0, SegmentState::kDurable)},
                  {}),
              ElementsAre(4, 2));
}

// Beyond 2 GiB the oldest committed segments go, as many as needed.
TEST(SpoolPolicy, DeletesBySize) {
  std::vector<SegmentFacts> segments;
  for (uint64_t i = 0; i < 34; ++i) segments.push_back(Segment(i, i, SegmentState::kCommitted));
  EXPECT_THAT(ChooseDeletions(segments, {}), ElementsAre(33, 32));
  for (SegmentFacts& segment : segments) segment.state = SegmentState::kSealed;
  EXPECT_THAT(ChooseDeletions(segments, {}), IsEmpty());
}

// Many small attempts are bounded as well.
TEST(SpoolPolicy, DeletesByNumber) {
  std::vector<SegmentFacts> segments;
  for (uint64_t i = 0; i < 5; ++i) segments.push_back(Segment(i, i, SegmentState::kCommitted));
  EXPECT_THAT(ChooseDeletions(segments, {.segments = 3}), ElementsAre(4, 3));
}

}  // namespace
}  // namespace switchyard::agent
