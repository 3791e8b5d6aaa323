#include "server/results/comparison.h"

#include <gmock/gmock.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>

#include "common/base/ids.h"
#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/yaml_reader.h"
#include "server/results/power.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/suites/store_rows.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using scheduler::EndClass;
using scheduler::RunState;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kLoss[] = "valid/bits_per_byte";
constexpr char kKind[] = "model.moe.router.kind";
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr char kSweep[] = R"(
name: routers
base:
  kind: train
  data: {files: {domains: {a: ["/nonexistent/*"]}, tokens: bytes}}
  model:
    transformer_xl: {layers: 1, d_model: 8, heads: 1, d_head: 8, d_inner: 8}
    moe: {layers: [0], experts: 4, top_k: 2, router: {kind: smoe}}
  train: {steps: 100, batch: 2, target_len: 8, optimizer: {adam: {lr: 1e-3}}}
  eval: EVAL
space: SPACE
replicates: {seeds: [1, 2, 3, 4, 5, 6]}
objective: {metric: valid/bits_per_byte, goal: minimize}
REPORT
)";
constexpr char kRouters[] = "{grid: {model.moe.router.kind: [smoe, mcf]}}";
constexpr char kReport[] =
    "report: {compare: [{by: model.moe.router.kind, against: smoe, margins: [0.01]}]}";

// Deviations of seeds 1..6 about their arm; no two differences are equal.
double SeedEffect(uint64_t seed) { return 0.05 * std::sin(static_cast<double>(seed)); }
double Noise(uint64_t cell, uint64_t seed) {
  return 0.001 * std::cos(static_cast<double>(7 * cell + 3 * seed));
}

