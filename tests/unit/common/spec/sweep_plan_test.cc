#include "common/spec/sweep_plan.h"

#include <chrono>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/validate.h"
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

std::string WithGrid(std::string_view grid, std::string_view seeds = "[1]") {
  return StrCat(Replaced(kSmallSweep, "seeds: [1]", StrCat("seeds: ", seeds)), "space:\n  grid: {",
                grid, "}\n");
}

// Every combination once, the last axis fastest, all cells of a seed before the next seed.
TEST(SweepPlan, ListsEveryCellOnceSeedBySeed) {
  const auto plan =
      PlanOf(WithGrid("train.batch: [4, 8], model.moe.experts: [4, 8, 16]", "[7, 9]"));
  EXPECT_EQ(plan->cell_count(), 6U);
  EXPECT_EQ(plan->run_count(), 12U);
  EXPECT_THAT(plan->axes(), ElementsAre("train.batch", "model.moe.experts"));
  EXPECT_THAT(plan->seeds(), ElementsAre(7, 9));
  std::set<std::string> keys;
  std::vector<std::string> lines;
  for (uint64_t number = 1; number <= plan->run_count(); ++number) {
    std::vector<Fault> faults;
    const PlannedRun run = plan->At(number, &faults);
    ASSERT_THAT(faults, IsEmpty());
    EXPECT_EQ(run.number, number);
    EXPECT_EQ(run.run->seed(), run.seed);
    EXPECT_EQ(StrCat(run.run->train().batch()), run.columns[0].second);
    EXPECT_EQ(StrCat(run.run->model().moe().experts()), run.columns[1].second);
    EXPECT_EQ(RunKey(*run.run), run.run_key);
    keys.insert(run.run_key);
    lines.push_back(
        StrCat(run.seed, ":", run.cell, ":", run.columns[0].second, ":", run.columns[1].second));
  }
  EXPECT_EQ(keys.size(), 12U);
  EXPECT_THAT(lines,
              ElementsAre("7:1:4:4", "7:2:4:8", "7:3:4:16", "7:4:8:4", "7:5:8:8", "7:6:8:16",
                          "9:1:4:4", "9:2:4:8", "9:3:4:16", "9:4:8:4", "9:5:8:8", "9:6:8:16"));
}

// A number outside the plan is a fault, not memory of a neighbour.
TEST(SweepPlan, RefusesNumbersOutsideThePlan) {
  const auto plan = PlanOf(kSmallSweep);
  for (const uint64_t number : {uint64_t{0}, uint64_t{2}, UINT64_MAX}) {
    std::vector<Fault> faults;
    plan->At(number, &faults);
    EXPECT_THAT(ToString(faults), HasSubstr("is not between 1 and 1"));
  }
}

// Without replicates a grid is trained with three seeds.
TEST(SweepPlan, HasThreeSeedsByDefault) {
  EXPECT_THAT(PlanOf(Replaced(kSmallSweep, "replicates: {seeds: [1]}\n", ""))->seeds(),
              ElementsAre(1, 2, 3));
}

// paired: false gives cells unequal seeds, the same ones in every process and for every grid size.
TEST(SweepPlan, DerivesUnpairedSeedsFromSeedAndCell) {
  const auto unpaired = [](std::string_view grid) {
    return PlanOf(
        Replaced(WithGrid(grid, "[1, 2]"), "seeds: [1, 2]", "seeds: [1, 2], paired: false"));
  };
  const auto plan = unpaired("train.batch: [4, 8]");
  std::set<uint64_t> seeds;
  std::vector<Fault> faults;
  for (uint64_t number = 1; number <= 4; ++number) seeds.insert(plan->At(number, &faults).seed);
  EXPECT_EQ(seeds.size(), 4U);
  EXPECT_LT(*seeds.rbegin(), uint64_t{1} << 63);
  EXPECT_EQ(plan->At(1, &faults).seed, unpaired("train.batch: [4, 8, 16]")->At(1, &faults).seed);
}

// Columns are what the author wrote, so that a table can be compared with the file.
TEST(SweepPlan, NamesColumnsByTheValueAsWritten) {
  const auto plan = PlanOf(
      WithGrid("train.optimizer.adam.lr: [1e-3, 0.0010001], model.moe.layers: [[0, 1], [3]], "
               "model.moe.router: [smoe, {hash: {balanced: true}}]"));
  std::vector<Fault> faults;
  EXPECT_THAT(
      plan->At(2, &faults).columns,
      ElementsAre(Pair("train.optimizer.adam.lr", "1e-3"), Pair("model.moe.layers", "[0, 1]"),
                  Pair("model.moe.router", "{hash: {balanced: true}}")));
}

