#include "common/spec/stage.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/sweep_layout.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// The small sweep with a first stage of two arms and two learning rates, and `rest` behind it.
std::string Staged(std::string_view rest) {
  return StrCat(Replaced(kSmallSweep, "replicates: {seeds: [1]}\n", ""), R"(stages:
  search:
    space:
      choice: {arm: {smoe: {}, hash: {set: {model.moe.router: hash}}}}
      grid: {train.optimizer.adam.lr: [1e-3, 1e-4]}
    replicates: {seeds: [1, 2]}
    objective: {metric: valid/bits_per_byte}
)",
                rest);
}

constexpr std::string_view kTune = R"(  tune:
    needs: search
    base: {kind: finetune, train: {steps: 10, batch: 4, target_len: 64, optimizer: {adam: {lr: 1e-5}}}}
)";

pb::SweepSpec Read(const std::string& text) {
  pb::SweepSpec sweep;
  const std::vector<Fault> faults = ReadSweepYaml("sweep.yaml", text, {}, &sweep);
  SWITCHYARD_CHECK(faults.empty()) << ToString(faults);
  return sweep;
}

std::string Digest(uint64_t number) {
  std::string digits = std::to_string(number);
  return StrCat("sha256:", std::string(64 - digits.size(), '0'), digits);
}

// Every run of the first stage as if it had succeeded: checkpoints at 40, 80 and 100, the best at
// 80, and an objective that is best in cell 4.
std::vector<ParentRun> Parents(const pb::SweepSpec& sweep) {
  std::vector<Fault> faults;
  const auto plan = PlanStage(sweep, sweep.stages(0), &faults);
  SWITCHYARD_CHECK(plan != nullptr) << ToString(faults);
  std::vector<ParentRun> parents;
  for (uint64_t number = 1; number <= plan->run_count(); ++number) {
    PlannedRun planned = plan->At(number, &faults);
    ParentRun parent{
        .id = StrCat("run-", number),
        .cell = planned.cell,
        .seed = planned.seed,
        .columns = planned.columns,
        .checkpoints = {{.step = 40, .digest = Digest(number * 1000 + 40)},
                        {.step = 80, .digest = Digest(number * 1000 + 80), .is_best = true},
                        {.step = 100, .digest = Digest(number * 1000 + 100)}},
        .series = {{"valid/loss", 1.0 / static_cast<double>(planned.cell), 5.0}},
        .objective = 10.0 - static_cast<double>(planned.cell),
        .layout = plan->layout(),
        .point = plan->PointOf(planned.cell)};
    parent.run = std::shared_ptr<const pb::RunSpec>(std::move(planned.run));
    parents.push_back(std::move(parent));
  }
  return parents;
}

std::vector<StageGroup> Expand(const pb::SweepSpec& sweep, std::vector<ParentRun> parents,
                               ParentStage state = ParentStage::kDone) {
  std::vector<Fault> faults;
  std::vector<StageGroup> groups =
      ExpandStage(sweep, sweep.stages(1), std::move(parents), state, &faults);
  EXPECT_THAT(faults, IsEmpty()) << ToString(faults);
  return groups;
}

std::vector<std::string> Keys(const std::vector<StageGroup>& groups) {
  std::vector<std::string> keys;
  for (const StageGroup& group : groups) keys.push_back(group.key);
  return keys;
}

PlannedRun First(const StageGroup& group) {
  std::vector<Fault> faults;
  PlannedRun run = group.plan->At(1, &faults);
  EXPECT_THAT(faults, IsEmpty()) << ToString(faults);
  return run;
}