// A stored sweep whose runs have ended with values that the test says.
class ComparisonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "/comparison_test_" + NewUuidV4().ToString();
    Result<std::unique_ptr<store::Store>> opened =
        store::OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    store_ = *std::move(opened);
  }
  void TearDown() override {
    store_.reset();
    std::filesystem::remove_all(dir_);
  }

  pb::SweepSpec Read(const std::string& space, const std::string& report) const {
    std::string text = kSweep;
    text.replace(text.find("EVAL"), 4, eval_);
    text.replace(text.find("SPACE"), 5, space);
    text.replace(text.find("REPORT"), 6, report);
    pb::SweepSpec sweep;
    const std::vector<spec::Fault> faults = spec::ReadSweepYaml("sweep.yaml", text, {}, &sweep);
    EXPECT_TRUE(faults.empty()) << faults[0].message;
    return sweep;
  }

  // Value of a planned run; none: it has not ended.
  using ValueOf = std::function<std::optional<double>(const spec::PlannedRun&)>;

  void Store(const std::string& space, const std::string& report, const ValueOf& value,
             uint64_t runs_max = ~uint64_t{0}) {
    const pb::SweepSpec sweep = Read(space, report);
    std::vector<spec::Fault> faults;
    const auto plan = spec::SweepPlan::Make(sweep, &faults);
    ASSERT_NE(plan, nullptr) << faults[0].path << ": " << faults[0].message;
    pb::ObjectiveSpec objective = sweep.objective();
    objective.set_value(pb::OBJECTIVE_VALUE_BEST);
    store::SweepRow row = store::MakeSweep(1);
    row.name = "routers";
    row.axes = plan->axes();
    row.spec = sweep.SerializeAsString();
    row.objective = objective.SerializeAsString();
    std::vector<store::Write> writes = {row};
    scheduler::StateCounts counts{};
    for (uint64_t n = 1; n <= std::min(plan->run_count(), runs_max); ++n) {
      const spec::PlannedRun planned = plan->At(n, &faults);
      store::RunRow run = store::MakeRun(n, 1);
      run.seed = planned.seed;
      run.router = planned.router;
      run.spec = planned.run->SerializeAsString();
      run.need = {.kind = scheduler::SlotKind::kCpu, .count = 2};
      const std::optional<double> outcome = value(planned);
      const RunState state = !outcome               ? RunState::kActive
                             : std::isnan(*outcome) ? RunState::kFailed
                                                    : RunState::kSucceeded;
      ++counts[static_cast<size_t>(state)];
      writes.emplace_back(run);
      store::RunStatus status{.id = run.id, .state = state, .active_ms = 1'800'000};
      if (state == RunState::kFailed) {
        const Epoch epoch{n};
        writes.emplace_back(store::AttemptRow{.epoch = epoch, .run = run.id, .ordinal = 1});
        writes.emplace_back(store::AttemptStatus{.epoch = epoch,
                                                 .state = scheduler::AttemptState::kFailed,
                                                 .end_class = EndClass::kGuard});
        status.current_epoch = epoch;
      }
      writes.emplace_back(status);
      writes.emplace_back(store::LinkRow{.sweep = row.id,
                                         .number = n,
                                         .run = run.id,
                                         .cell = planned.cell,
                                         .columns = planned.columns});
      if (!outcome) continue;
      writes.emplace_back(store::SummaryRow{.run = run.id,
                                            .series = kLoss,
                                            .last = *outcome,
                                            .has_best = !std::isnan(*outcome),
                                            .best = *outcome,
                                            .count = 1});
    }
    writes.emplace_back(store::SweepStatus{.id = row.id, .counts = counts});
    const Status committed = store_->Commit(writes);
    ASSERT_TRUE(committed.ok()) << committed.ToString();
    Result<store::SweepInfo> found = store_->FindSweep("routers", /*with_spec=*/true);
    ASSERT_TRUE(found.ok());
    sweep_ = *std::move(found);
  }

  // Arms smoe and mcf; mcf lies `shift` beside smoe.
  void StoreRouters(double shift, const std::string& report = kReport) {
    Store(kRouters, report, [shift](const spec::PlannedRun& run) -> std::optional<double> {
      return 2 + SeedEffect(run.seed) + Noise(run.cell, run.seed) +
             (run.router == "mcf" ? shift : 0);
    });
  }

  Result<ComparisonAnswer> Ask(const pb::CompareSpec& asked = {}, std::vector<ArmFilter> arms = {},
                               size_t look = 0, std::vector<uint64_t> chosen_on = {}) {
    return CompareArms(
        *store_, sweep_,
        {.asked = asked, .arms = std::move(arms), .look = look, .chosen_on = std::move(chosen_on)});
  }

  static pb::CompareSpec By(const char* axis, const char* against) {
    pb::CompareSpec compare;
    compare.set_by(axis);
    compare.set_against(against);
    return compare;
  }

  // Curves of twelve runs at steps 10, 20 and 100: at step 20 about 3.0 for smoe, 3.5 for mcf; at
  // the end 2.0 and 1.0.
  void AddCurves() {
    std::vector<store::Write> writes;
    for (uint64_t n = 1; n <= 12; ++n) {
      const Epoch epoch{100 + n};
      const bool is_smoe = n % 2 == 1;  // smoe is first in each seed
      const double middle = (is_smoe ? 3.0 : 3.5) + 0.001 * static_cast<double>(n * n);
      writes.emplace_back(
          store::AttemptRow{.epoch = epoch, .run = store::MakeRunId(n), .ordinal = 1});
      writes.emplace_back(store::AttemptStatus{.epoch = epoch, .start_reported = true});
      writes.emplace_back(
          store::MakeChunk(epoch, kLoss, 1, {10, 20, 100}, {4.0, middle, is_smoe ? 2.0 : 1.0}));
      writes.emplace_back(store::RunStatus{
          .id = store::MakeRunId(n), .state = RunState::kSucceeded, .current_epoch = epoch});
    }
    ASSERT_TRUE(store_->Commit(writes).ok());
  }

  std::string eval_ = "{every_steps: 10}";
  std::string dir_;
  std::unique_ptr<store::Store> store_;
  store::SweepInfo sweep_;
};