// Preset under base under --set under axes, field by field.
TEST(SweepPlan, LaysPresetBaseAndAxesOverEachOther) {
  constexpr std::string_view kText = R"(name: layers
preset: txl_tiny
base:
  data: {enwik8: {path: /data}}
  model: {transformer_xl: {layers: 6}}
  train: {steps: 10, optimizer: {adamw: {lr: 1e-3}}}
space: {grid: {train.batch: [2]}}
)";
  const PlannedRun run = RunOf(kText);
  EXPECT_EQ(run.run->model().transformer_xl().layers(), 6U);     // base over preset
  EXPECT_EQ(run.run->model().transformer_xl().d_model(), 128U);  // preset
  EXPECT_EQ(run.run->train().batch(), 2U);                       // axis over preset
  EXPECT_TRUE(run.run->train().optimizer().has_adamw());         // another case replaces
  EXPECT_FALSE(run.run->train().optimizer().has_adam());
  EXPECT_EQ(run.run->train().optimizer().adamw().weight_decay(), 0.01);  // default
  std::vector<Fault> faults;
  EXPECT_EQ(PlanOf(kText, {{"model.transformer_xl.layers", "5"}})
                ->At(1, &faults)
                .run->model()
                .transformer_xl()
                .layers(),
            5U);
  EXPECT_EQ(RunOf(Replaced(Replaced(kText, "preset: txl_tiny\n", ""), "base:\n",
                           "base:\n  preset: txl_tiny\n"))
                .run_key,
            run.run_key);
}

// Another preset's name, nearly right.
TEST(SweepPlan, NamesTheNearestPreset) {
  EXPECT_THAT(PlanFaults("name: a\npreset: txl_tinny\n"), HasSubstr("nearest: txl_tiny"));
  EXPECT_THAT(PlanFaults("name: a\npreset: zzz\n"), HasSubstr("known: txl_tiny, txl_mini"));
}

// Two documents of one run share it: the identity does not depend on how a file says it.
TEST(SweepPlan, GivesOneIdentityToOneRun) {
  const std::string key = RunOf(kSmallSweep).run_key;
  EXPECT_EQ(RunOf(Replaced(kSmallSweep, "steps: 100", "tokens: 102400")).run_key, key);
  EXPECT_EQ(RunOf(Replaced(kSmallSweep, "steps: 100", "tokens: 101377")).run_key, key);  // up
  EXPECT_EQ(RunOf(Replaced(kSmallSweep, "layers: 4", "layers: 4, dropout: 0.1")).run_key, key);
  EXPECT_EQ(
      RunOf(Replaced(kSmallSweep, "name: small", "name: other\nnotes: x\npriority: 5")).run_key,
      key);
  EXPECT_NE(RunOf(Replaced(kSmallSweep, "steps: 100", "tokens: 102401")).run_key, key);
  EXPECT_NE(RunOf(Replaced(kSmallSweep, "seeds: [1]", "seeds: [2]")).run_key, key);
}

// Domains and losses are sorted in a run; their order in the file means nothing.
TEST(SweepPlan, SortsKeyedListsOfARun) {
  const auto with = [](std::string_view domains, std::string_view losses) {
    return RunOf(Replaced(Replaced(kSmallSweep, "c: [\"/usr/include/**/*.h\"]", domains),
                          "router: smoe", StrCat("router: smoe, losses: {", losses, "}")))
        .run_key;
  };
  EXPECT_EQ(with("a: [x], b: [y]", "z_loss: {coef: 1}, megablocks: {coef: 2}"),
            with("b: [y], a: [x]", "megablocks: {coef: 2}, z_loss: {coef: 1}"));
}

// spec.md: `.kind` keeps the options of the case it names, and may not drop those of another.
TEST(SweepPlan, SelectsACaseByKind) {
  const std::string with_options = Replaced(WithGrid("model.moe.router.kind: [hash]"),
                                            "router: smoe", "router: {hash: {balanced: true}}");
  EXPECT_TRUE(RunOf(with_options).run->model().moe().router().hash().balanced());
  EXPECT_THAT(PlanFaults(Replaced(with_options, "[hash]", "[hash, smoe]")),
              HasSubstr("'smoe' would drop the options of hash set under it (balanced)"));
  EXPECT_EQ(RunOf(WithGrid("model.moe.router.kind: [hash]")).router, "hash");
}

