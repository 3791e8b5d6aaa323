#include "server/results/query.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "common/base/ids.h"
#include "common/base/strings.h"
#include "server/results/order_cache.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/suites/store_rows.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using scheduler::RunState;
using store::LinkRow;
using store::RunStatus;
using store::SummaryRow;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr char kLoss[] = "valid/bits_per_byte";

// Six runs: arms smoe and mcf with seeds 1..3; mcf/2 has diverged, mcf/3 has no point.
class QueryTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) {
      dir_ = ::testing::TempDir() + "/query_test_" + NewUuidV4().ToString();
      Result<std::unique_ptr<store::Store>> opened =
          store::OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
      ASSERT_TRUE(opened.ok()) << opened.status().ToString();
      store_ = *std::move(opened);
    } else {
      store_ = store::MakeMemoryStore();
    }
    pb::ObjectiveSpec objective;
    objective.set_metric(kLoss);
    objective.set_goal(pb::GOAL_MINIMIZE);
    objective.set_value(pb::OBJECTIVE_VALUE_BEST);
    store::SweepRow sweep = store::MakeSweep(1);
    sweep.axes = {"arm", "train.batch"};
    sweep.objective = objective.SerializeAsString();
    std::vector<store::Write> writes = {sweep};
    struct Made {
      const char* arm;
      uint64_t seed;
      double best;
      double last;
      bool has_point;
    };
    const std::vector<Made> made = {{"smoe", 1, 1.25, 1.5, true},      {"mcf", 1, 1.0, 1.0, true},
                                    {"smoe", 2, 1.75, 2.0, true},      {"mcf", 2, kNaN, kNaN, true},
                                    {"smoe", 3, 1.5, kInfinity, true}, {"mcf", 3, 0, 0, false}};
    for (uint64_t number = 1; number <= made.size(); ++number) {
      const Made& one = made[number - 1];
      store::RunRow run = store::MakeRun(number, 1);
      run.seed = one.seed;
      pb::RunSpec spec;
      spec.set_seed(one.seed);
      spec.mutable_train()->set_batch(16);
      spec.mutable_train()->set_steps(std::string(one.arm) == "mcf" ? 200 : 100);
      run.spec = spec.SerializeAsString();
      writes.emplace_back(run);
      writes.emplace_back(RunStatus{
          .id = run.id, .state = number == 6 ? RunState::kCancelled : RunState::kSucceeded});
      writes.emplace_back(LinkRow{.sweep = sweep.id,
                                  .number = number,
                                  .run = run.id,
                                  .cell = std::string(one.arm) == "mcf" ? 2u : 1u,
                                  .columns = {{"arm", one.arm}, {"train.batch", "16"}}});
      if (!one.has_point) continue;
      writes.emplace_back(SummaryRow{.run = run.id,
                                     .series = kLoss,
                                     .last = one.last,
                                     .has_best = std::isfinite(one.best),
                                     .best = std::isfinite(one.best) ? one.best : 0,
                                     .count = 1});
    }
    writes.emplace_back(store::SweepStatus{
        .id = sweep.id, .proposed = 6, .counts = {0, 0, 0, 0, 0, 5, 0, 0, 1, 0}});
    ASSERT_TRUE(store_->Commit(writes).ok());
    Result<store::SweepInfo> found = store_->FindSweep("last", /*with_spec=*/false);
    ASSERT_TRUE(found.ok());
    sweep_ = *std::move(found);
  }

  void TearDown() override {
    store_.reset();
    if (!dir_.empty()) std::filesystem::remove_all(dir_);
  }

  std::vector<uint64_t> Numbers(const std::string& filter, const std::string& order = {},
                                bool descending = false) {
    Result<store::RunPage> page =
        ListRuns(*store_, sweep_,
                 {.filter = filter, .order_by = order, .descending = descending, .limit = 100});
    EXPECT_TRUE(page.ok()) << page.status().ToString();
    std::vector<uint64_t> numbers;
    if (!page.ok()) return numbers;
    for (const store::RunInfo& run : page->runs) numbers.push_back(run.link.number);
    EXPECT_EQ(page->total, numbers.size());
    return numbers;
  }

  Status Refusal(const std::string& filter) {
    return ListRuns(*store_, sweep_, {.filter = filter}).status();
  }

  std::string dir_;
  std::unique_ptr<store::Store> store_;
  store::SweepInfo sweep_;
};