TEST_F(ComparisonTest, TheRegisteredComparisonGivesAVerdictInOneSentence) {
  StoreRouters(0);
  const Result<ComparisonAnswer> answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  ASSERT_EQ(answer->comparison.results.size(), 1u);
  const stats::ComparisonResult& result = answer->comparison.results[0];
  EXPECT_EQ(result.arm, "mcf");
  EXPECT_EQ(result.n, 6u);
  EXPECT_GT(result.correlation, 0.9);
  EXPECT_EQ(result.verdict.finding, stats::Finding::kEquivalent);
  EXPECT_THAT(result.verdict.sentence, HasSubstr("equivalent within ±0.01 bits per byte, 90 % "
                                                 "interval ["));
  EXPECT_THAT(result.verdict.sentence, HasSubstr("], 6 pairs"));
  EXPECT_FALSE(answer->is_exploratory) << StrJoin(answer->reasons, "; ");
  EXPECT_EQ(answer->registration.size(), 64u);
  EXPECT_THAT(answer->setup.runs.arms, ElementsAre("smoe", "mcf"));
}

// N20: a null result is an interval, and never "no difference".
TEST_F(ComparisonTest, ANullWithoutAMarginIsUndecided) {
  StoreRouters(0, "report: {compare: [{by: model.moe.router.kind, against: smoe}]}");
  const Result<ComparisonAnswer> answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_THAT(answer->comparison.results[0].verdict.sentence, HasSubstr("undecided: "));
  EXPECT_THAT(answer->comparison.results[0].verdict.sentence, Not(HasSubstr("no difference")));
}

TEST_F(ComparisonTest, ALaterEditOfThePlanIsExploratory) {
  StoreRouters(-0.1);
  pb::CompareSpec edited = By(kKind, "smoe");
  edited.add_margins(0.02);
  const Result<ComparisonAnswer> answer = Ask(edited);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_TRUE(answer->is_exploratory);
  EXPECT_THAT(answer->reasons, ElementsAre(HasSubstr("not one that was registered")));
  EXPECT_NE(answer->registration, Ask()->registration);
  edited.set_margins(0, 0.01);
  EXPECT_FALSE(Ask(edited)->is_exploratory);
}

TEST_F(ComparisonTest, WithoutARegisteredComparisonEverythingIsExploratory) {
  StoreRouters(-0.1, "");
  EXPECT_THAT(Ask().status().message(), HasSubstr("by: is required"));
  const Result<ComparisonAnswer> answer = Ask(By(kKind, "smoe"));
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_TRUE(answer->is_exploratory);
  EXPECT_EQ(answer->comparison.results[0].verdict.finding, stats::Finding::kBetter);
}

TEST_F(ComparisonTest, MoreLooksThanPlannedAndLooksBeforeTheEndAreExploratory) {
  StoreRouters(-0.1);
  EXPECT_THAT(Ask({}, {}, 2)->reasons, ElementsAre("look 2 of 1 planned"));
}

TEST_F(ComparisonTest, ALookBeforeAllRunsHaveEndedIsNotThePlannedOne) {
  Store(kRouters, kReport, [](const spec::PlannedRun& run) -> std::optional<double> {
    if (run.seed == 6) return std::nullopt;
    return 2 + Noise(run.cell, run.seed);
  });
  const Result<ComparisonAnswer> answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_TRUE(answer->is_exploratory);
  EXPECT_THAT(answer->reasons, ElementsAre(HasSubstr("before 2 of 12 runs have ended")));
  EXPECT_EQ(answer->comparison.results[0].n, 5u);
  EXPECT_EQ(answer->comparison.results[0].missing.size(), 2u);
}

// A run that diverged is no accident: better and equivalent verdicts are withheld.
TEST_F(ComparisonTest, ADivergedRunWithholdsTheVerdict) {
  Store(kRouters, kReport, [](const spec::PlannedRun& run) -> std::optional<double> {
    if (run.router == "mcf" && run.seed == 3) return kNaN;
    return 2 + SeedEffect(run.seed) + Noise(run.cell, run.seed) - (run.router == "mcf" ? 0.1 : 0);
  });
  const Result<ComparisonAnswer> answer = Ask();
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  const stats::ComparisonResult& result = answer->comparison.results[0];
  EXPECT_EQ(result.verdict.finding, stats::Finding::kWithheld);
  ASSERT_EQ(result.missing.size(), 1u);
  EXPECT_EQ(result.missing[0].seed, 3u);
  EXPECT_EQ(result.missing[0].absence, stats::Absence::kInformative);
}