// A case chosen by one axis may be refined by another, whichever is written first.
TEST(SweepPlan, LaysKindsBeforeTheirOptions) {
  const PlannedRun run =
      RunOf(WithGrid("model.moe.router.hash.balanced: [true], model.moe.router.kind: [hash]"));
  EXPECT_TRUE(run.run->model().moe().router().hash().balanced());
  EXPECT_THAT(PlanFaults(WithGrid("model.moe.router.hash.balanced: [true]")),
              HasSubstr("the path goes through hash, but smoe is what is used there"));
}

// List elements go by their id, and ids may hold dots.
TEST(SweepPlan, ReachesListElementsById) {
  const std::string text = Replaced(
      Replaced(
          WithGrid("model.moe.losses.z_loss.coef: [0, 1e-3], data.files.domains.a.b.weight: [3]"),
          "router: smoe", "router: smoe, losses: {z_loss: {coef: 1}}"),
      "c: [", "a.b: [");
  const PlannedRun run = RunOf(text, 2);
  EXPECT_EQ(run.run->model().moe().losses(0).coef(), 1e-3);
  EXPECT_EQ(run.run->data().files().domains(0).weight(), 3);
  EXPECT_THAT(PlanFaults(Replaced(text, "losses.z_loss.coef", "losses.z_los.coef")),
              HasSubstr("'z_los' is not in losses; nearest: z_loss"));
  EXPECT_THAT(PlanFaults(WithGrid("model.moe.losses.z_loss.coef: [1]")),
              HasSubstr("which is empty"));
}

// No losses is a value of an axis like others.
TEST(SweepPlan, TakesAnEmptyListOfLossesOnAnAxis) {
  const auto plan = PlanOf(WithGrid("model.moe.losses: [[], [{id: z_loss, coef: 1e-3}]]"));
  std::vector<Fault> faults;
  EXPECT_EQ(plan->At(1, &faults).run->model().moe().losses_size(), 0);
  EXPECT_EQ(plan->At(2, &faults).run->model().moe().losses_size(), 1);
}