TEST_P(QueryTest, FiltersByAxisStateSeedSpecAndSummary) {
  EXPECT_THAT(Numbers("arm = \"mcf\""), ElementsAre(2, 4, 6));
  EXPECT_THAT(Numbers("state = \"cancelled\" or seed = 1"), ElementsAre(1, 2, 6));
  EXPECT_THAT(Numbers("train.batch = 16 and train.steps > 100"), ElementsAre(2, 4, 6));
  EXPECT_THAT(Numbers("valid/bits_per_byte < 1.6"), ElementsAre(1, 2, 5));
  EXPECT_THAT(Numbers("last(valid/bits_per_byte) < 1.6"), ElementsAre(1, 2));
  EXPECT_THAT(Numbers("number in [2, 3]"), ElementsAre(2, 3));
}

// ME2, SQ3: a diverged run must not slip into `not (loss < 2)`, nor one without a point.
TEST_P(QueryTest, MatchesNoConditionWithValuesThatAreNotFinite) {
  EXPECT_THAT(Numbers("not (best(valid/bits_per_byte) < 1.1)"), ElementsAre(1, 3, 5));
  EXPECT_THAT(Numbers("last(valid/bits_per_byte) >= 2"), ElementsAre(3));
  EXPECT_THAT(Numbers("test/accuracy > 0"), IsEmpty());
}

// Pages behind the first are of the state that the first one saw; a forgotten order is found anew.
TEST_P(QueryTest, PagesOfAnOrderShareOneState) {
  OrderCache cache(1);
  ListQuery query{
      .series = {}, .order_by = "last(valid/bits_per_byte)", .limit = 2, .cache = &cache};
  const Result<store::RunPage> first = ListRuns(*store_, sweep_, query);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->runs[0].link.number, 2u);
  ASSERT_TRUE(store_
                  ->Commit(std::vector<store::Write>{SummaryRow{
                      .run = store::MakeRunId(3), .series = kLoss, .last = 0.5, .count = 2}})
                  .ok());
  query.page = first->next;
  EXPECT_EQ(ListRuns(*store_, sweep_, query)->runs[0].link.number, 3u);
  // Asked anew, run 3 comes first; this pushes the older order out.
  query.page.clear();
  EXPECT_EQ(ListRuns(*store_, sweep_, query)->runs[0].link.number, 3u);
  query.page = first->next;
  EXPECT_EQ(ListRuns(*store_, sweep_, query)->runs[0].link.number, 1u);
}

// What an ended sweep answers cannot change.
TEST(OrderCacheTest, RemembersFinalAnswersAndForgetsTheOldest) {
  OrderCache cache(2, 5);
  const auto numbers = [](size_t n) {
    return std::make_shared<const std::vector<uint64_t>>(n, uint64_t{7});
  };
  const uint64_t a = cache.Put("a", numbers(2), true);
  const uint64_t b = cache.Put("b", numbers(2), false);
  uint64_t id = 0;
  EXPECT_EQ(cache.FindFinal("a", &id)->size(), 2u);
  EXPECT_EQ(id, a);
  EXPECT_EQ(cache.FindFinal("b", &id), nullptr);
  EXPECT_NE(cache.Find("b", b), nullptr);
  EXPECT_EQ(cache.Find("a", b), nullptr);
  cache.Put("c", numbers(3), false);  // seven numbers are too many: a, used before b, goes
  EXPECT_EQ(cache.Find("a", a), nullptr);
  EXPECT_NE(cache.Find("b", b), nullptr);
  cache.Put("d", numbers(6), false);  // more than all of it: not kept
  EXPECT_NE(cache.Find("b", b), nullptr);
}

// ME2: NaN and Inf rank worst in both directions, and what has no value comes behind them.
TEST_P(QueryTest, PutsWhatIsNotFiniteLastInBothDirections) {
  EXPECT_THAT(Numbers("", "last(valid/bits_per_byte)"), ElementsAre(2, 1, 3, 4, 5, 6));
  EXPECT_THAT(Numbers("", "last(valid/bits_per_byte)", true), ElementsAre(3, 1, 2, 4, 5, 6));
  EXPECT_THAT(Numbers("seed > 1", "arm"), ElementsAre(4, 6, 3, 5));
}