TEST_F(ComparisonTest, RefusesATestThatCannotReachAlphaWithTheseSeeds) {
  StoreRouters(-0.1);
  pb::CompareSpec asked = By(kKind, "smoe");
  asked.set_test(pb::COMPARE_TEST_SIGN_FLIP);
  EXPECT_TRUE(Ask(asked).ok());
  asked.set_alpha(0.01);
  const Status refused = Ask(asked).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("pairs are needed"));
}

// Tokens and FLOPs apart are said, and `match` refuses them.
TEST_F(ComparisonTest, WarnsAboutUnmatchedComputeAndRefusesItOnRequest) {
  Store("{grid: {train.batch: [2, 4]}}", "", [](const spec::PlannedRun& run) {
    return std::optional<double>(2 + Noise(run.cell, run.seed));
  });
  pb::CompareSpec asked = By("train.batch", "2");
  const Result<ComparisonAnswer> answer = Ask(asked);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_THAT(answer->setup.warnings, Contains("unmatched tokens: 2 1600, 4 3200"));
  EXPECT_THAT(answer->setup.warnings, Contains(HasSubstr("unmatched active FLOPs")));
  pb::NamedNumber* match = asked.add_match();
  match->set_id("train.flops");
  match->set_value(0.01);
  EXPECT_THAT(Ask(asked).status().message(), HasSubstr("match: the arms are 100 % apart"));
}

TEST_F(ComparisonTest, WarnsAboutRoutersThatAreNotCausal) {
  eval_ = "{every_steps: 10, allow_noncausal: true}";
  Store("{grid: {model.moe.router.kind: [smoe, expert_choice]}}", "",
        [](const spec::PlannedRun& run) {
          return std::optional<double>(2 + Noise(run.cell, run.seed));
        });
  const Result<ComparisonAnswer> answer = Ask(By(kKind, "smoe"));
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_THAT(answer->setup.warnings, Contains(HasSubstr("expert_choice: not causal")));
}

// Other axes: one comparison for each value, averaged inside a seed, or the arm's own tuning.
constexpr char kTwoAxes[] =
    "{grid: {model.moe.router.kind: [smoe, mcf], train.optimizer.adam.lr: "
    "[1e-3, 1e-2]}}";

class TwoAxesTest : public ComparisonTest {
 protected:
  void SetUp() override {
    ComparisonTest::SetUp();
    // mcf is better at 1e-2 only, by the best value of all.
    Store(kTwoAxes, "", [](const spec::PlannedRun& run) -> std::optional<double> {
      const bool is_mcf = run.router == "mcf";
      const bool is_high = run.columns[1].second == "1e-2";
      const double shift = is_mcf ? (is_high ? -0.2 : 0.1) : (is_high ? 0.05 : 0);
      return 2 + SeedEffect(run.seed) + Noise(run.cell, run.seed) + shift;
    });
  }
};

TEST_F(TwoAxesTest, OtherAxesAreComparedSeparatelyInOneFamily) {
  const Result<ComparisonAnswer> answer = Ask(By(kKind, "smoe"));
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  ASSERT_EQ(answer->comparison.family_size, 2u);
  EXPECT_EQ(answer->comparison.results[0].within, "train.optimizer.adam.lr=1e-3");
  EXPECT_EQ(answer->comparison.results[0].verdict.finding, stats::Finding::kWorse);
  EXPECT_EQ(answer->comparison.results[1].verdict.finding, stats::Finding::kBetter);
  EXPECT_NEAR(answer->comparison.results[1].estimate, -0.25, 0.005);
}