// A child for each parent's best checkpoint, with the parent's data, eval and model under its own
// base, its columns and its seed.
TEST(ExpandStage, StartsFromTheBestCheckpoint) {
  const pb::SweepSpec sweep = Read(Staged(kTune));
  const std::vector<ParentRun> parents = Parents(sweep);
  const std::vector<StageGroup> groups = Expand(sweep, parents);
  ASSERT_EQ(groups.size(), 8U);
  EXPECT_EQ(groups[0].key, "cell=1 seed=1 step=80");
  EXPECT_EQ(groups[1].key, "cell=1 seed=2 step=80");
  EXPECT_THAT(groups[1].parents, ElementsAre("run-5"));
  const PlannedRun child = First(groups[1]);
  EXPECT_EQ(child.run->kind(), pb::RUN_KIND_FINETUNE);
  EXPECT_EQ(child.run->init().run(), "run-5");
  EXPECT_EQ(child.run->init().step(), 80U);
  EXPECT_EQ(child.run->init().digest(), Digest(5080));
  EXPECT_EQ(child.run->init().restore(), pb::RESTORE_WEIGHTS);
  EXPECT_EQ(child.run->model().SerializeAsString(), parents[0].run->model().SerializeAsString());
  EXPECT_EQ(child.run->data().SerializeAsString(), parents[0].run->data().SerializeAsString());
  EXPECT_EQ(child.run->eval().target_len(), 128U);  // the parent's
  EXPECT_EQ(child.run->train().target_len(), 64U);  // its own
  EXPECT_EQ(child.seed, 2U);
  EXPECT_THAT(child.columns,
              ElementsAre(Pair("arm", "smoe"), Pair("train.optimizer.adam.lr", "1e-3")));
  // The order in which parents are known does not matter.
  std::vector<ParentRun> reversed(parents.rbegin(), parents.rend());
  EXPECT_EQ(Keys(Expand(sweep, reversed)), Keys(groups));
}

// `last`, and `every`: those that the run was told to keep, and the last one.
TEST(ExpandStage, TakesTheCheckpointsOfFrom) {
  const pb::SweepSpec last =
      Read(Staged(Replaced(kTune, "needs: search", "needs: search\n    from: last")));
  EXPECT_EQ(First(Expand(last, Parents(last))[0]).run->init().step(), 100U);
  const pb::SweepSpec every =
      Read(Replaced(Staged(Replaced(kTune, "needs: search", "needs: search\n    from: every")),
                    "    steps: 100", "    steps: 100\n    keep_steps: [40]"));
  const std::vector<StageGroup> groups = Expand(every, Parents(every));
  ASSERT_EQ(groups.size(), 16U);
  EXPECT_EQ(groups[0].key, "cell=1 seed=1 step=40");
  EXPECT_EQ(groups[1].key, "cell=1 seed=1 step=100");
  EXPECT_THAT(First(groups[1]).columns, ::testing::Contains(Pair("step", "100")));
}

// A later success adds children and changes none.
TEST(ExpandStage, GrowsWithItsParents) {
  const pb::SweepSpec sweep = Read(Staged(kTune));
  std::vector<ParentRun> parents = Parents(sweep);
  const std::vector<StageGroup> all = Expand(sweep, parents);
  parents.erase(parents.begin() + 2);
  const std::vector<StageGroup> few = Expand(sweep, parents, ParentStage::kRunning);
  ASSERT_EQ(few.size(), 7U);
  for (const StageGroup& group : few) {
    const auto at = std::ranges::find(all, group.key, &StageGroup::key);
    ASSERT_NE(at, all.end());
    EXPECT_EQ(First(*at).run_key, First(group).run_key);
  }
}

// The best cell of each arm by the mean over its seeds; nothing before the whole stage is done. A
// cell with a run that has no value ranks last (ME2, kind 8).
TEST(ExpandStage, SelectsTheTopOfEachArm) {
  const pb::SweepSpec sweep = Read(
      Staged(Replaced(kTune, "needs: search", "needs: search\n    select: {top: 1, per: [arm]}")));
  EXPECT_THAT(Expand(sweep, Parents(sweep), ParentStage::kRunning), IsEmpty());
  EXPECT_THAT(Keys(Expand(sweep, Parents(sweep))),
              ElementsAre("cell=2 seed=1 step=80", "cell=2 seed=2 step=80", "cell=4 seed=1 step=80",
                          "cell=4 seed=2 step=80"));
  std::vector<ParentRun> parents = Parents(sweep);
  for (ParentRun& parent : parents) {
    if (parent.cell == 4 && parent.seed == 2) parent.objective.reset();
  }
  EXPECT_THAT(Keys(Expand(sweep, parents)),
              ElementsAre("cell=2 seed=1 step=80", "cell=2 seed=2 step=80", "cell=3 seed=1 step=80",
                          "cell=3 seed=2 step=80"));
}