TEST_P(QueryTest, PagesAnOrderedList) {
  ListQuery query{.series = {kLoss}, .order_by = kLoss, .limit = 4};
  const Result<store::RunPage> first = ListRuns(*store_, sweep_, query);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(first->runs.size(), 4U);
  EXPECT_EQ(first->total, 6U);
  EXPECT_EQ(first->runs[0].link.number, 2U);
  EXPECT_EQ(first->runs[0].summaries.at(0).best, 1.0);
  query.page = first->next;
  const Result<store::RunPage> second = ListRuns(*store_, sweep_, query);
  ASSERT_TRUE(second.ok());
  ASSERT_EQ(second->runs.size(), 2U);
  EXPECT_EQ(second->runs[1].link.number, 6U);
  EXPECT_EQ(second->next, "");
  query.order_by = "seed";
  EXPECT_EQ(ListRuns(*store_, sweep_, query).status().code(), Code::kInvalidArgument);
}

// A word that is spelt wrongly is an error, not an empty answer.
TEST_P(QueryTest, RefusesUnknownNamesAndBadTypes) {
  EXPECT_THAT(Refusal("arn = \"mcf\"").ToString(), HasSubstr("nearest: arm"));
  EXPECT_THAT(Refusal("train.bach = 1").ToString(), HasSubstr("train.batch"));
  EXPECT_THAT(Refusal("arm < ").ToString(), HasSubstr("filter: column"));
  EXPECT_EQ(Refusal("arm < 3").code(), Code::kInvalidArgument);
}

// Mean, deviation and best are over finite values only, which are counted apart.
TEST_P(QueryTest, GroupsWithMeanDeviationAndBest) {
  const Result<GroupResult> result =
      GroupRuns(*store_, sweep_, {.by = {"arm"}, .series = {kLoss, "train/lr"}});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->runs, 6U);
  ASSERT_EQ(result->groups.size(), 2U);
  const Group& mcf = result->groups[0];
  EXPECT_THAT(mcf.key, ElementsAre("mcf"));
  EXPECT_EQ(mcf.runs, 3U);
  EXPECT_EQ(mcf.succeeded, 2U);
  EXPECT_EQ(mcf.values[0].n, 1U);
  EXPECT_EQ(mcf.values[0].non_finite, 1U);
  EXPECT_EQ(mcf.values[0].mean, 1.0);
  EXPECT_TRUE(std::isnan(mcf.values[0].sd));
  EXPECT_EQ(mcf.values[0].best_run, 2U);
  const Group& smoe = result->groups[1];
  EXPECT_EQ(smoe.values[0].n, 3U);
  EXPECT_DOUBLE_EQ(smoe.values[0].mean, 1.5);
  EXPECT_DOUBLE_EQ(smoe.values[0].sd, 0.25);
  EXPECT_EQ(smoe.values[0].best, 1.25);
  EXPECT_EQ(smoe.values[0].best_run, 1U);
  EXPECT_EQ(smoe.values[1].n, 0U);
  EXPECT_TRUE(std::isnan(smoe.values[1].mean));

  const Result<GroupResult> last = GroupRuns(*store_, sweep_,
                                             {.filter = "arm = \"smoe\"",
                                              .by = {"train.steps", "seed"},
                                              .series = {kLoss},
                                              .pick = Pick::kLast});
  ASSERT_TRUE(last.ok()) << last.status().ToString();
  ASSERT_EQ(last->groups.size(), 3U);
  EXPECT_THAT(last->groups[0].key, ElementsAre("100", "1"));
  EXPECT_THAT(last->groups[2].key, ElementsAre("100", "3"));
  EXPECT_EQ(last->groups[2].values[0].non_finite, 1U);
  EXPECT_EQ(GroupRuns(*store_, sweep_, {.by = {"arn"}}).status().code(), Code::kInvalidArgument);
}

// A sweep that was read before it grew names fewer cells than its runs have.
TEST_P(QueryTest, FindsTheDocumentsOfCellsThatCameLater) {
  sweep_.row.is_drawn = false;
  sweep_.row.cells = 1;
  EXPECT_THAT(Numbers("train.steps = 200"), ElementsAre(2, 4, 6));
  const Result<GroupResult> result = GroupRuns(*store_, sweep_, {.by = {"train.steps", "cell"}});
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ASSERT_EQ(result->groups.size(), 2U);
  EXPECT_THAT(result->groups[0].key, ElementsAre("100", "1"));
  EXPECT_THAT(result->groups[1].key, ElementsAre("200", "2"));
  EXPECT_EQ(result->groups[0].runs, 3U);
  EXPECT_EQ(result->groups[1].runs, 3U);
}

INSTANTIATE_TEST_SUITE_P(Stores, QueryTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Sqlite" : "Memory"; });

}  // namespace
}  // namespace switchyard::results