TEST_F(TwoAxesTest, PooledAxesAreAveragedInsideASeed) {
  pb::CompareSpec asked = By(kKind, "smoe");
  asked.add_pool("train.optimizer.adam.lr");
  const Result<ComparisonAnswer> answer = Ask(asked);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  ASSERT_EQ(answer->comparison.results.size(), 1u);
  EXPECT_EQ(answer->comparison.results[0].n, 6u);
  EXPECT_NEAR(answer->comparison.results[0].estimate, -0.075, 0.005);
}

TEST_F(TwoAxesTest, ATunedArmStandsByItsBestCellAndSaysThatItWasChosen) {
  pb::CompareSpec asked = By(kKind, "smoe");
  asked.set_tune(true);
  const Result<ComparisonAnswer> answer = Ask(asked);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_NEAR(answer->comparison.results[0].estimate, -0.2, 0.005);
  EXPECT_THAT(answer->setup.warnings, Contains(HasSubstr("chosen on the seeds that it is judged")));
  const Result<ComparisonAnswer> split = Ask(asked, {}, 0, {1, 2, 3});
  ASSERT_TRUE(split.ok()) << split.status().ToString();
  EXPECT_EQ(split->comparison.results[0].n, 3u);
  EXPECT_THAT(split->setup.warnings, Not(Contains(HasSubstr("chosen on the seeds"))));
}

TEST_F(TwoAxesTest, ArmsByFilterPairBySeedAndBySharedAxes) {
  const std::vector<ArmFilter> arms = {{"plain", "model.moe.router.kind = \"smoe\""},
                                       {"fused", "model.moe.router.kind = \"mcf\""}};
  const Result<ComparisonAnswer> answer = Ask(By("", "plain"), arms);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->comparison.family_size, 2u);
  EXPECT_EQ(answer->comparison.results[0].arm, "fused");
  EXPECT_EQ(answer->comparison.results[0].n, 6u);
  EXPECT_TRUE(answer->is_exploratory);
}

TEST_F(TwoAxesTest, ArmsThatWereChosenByTheirResultsAreNamed) {
  const std::vector<ArmFilter> arms = {
      {"plain", "model.moe.router.kind = \"smoe\" and train.optimizer.adam.lr < 0.005"},
      {"good", "valid/bits_per_byte < 1.9"}};
  const Result<ComparisonAnswer> answer = Ask(By("", "plain"), arms);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_THAT(answer->setup.warnings,
              Contains(HasSubstr("chosen by how they went (valid/bits_per_byte)")));
}

TEST_F(TwoAxesTest, RefusesArmsThatOverlapOrDoNotFit) {
  EXPECT_THAT(Ask(By("", "a"), {{"a", "seed < 4"}, {"b", "seed < 5"}}).status().message(),
              HasSubstr("belongs to arm a and to arm b"));
  EXPECT_THAT(Ask(By("", "a"), {{"a", "sed < 4"}, {"b", "seed > 4"}}).status().message(),
              HasSubstr("arm a: column 1: 'sed'"));
  EXPECT_THAT(Ask(By("", "a"),
                  {{"a", "train.optimizer.adam.lr < 0.005 and model.moe.router.kind = \"mcf\""},
                   {"b", "model.moe.router.kind = \"smoe\""}})
                  .status()
                  .message(),
              HasSubstr("axis train.optimizer.adam.lr takes other values in arm b than in arm a"));
  EXPECT_THAT(Ask(By("model.moe.router.knd", "smoe")).status().message(), HasSubstr("by: "));
  pb::CompareSpec negative = By(kKind, "smoe");
  negative.add_margins(-1);
  EXPECT_THAT(Ask(negative).status().message(), HasSubstr("margins: -1 must be above 0"));
  EXPECT_THAT(Ask(By(kKind, "dense")).status().message(), HasSubstr("the arms are smoe, mcf"));
}