// `where` reads columns, fields and series of the parents.
TEST(ExpandStage, SelectsByExpression) {
  const auto count = [](std::string_view where) {
    const pb::SweepSpec sweep = Read(Staged(Replaced(
        kTune, "needs: search", StrCat("needs: search\n    select: {where: '", where, "'}"))));
    return Expand(sweep, Parents(sweep)).size();
  };
  EXPECT_EQ(count("arm = \"hash\""), 4U);
  EXPECT_EQ(count("train.optimizer.adam.lr < 5e-4 and seed = 2"), 2U);
  EXPECT_EQ(count("best(valid/loss) < 0.4"), 4U);
  EXPECT_EQ(count("last(valid/missing) < 0.4"), 0U);
}

// One run reads many checkpoints, in order of cell, seed and step.
TEST(ExpandStage, GathersInputs) {
  constexpr std::string_view kAlign = R"(  align:
    needs: search
    from: last
    each: cell
    base: {kind: analyze, analyze: {jobs: [seed_alignment]}}
)";
  const pb::SweepSpec by_cell = Read(Staged(kAlign));
  std::vector<StageGroup> groups = Expand(by_cell, Parents(by_cell));
  EXPECT_THAT(Keys(groups), ElementsAre("cell=1", "cell=2", "cell=3", "cell=4"));
  const PlannedRun run = First(groups[2]);
  ASSERT_EQ(run.run->inputs_size(), 2);
  EXPECT_EQ(run.run->inputs(0).run(), "run-3");
  EXPECT_EQ(run.run->inputs(1).run(), "run-7");
  EXPECT_EQ(run.run->inputs(1).seed(), 2U);
  EXPECT_EQ(run.run->inputs(1).step(), 100U);
  EXPECT_FALSE(run.run->has_train());
  const pb::SweepSpec by_axis =
      Read(Staged(Replaced(kAlign, "each: cell", "each: [train.optimizer.adam.lr]")));
  groups = Expand(by_axis, Parents(by_axis));
  EXPECT_THAT(Keys(groups),
              ElementsAre("train.optimizer.adam.lr=1e-3", "train.optimizer.adam.lr=1e-4"));
  // What differs between the inputs is no column, and no part of what the run starts from.
  EXPECT_THAT(First(groups[0]).columns, ElementsAre(Pair("train.optimizer.adam.lr", "1e-3")));
  EXPECT_FALSE(First(groups[0]).run->has_model());
  EXPECT_TRUE(First(groups[0]).run->has_data());
  const pb::SweepSpec all = Read(Staged(Replaced(kAlign, "each: cell", "each: all")));
  groups = Expand(all, Parents(all));
  EXPECT_THAT(Keys(groups), ElementsAre("all"));
  EXPECT_EQ(First(groups[0]).run->inputs_size(), 8);
}