// Policy may differ by cell; it is not part of the identity.
TEST(SweepPlan, TakesPolicyPathsAsAxes) {
  const auto plan = PlanOf(WithGrid("resources.cpu_slots: [1, 2], timeout: [1h, 2h]"));
  std::vector<Fault> faults;
  const PlannedRun first = plan->At(1, &faults);
  const PlannedRun last = plan->At(4, &faults);
  EXPECT_EQ(first.run_key, last.run_key);
  EXPECT_EQ(last.policy->resources().cpu_slots(), 2U);
  EXPECT_EQ(last.policy->timeout_ms(), 7'200'000U);
  EXPECT_EQ(last.policy->checkpoint().every_ms(), 600'000U);
  EXPECT_EQ(last.policy->telemetry().every_steps(), 20U);
  EXPECT_THAT(PlanFaults(WithGrid("max_parallel: [1]")), HasSubstr("is no axis"));
  EXPECT_THAT(PlanFaults(WithGrid("resources.cpu_slots: [0]")), HasSubstr("not between 1"));
}

// A value given twice would train one thing under two names.
TEST(SweepPlan, RefusesAValueGivenTwiceInAnyForm) {
  EXPECT_THAT(PlanFaults(WithGrid("train.optimizer.adam.lr: [3e-4, 1e-3, 0.0003]")),
              AllOf(HasSubstr("sweep.yaml:16:"),
                    HasSubstr("the value 0.0003 is given twice: as value 1 and 3")));
  EXPECT_THAT(PlanFaults(WithGrid("model.moe.router: [smoe, {kind: smoe}]")),
              HasSubstr("is given twice"));
  EXPECT_THAT(PlanFaults(WithGrid("timeout: [1h, 60m]")), HasSubstr("is given twice"));
}

// Two axes on one field: the later would win everywhere.
TEST(SweepPlan, RefusesOverlappingAxes) {
  EXPECT_THAT(PlanFaults(WithGrid("model.moe: [{}], model.moe.experts: [4]")),
              HasSubstr("overlaps"));
  EXPECT_THAT(PlanFaults(WithGrid("train.steps: [4], train.tokens: [4096]")),
              HasSubstr("overlaps"));
  EXPECT_THAT(PlanFaults(WithGrid("train.batch: [4], train.batch: [8]")), HasSubstr("given twice"));
}

// Wrong values of an axis are found where they stand.
TEST(SweepPlan, RefusesValuesOfTheWrongType) {
  EXPECT_THAT(PlanFaults(WithGrid("train.batch: [4, x]")),
              HasSubstr("sweep.yaml:16:27: train.batch: 'x' is not a whole number"));
  EXPECT_THAT(PlanFaults(WithGrid("model.moe.layers: [0]")), HasSubstr("expected a list"));
  EXPECT_THAT(PlanFaults(WithGrid("train.batch.x: [4]")), HasSubstr("batch has no parts"));
  EXPECT_THAT(PlanFaults(WithGrid("\"\": [4]")), HasSubstr("is not a field of RunSpec"));
  EXPECT_THAT(PlanFaults(WithGrid("train..batch: [4]")),
              HasSubstr("'' is not a field of TrainSpec"));
}

// operations.md 6: sizes are multiplied with care before anything is expanded.
TEST(SweepPlan, RefusesHugeGridsBeforeExpandingThem) {
  std::string grid;
  for (const char* path : {"train.batch",
                           "train.warmup_steps",
                           "model.moe.experts",
                           "eval.batch",
                           "eval.every_steps",
                           "train.steps",
                           "model.transformer_xl.d_inner",
                           "eval.max_tokens",
                           "priority",
                           "model.transformer_xl.d_model",
                           "model.transformer_xl.heads",
                           "model.transformer_xl.d_head",
                           "model.transformer_xl.clamp_len",
                           "telemetry.every_steps",
                           "checkpoint.keep_last",
                           "eval.memory_len",
                           "train.memory_len",
                           "resources.cpu_slots",
                           "checkpoint.keep_best",
                           "model.moe.top_k",
                           "train.micro_batch"}) {
    grid += StrCat(grid.empty() ? "" : ", ", path, ": [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]");
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(PlanFaults(WithGrid(grid)), HasSubstr("more than 1000000 runs"));  // 10^21 > 2^64
  EXPECT_THAT(PlanFaults(WithGrid("train.batch: [4, 8]", "1000000")),
              HasSubstr("more than 1000000 runs"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// 10,000 cells: no work that grows with the cells at creation, and any run at once. The bound is
// generous for loaded machines and sanitizers.
TEST(SweepPlan, PlansTenThousandCellsLazily) {
  std::string rates;
  for (int i = 1; i <= 100; ++i) rates += StrCat(i == 1 ? "" : ", ", i, "e-5");
  std::string steps;
  for (int i = 1; i <= 100; ++i) steps += StrCat(i == 1 ? "" : ", ", i * 10);
  const std::string text =
      WithGrid(StrCat("train.optimizer.adam.lr: [", rates, "], train.steps: [", steps, "]"));
  const auto start = std::chrono::steady_clock::now();
  const auto plan = PlanOf(text);
  std::vector<Fault> faults;
  EXPECT_EQ(plan->At(10'000, &faults).run->train().steps(), 1000U);
  EXPECT_EQ(plan->cell_count(), 10'000U);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
}

// A field of `base` without a use in one cell is dropped there, and said so.
TEST(SweepPlan, DropsFieldsOfTheBaseThatACellCannotUse) {
  const std::string text = Replaced(
      WithGrid("model.moe.router.kind: [smoe, hash, dense]"), "router: smoe",
      "top_k: 2, losses: {z_loss: {coef: 1e-3}}, router: {kind: smoe, gate_norm: softmax_full}");
  const PlannedRun hash = RunOf(text, 2);
  EXPECT_THAT(hash.notices,
              ElementsAre("model.moe.losses is dropped: the router hash has no scores",
                          "model.moe.router.gate_norm is dropped: the router hash has no scores"));
  EXPECT_EQ(hash.run->model().moe().losses_size(), 0);
  EXPECT_EQ(hash.run->model().moe().router().gate_norm(), pb::GATE_NORM_UNIFORM);
  const PlannedRun dense = RunOf(text, 3);
  EXPECT_EQ(dense.notices.size(), 3U);
  EXPECT_EQ(dense.run->model().moe().router().dense().d_ff(), 8U * 128U);
  EXPECT_EQ(dense.run->model().moe().experts(), 0U);
  EXPECT_EQ(dense.router, "dense");
  EXPECT_THAT(RunOf(text, 1).notices, IsEmpty());
}

// The same between backbones: only one of them has a memory.
TEST(SweepPlan, DropsMemoryFromDecoders) {
  const std::string text = WithGrid(
      "model: [{transformer_xl: {layers: 2, d_model: 64, heads: 2, d_head: 32, d_inner: 64}}, "
      "{decoder: {layers: 2, d_model: 64, heads: 2, d_inner: 64}}]");
  EXPECT_THAT(
      RunOf(text, 2).notices,
      ElementsAre("train.memory_len is dropped: a decoder has no memory of earlier segments"));
  EXPECT_FALSE(RunOf(text, 2).run->train().has_memory_len());
  EXPECT_EQ(RunOf(text, 1).run->train().memory_len(), 128U);
  EXPECT_EQ(RunOf(text, 1).router, "dense");
}

// ML4, kind 4: a setting that reaches nothing in any cell, or that the cell itself sets, is an
// error.
TEST(SweepPlan, RefusesSettingsWithoutEffect) {
  EXPECT_THAT(PlanFaults(Replaced(kSmallSweep, "router: smoe",
                                  "router: hash, losses: {switch: {coef: 0.01}}")),
              HasSubstr("model.moe.losses: is set but has no effect in any cell"));
  EXPECT_THAT(
      PlanFaults(WithGrid("model.moe.router: [smoe, hash], "
                          "model.moe.losses: [[{id: z_loss, coef: 1}], [{id: z_loss, coef: 2}]]")),
      AllOf(HasSubstr("model.moe.losses: is set but has no effect: the router hash"),
            HasSubstr("model.moe.router=hash")));
  EXPECT_THAT(PlanFaults(Replaced(kSmallSweep, "router: smoe", "router: {dense: {d_ff: 64}}")),
              HasSubstr("model.moe.experts: is set but has no effect in any cell"));
}

// In large sweeps, where cells are sampled, the same is found through the axes that decide it.
TEST(SweepPlan, FindsSettingsWithoutEffectInLargeSweeps) {
  std::string steps;
  for (int i = 1; i <= 1500; ++i) steps += StrCat(i == 1 ? "" : ", ", i);
  const std::string grid =
      StrCat("model.moe.router.kind: [hash, dense], train.steps: [", steps, "]");
  const std::string losses = "router: smoe, losses: {z_loss: {coef: 1}}";
  EXPECT_THAT(PlanFaults(Replaced(WithGrid(grid), "router: smoe", losses)),
              HasSubstr("model.moe.losses: is set but has no effect in any cell"));
  EXPECT_EQ(
      PlanFaults(Replaced(WithGrid(Replaced(grid, "[hash,", "[smoe,")), "router: smoe", losses)),
      "");
}

// A cell that is wrong in itself names its axes' values.
TEST(SweepPlan, NamesTheCellOfAFault) {
  EXPECT_THAT(PlanFaults(WithGrid("model.moe.top_k: [2, 9], train.steps: [1, 2]")),
              AllOf(HasSubstr("model.moe.top_k: 9 is not between 1 and 8"),
                    HasSubstr("where model.moe.top_k=9, train.steps=1, and in 1 more of 4")));
}

// What arrives by gRPC was checked by nobody: enum numbers, NaN and foreign fields are refused.
TEST(SweepPlan, RefusesHostileMessages) {
  pb::SweepSpec good;
  ASSERT_EQ(ToString(ReadSweepYaml("sweep.yaml", kSmallSweep, {}, &good)), "");
  const auto faults_of = [](const pb::SweepSpec& sweep) {
    std::vector<Fault> faults;
    SweepPlan::Make(sweep, &faults);
    return ToString(faults);
  };
  EXPECT_EQ(faults_of(good), "");
  pb::SweepSpec sweep = good;
  sweep.mutable_base()->set_kind(static_cast<pb::RunKind>(999));
  EXPECT_THAT(faults_of(sweep), HasSubstr("999 is not a value of RunKind"));
  sweep = good;
  sweep.mutable_base()->mutable_train()->set_clip_norm(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(faults_of(sweep), HasSubstr("NaN is not a finite number"));
  sweep = good;
  sweep.mutable_base()->set_seed(5);
  EXPECT_THAT(faults_of(sweep), HasSubstr("base.seed: is filled in"));
  sweep = good;
  ASSERT_TRUE(sweep.MergeFromString("\xfa\x3f\x01x"));  // field 1023
  EXPECT_THAT(faults_of(sweep), HasSubstr("fields that this release does not know"));
  sweep = good;
  sweep.mutable_space()->add_grid()->set_id("train.batch");
  EXPECT_THAT(faults_of(sweep), HasSubstr("the axis has no values"));
  sweep.mutable_space()->mutable_grid(0)->add_values();
  EXPECT_THAT(faults_of(sweep), HasSubstr("'' is not a whole number"));
  sweep = good;
  sweep.mutable_space()->add_grid()->set_id(std::string(100'000, 'x'));
  EXPECT_THAT(faults_of(sweep), HasSubstr("the path of an axis is too long"));
  sweep = good;
  sweep.set_name("../x");
  EXPECT_THAT(faults_of(sweep), HasSubstr("is not a name"));
  EXPECT_NE(faults_of(pb::SweepSpec()), "");
}

}  // namespace
}  // namespace switchyard::spec