// At equal tokens each run stands by its last evaluation up to there.
TEST_F(ComparisonTest, ComparesAtAPointInTokens) {
  StoreRouters(-0.1, "");
  AddCurves();
  pb::CompareSpec asked = By(kKind, "smoe");
  pb::NamedNumber* at = asked.add_at();
  at->set_id("tokens");
  at->set_value(20 * 2 * 8);  // of 20 updates
  const Result<ComparisonAnswer> answer = Ask(asked);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_NEAR(answer->comparison.results[0].reference_values.mean, 3.0 + 0.0477, 1e-3);
  EXPECT_NEAR(answer->comparison.results[0].estimate, 0.5 + 0.013, 1e-3);
  at->set_value(20 * 2 * 8 - 1);
  EXPECT_EQ(Ask(asked)->comparison.results[0].estimate, 0);
  at->set_value(1e9);
  EXPECT_EQ(Ask(asked)->comparison.results[0].estimate, -1);
  at->set_id("wall_seconds");
  at->set_value(0.2);  // points come 10 ms a step
  EXPECT_NEAR(Ask(asked)->comparison.results[0].estimate, 0.5 + 0.013, 1e-3);
}

// The whole split is scored at the last step, a part of it before: the two are not mixed.
TEST_F(ComparisonTest, LeavesTheWholeEvaluationOutBesideCappedOnes) {
  eval_ = "{every_steps: 10, max_tokens: 64}";
  StoreRouters(-0.1, "");
  AddCurves();
  pb::CompareSpec asked = By(kKind, "smoe");
  pb::NamedNumber* at = asked.add_at();
  at->set_id("tokens");
  at->set_value(1e9);
  const Result<ComparisonAnswer> answer = Ask(asked);
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_NEAR(answer->comparison.results[0].estimate, 0.5 + 0.013, 1e-3);
}

TEST_F(ComparisonTest, PowerPlansSeedsAndSlotHoursFromThePilot) {
  StoreRouters(0.003);
  const pb::CompareSpec asked;
  const Result<PowerAnswer> answer =
      EstimatePower(*store_, sweep_, {.compare = {.asked = asked, .arms = {}, .chosen_on = {}}});
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  ASSERT_EQ(answer->estimates.size(), 1u);
  const PowerEstimate& estimate = answer->estimates[0];
  EXPECT_EQ(estimate.pilot_pairs, 6u);
  EXPECT_GT(estimate.sd_upper, 1.3 * estimate.sd);
  ASSERT_EQ(estimate.goals.size(), 2u);
  EXPECT_TRUE(estimate.goals[0].is_equivalence);
  EXPECT_LE(*estimate.goals[0].pairs_at_sd, *estimate.goals[0].pairs);
  // 0.01 is many deviations of about 0.001: the smallest numbers of table N17.
  EXPECT_LE(*answer->seeds, 4u);
  EXPECT_EQ(answer->costs[0].runs, 6u);
  EXPECT_DOUBLE_EQ(answer->costs[0].slot_hours, 1.0);  // half an hour on two slots
  EXPECT_DOUBLE_EQ(answer->slot_hours, 2.0 * static_cast<double>(*answer->seeds));
}

// The table of N17: a margin of one deviation needs 11 pairs, a difference of one needs 10.
TEST_F(ComparisonTest, PowerAgreesWithTheKnownTable) {
  StoreRouters(0.003);
  pb::CompareSpec asked;
  const double sd = Ask()->comparison.results[0].paired_sd;
  asked.add_margins(sd);
  const Result<PowerAnswer> answer =
      EstimatePower(*store_, sweep_, {.compare = {.asked = asked, .arms = {}, .chosen_on = {}}});
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  EXPECT_EQ(answer->estimates[0].goals[0].pairs_at_sd, 11u);
  EXPECT_EQ(answer->estimates[0].goals[1].pairs_at_sd, 10u);
}

TEST_F(ComparisonTest, PowerNeedsAGoal) {
  StoreRouters(0.003, "");
  const pb::CompareSpec asked = By(kKind, "smoe");
  EXPECT_THAT(
      EstimatePower(*store_, sweep_, {.compare = {.asked = asked, .arms = {}, .chosen_on = {}}})
          .status()
          .message(),
      HasSubstr("margins: at least one is required"));
}

}  // namespace
}  // namespace switchyard::results