// `from: spec`: the cell's own document under the stage's base, with `match` solved anew and the
// stage's seeds instead of the parent's.
TEST(ExpandStage, TakesTheSpecAnew) {
  const pb::SweepSpec sweep = Read(StrCat(Replaced(kSmallSweep, "replicates: {seeds: [1]}\n", ""),
                                          R"(stages:
  search:
    space:
      choice:
        arm:
          smoe: {}
          dense:
            set: {model.moe.router: dense}
            match: {quantity: flops.active_per_token, to: smoe, vary: model.moe.router.dense.d_ff}
    replicates: {seeds: [1, 2]}
  confirm:
    needs: search
    from: spec
    base: {model: {transformer_xl: {d_inner: 256}}, train: {steps: 200}}
    replicates: {seeds: [101, 102, 103]}
)"));
  const std::vector<StageGroup> groups = Expand(sweep, Parents(sweep));
  EXPECT_THAT(Keys(groups), ElementsAre("cell=1", "cell=2"));
  EXPECT_THAT(groups[1].plan->seeds(), ElementsAre(101, 102, 103));
  const PlannedRun run = First(groups[1]);
  EXPECT_EQ(run.run->kind(), pb::RUN_KIND_TRAIN);
  EXPECT_FALSE(run.run->has_init());
  EXPECT_EQ(run.run->train().steps(), 200U);
  // 260 for width 128 (Match.FindsTheNearestWidth): twice the experts and the same gate.
  EXPECT_EQ(run.run->model().moe().router().dense().d_ff(), 516U);
  EXPECT_THAT(run.columns, ElementsAre(Pair("arm", "dense")));
}

// Its own space and seeds multiply each parent.
TEST(ExpandStage, MultipliesSpaceAndReplicates) {
  const pb::SweepSpec sweep =
      Read(Staged(StrCat(kTune,
                         "    space: {grid: {train.optimizer.adam.lr: [1e-5, 1e-6]}}\n"
                         "    replicates: {seeds: [7, 8, 9]}\n")));
  const std::vector<StageGroup> groups = Expand(sweep, Parents(sweep));
  ASSERT_EQ(groups.size(), 8U);
  EXPECT_EQ(groups[0].plan->run_count(), 6U);
  EXPECT_THAT(groups[0].plan->seeds(), ElementsAre(7, 8, 9));
  // An axis of the child with the name of one of the parent's has the child's value.
  EXPECT_THAT(First(groups[0]).columns,
              ElementsAre(Pair("arm", "smoe"), Pair("train.optimizer.adam.lr", "1e-5")));
}

// What is wrong in a stage is said at submission, with its place; not when its parents end.
TEST(CheckStages, TriesChildrenBeforeThereAreParents) {
  const auto faults = [](const std::string& text) {
    pb::SweepSpec sweep;
    std::vector<Fault> found = ReadSweepYaml("sweep.yaml", text, {}, &sweep);
    if (found.empty()) SweepPlan::Make(sweep, &found);
    LocateFaults("sweep.yaml", text, &found);
    return ToString(found);
  };
  EXPECT_EQ(faults(Staged(kTune)), "");
  EXPECT_THAT(faults(Staged(Replaced(kTune, "steps: 10, ", ""))),
              AllOf(HasSubstr("stages.tune.base.train: exactly one of steps"),
                    HasSubstr("sweep.yaml:23:"), HasSubstr("(child of cell=1 seed=1 step=100)")));
  EXPECT_THAT(faults(Staged(Replaced(kTune, "kind: finetune", "kind: train"))),
              HasSubstr("write finetune, or from: spec"));
  EXPECT_THAT(faults(Staged(Replaced(kTune, "needs: search", "needs: serch"))),
              HasSubstr("'serch' is not a stage; nearest: search"));
  EXPECT_THAT(faults(Staged(Replaced(kTune, "needs: search", "needs: search\n    each: cell"))),
              HasSubstr("only analyze and benchmark take"));
  EXPECT_THAT(faults(Staged(Replaced(kTune, "needs: search",
                                     "needs: search\n    select: {top: 1, per: [arms]}"))),
              HasSubstr("'arms' is not an axis of search; nearest: arm"));
  EXPECT_THAT(faults(Staged(Replaced(kTune, "needs: search",
                                     "needs: search\n    select: {where: \"arn = 'x'\"}"))),
              HasSubstr("'arn' is neither an axis nor a field; nearest: arm"));
  EXPECT_THAT(faults(StrCat(Staged(kTune), "space: {grid: {train.batch: [1]}}\n")),
              HasSubstr("space: belongs into a stage when there are stages"));
  EXPECT_THAT(faults(Staged("  tune: {needs: tune, base: {kind: evaluate}}\n")),
              HasSubstr("need each other in a circle"));
}

// `--set STAGE:PATH=VALUE` reaches that stage only.
TEST(CheckStages, LaysSetsOnOneStage) {
  pb::SweepSpec sweep;
  std::vector<Fault> faults = ReadSweepYaml(
      "sweep.yaml", Staged(kTune), {{"tune:train.steps", "30"}, {"train.batch", "2"}}, &sweep);
  ASSERT_THAT(faults, IsEmpty()) << ToString(faults);
  const std::vector<ParentRun> parents = Parents(sweep);
  EXPECT_EQ(parents[0].run->train().steps(), 100U);
  EXPECT_EQ(parents[0].run->train().batch(), 2U);
  const PlannedRun child = First(Expand(sweep, parents)[0]);
  EXPECT_EQ(child.run->train().steps(), 30U);
  EXPECT_EQ(child.run->train().batch(), 2U);
  faults = ReadSweepYaml("sweep.yaml", Staged(kTune), {{"tun:train.steps", "30"}}, &sweep);
  if (faults.empty()) SweepPlan::Make(sweep, &faults);
  EXPECT_THAT(ToString(faults), HasSubstr("'tun' is not a stage"));
}

}  // namespace
}  // namespace switchyard::spec
