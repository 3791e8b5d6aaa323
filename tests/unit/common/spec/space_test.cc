#include "common/spec/space.h"

#include <chrono>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::string With(std::string_view rest) { return StrCat(kSmallSweep, rest); }

constexpr std::string_view kDrawn = R"(space:
  choice:
    arm:
      smoe: {}
      z:
        set: {model.moe.losses: [{id: z_loss, coef: 1}]}
        log_uniform: {model.moe.losses.z_loss.coef: [1e-4, 1e-2]}
  uniform: {train.clip_norm: {low: 0.25, high: 1, step: 0.25}}
  int: {train.warmup_steps: [0, 50]}
strategy: {random: {cells: 4}}
)";

// A strategy sees every dimension, with what it hangs on.
TEST(Dimensions, AreThoseOfTheFile) {
  const auto plan = PlanOf(With(kDrawn));
  std::vector<std::string> found;
  for (const Dimension& each : plan->dimensions()) {
    found.push_back(StrCat(each.name, " ", static_cast<int>(each.kind), " ", each.parent, " ",
                           each.parent_value, " ", each.is_log));
  }
  EXPECT_THAT(found,
              ElementsAre("arm 0 -1 0 false", "model.moe.losses.z_loss.coef 1 0 1 true",
                          "train.clip_norm 1 -1 0 false", "train.warmup_steps 2 -1 0 false"));
  EXPECT_TRUE(plan->is_drawn());
}

// What a strategy draws is laid like any other value, rounded to 6 digits and to its steps.
TEST(SweepPlan, MakesCellsFromDraws) {
  const auto plan = PlanOf(With(kDrawn));
  std::vector<Fault> faults;
  const PlannedRun run = plan->From({{.dimension = 0, .value = 1},
                                     {.dimension = 1, .number = 0.00123456789},
                                     {.dimension = 2, .number = 0.6},
                                     {.dimension = 3, .number = 7}},
                                    5, 1, &faults);
  ASSERT_THAT(faults, IsEmpty()) << ToString(faults);
  EXPECT_EQ(run.cell, 5U);
  EXPECT_EQ(run.run->model().moe().losses(0).coef(), 0.00123457);
  EXPECT_EQ(run.run->train().clip_norm(), 0.5);
  EXPECT_EQ(run.run->train().warmup_steps(), 7U);
  EXPECT_THAT(
      run.columns,
      ElementsAre(std::pair("arm", "z"), std::pair("model.moe.losses.z_loss.coef", "0.00123457"),
                  std::pair("train.clip_norm", "0.5"), std::pair("train.warmup_steps", "7")));
  // The same draw by grid is the same run.
  const PlannedRun by_grid = RunOf(With(R"(space:
  grid:
    model.moe.losses: [[{id: z_loss, coef: 0.00123457}]]
    train.clip_norm: [0.5]
    train.warmup_steps: [7]
)"));
  EXPECT_EQ(run.run_key, by_grid.run_key);
}

// A strategy that is wrong about the space is told so, and makes no run.
TEST(SweepPlan, RefusesDrawsThatNameNoCell) {
  const auto plan = PlanOf(With(kDrawn));
  const auto fault = [&](const std::vector<Draw>& draws) {
    std::vector<Fault> faults;
    plan->From(draws, 1, 1, &faults);
    return ToString(faults);
  };
  const Draw arm{.dimension = 0, .value = 0};
  const Draw clip{.dimension = 2, .number = 0.5};
  const Draw warmup{.dimension = 3, .number = 1};
  EXPECT_THAT(fault({arm, clip}), HasSubstr("train.warmup_steps is missing"));
  EXPECT_THAT(fault({arm, clip, warmup, {.dimension = 1, .number = 1e-3}}),
              HasSubstr("model.moe.losses.z_loss.coef does not exist under the others"));
  EXPECT_THAT(fault({arm, clip, warmup, warmup}), HasSubstr("is given twice"));
  EXPECT_THAT(fault({{.dimension = 0, .value = 2}, clip, warmup}), HasSubstr("no value 2 of 2"));
  EXPECT_THAT(fault({arm, {.dimension = 2, .number = 1}, warmup}), HasSubstr("outside"));
  EXPECT_THAT(fault({arm, clip, {.dimension = 3, .number = 51}}), HasSubstr("outside"));
  EXPECT_THAT(fault({arm, clip, {.dimension = 3, .number = std::nan("")}}), HasSubstr("outside"));
  EXPECT_THAT(fault({arm, clip, warmup, {.dimension = 9}}), HasSubstr("no dimension 9 of 4"));
  // Nor can cells be counted where they are drawn.
  std::vector<Fault> faults;
  plan->At(1, &faults);
  EXPECT_THAT(ToString(faults), HasSubstr("proposed by its strategy"));
  EXPECT_THAT(plan->Example(&faults).run, ::testing::NotNull());
}

// A strategy redraws what a constraint drops.
TEST(SweepPlan, SaysWhichDrawsAreAllowed) {
  const auto plan = PlanOf(With(R"(space:
  int: {model.moe.top_k: [2, 8], train.warmup_steps: [0, 50]}
  constraints: [model.moe.top_k * 10 <= train.warmup_steps]
strategy: {random: {cells: 4}}
)"));
  const auto is_allowed = [&](double top_k, double warmup) {
    return *plan->Allows({{.dimension = 0, .number = top_k}, {.dimension = 1, .number = warmup}});
  };
  EXPECT_TRUE(is_allowed(2, 20));
  EXPECT_FALSE(is_allowed(3, 20));
  EXPECT_FALSE(plan->Allows({}).ok());
}

TEST(RoundDrawn, KeepsSixDigitsInsideTheBounds) {
  EXPECT_EQ(RoundDrawn(0.123456789, 0, 1), 0.123457);
  EXPECT_EQ(RoundDrawn(1234567.0, 0, 1e9), 1234570.0);
  // Rounding up would leave [low, high).
  EXPECT_EQ(RoundDrawn(0.9999999, 0, 1), 0.9999999);
  EXPECT_EQ(RoundDrawn(0.1000004, 0.1000002, 1), 0.1000004);
}

// Counting is checked before anything is made.
TEST(CountCells, NoticesOverflow) {
  Axis wide{.kind = AxisKind::kGrid, .name = "a"};
  wide.paths.push_back({.path = "a", .values = std::vector<Node>(1 << 11)});
  Space space;
  for (int i = 0; i < 5; ++i) space.axes.push_back(wide);
  EXPECT_EQ(CountCells(space), uint64_t{1} << 55);
  space.axes.push_back(wide);
  EXPECT_EQ(CountCells(space), std::nullopt);
}

// Any cell of a large sweep, without the others: the last of a million in no time.
TEST(SweepPlan, MakesTheLastCellOfALargeSweepAlone) {
  std::string warmups;
  std::string clips;
  for (int i = 1; i <= 1000; ++i) {
    warmups += StrCat(i == 1 ? "" : ", ", i);
    clips += StrCat(i == 1 ? "" : ", ", i);
  }
  const auto plan = PlanOf(With(StrCat("space:\n  grid:\n    train.warmup_steps: [", warmups,
                                       "]\n    train.clip_norm: [", clips, "]\n")));
  ASSERT_EQ(plan->run_count(), 1'000'000U);
  std::vector<Fault> faults;
  const auto start = std::chrono::steady_clock::now();
  const PlannedRun last = plan->At(1'000'000, &faults);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
  EXPECT_EQ(last.run->train().warmup_steps(), 1000U);
  EXPECT_EQ(last.run->train().clip_norm(), 1000);
  const PlannedRun other = plan->At(1'001, &faults);
  EXPECT_EQ(other.run->train().warmup_steps(), 2U);
  EXPECT_EQ(other.run->train().clip_norm(), 1);
}

// Constraints speak of axes, of what defaults fill in and of computed quantities; one that names
// what a cell lacks does not apply there.
TEST(Constraints, ReadTheWholeCell) {
  const auto cells = [](std::string_view constraint) {
    return PlanOf(With(StrCat(R"(space:
  grid:
    model.moe.router: [smoe, hash]
    model.moe.experts: [4, 8]
    train.schedule: [constant, cosine]
  constraints: [')",
                              constraint, "']\n")))
        ->cell_count();
  };
  EXPECT_EQ(cells("model.moe.experts = 4"), 4U);
  EXPECT_EQ(cells("model.moe.router.kind = \"hash\""), 4U);
  EXPECT_EQ(cells("train.schedule in [\"cosine\"]"), 4U);
  EXPECT_EQ(cells("train.schedule = \"cosine\" or model.moe.experts = 8"), 6U);
  EXPECT_EQ(cells("model.moe.top_k = 2"), 4U);                    // a default
  EXPECT_EQ(cells("train.micro_batch = train.batch"), 8U);        // a default from another field
  EXPECT_EQ(cells("model.moe.router.hash.balanced = true"), 4U);  // smoe has no such thing
  EXPECT_EQ(cells("not model.moe.router.hash.balanced"), 8U);
  EXPECT_EQ(cells("params.total < 0 or model.moe.experts = 8"), 4U);
  EXPECT_EQ(cells("1 / 0 > 1"), 8U);  // decides nothing
}

// Its types are checked where a cell is made.
TEST(Constraints, ReportTypesThatDoNotFit) {
  EXPECT_THAT(PlanFaults(With(R"(space:
  grid: {train.schedule: [constant, cosine]}
  constraints: ["train.schedule > 3"]
)")),
              AllOf(HasSubstr("space.constraints[0]"), HasSubstr("column 16"),
                    HasSubstr("different types")));
}

// `match` takes the whole number that is nearest, the other axes being equal in both.
TEST(Match, FindsTheNearestWidth) {
  const auto plan = PlanOf(With(R"(space:
  choice:
    arm:
      smoe: {}
      dense:
        set: {model.moe.router: dense}
        match: {quantity: flops.active_per_token, to: smoe, vary: model.moe.router.dense.d_ff}
  grid: {model.transformer_xl.d_inner: [128, 256]}
)"));
  ASSERT_EQ(plan->cell_count(), 4U);
  std::vector<Fault> faults;
  const auto d_ff = [&](uint64_t cell) {
    return plan->At(cell, &faults).run->model().moe().router().dense().d_ff();
  };
  // Two active experts of width d_inner, 4 d d_inner FLOPs each, and a gate of 2 d E:
  // (2 * 4 * 128 * 128 + 2 * 128 * 8) / (4 * 128) = 260, and 516 for twice the width.
  EXPECT_EQ(d_ff(3), 260U);
  EXPECT_EQ(d_ff(4), 516U);
  EXPECT_THAT(faults, IsEmpty());
}

// A number that nothing depends on is no answer.
TEST(Match, RefusesWhatDoesNotRise) {
  EXPECT_THAT(PlanFaults(With(R"(space:
  choice:
    arm:
      a: {}
      b: {match: {quantity: params.total, to: a, vary: train.warmup_steps}}
)")),
              HasSubstr("params.total does not rise with it"));
}

// CF1-CF3 at the depth of alternatives: twice, mistyped, and the type of the field.
TEST(Choice, IsReadAsStrictlyAsTheBase) {
  EXPECT_THAT(
      ReadFaults(With("space:\n  choice:\n    arm:\n      a: {}\n      a: {}\n")),
      AllOf(HasSubstr("key 'a' is given twice"), HasSubstr("line 18"), HasSubstr("line 19")));
  EXPECT_THAT(ReadFaults(With("space: {choice: {arm: {a: {set: {train.optim.lr: 1}}}}}\n")),
              HasSubstr("'optim' is not a field of TrainSpec; nearest: optimizer"));
  EXPECT_THAT(ReadFaults(With("space: {choice: {arm: {a: {gird: {}}}}}\n")),
              HasSubstr("nearest: grid"));
  EXPECT_THAT(ReadFaults(With("space: {choice: {arm: {a: {set: {train.batch: 3e-4x}}}}}\n")),
              HasSubstr("'3e-4x' is not a whole number"));
  std::vector<std::string> keys;
  for (const std::string_view lr : {"3e-4", "3.0e-4", "3E-04", "0.0003"}) {
    keys.push_back(RunOf(With(StrCat("space: {choice: {arm: {a: {set: {train.optimizer.adam.lr: ",
                                     lr, "}}}}}\n")))
                       .run_key);
  }
  EXPECT_THAT(keys, ::testing::Each(keys.front()));
}

// --set has no effect on a path that any axis lays.
TEST(Choice, OwnsItsPaths) {
  EXPECT_THAT(ReadFaults(With("space: {choice: {arm: {a: {set: {train.batch: 4}}, b: {}}}}\n"),
                         {{"train.batch", "2"}}),
              HasSubstr("is laid by the axis arm, so --set train.batch would have no effect"));
}

// Alternatives within alternatives end somewhere.
TEST(Choice, BoundsItsLevels) {
  std::string inner = "{}";
  for (int i = 0; i < 12; ++i) inner = StrCat("{choice: {c", i, ": {a: ", inner, "}}}");
  EXPECT_THAT(ReadFaults(With(StrCat("space: ", inner, "\n"))),
              HasSubstr("more than 8 levels of alternatives"));
}

// Kind 15: however much a file holds, reading it takes moments.
TEST(Choice, BoundsItsPaths) {
  const auto sets = [](int count, std::string_view prefix) {
    std::vector<std::string> parts;
    for (int i = 0; i < count; ++i) parts.push_back(StrCat(prefix, i, ": 1"));
    return StrCat("{set: {", StrJoin(parts, ", "), "}}");
  };
  EXPECT_THAT(ReadFaults(With(StrCat("space: {choice: {arm: {a: ", sets(300, "p"), "}}}\n"))),
              HasSubstr("sets 300 paths, at most 256"));
  std::vector<std::string> alternatives;
  for (int i = 0; i < 50; ++i) {
    alternatives.push_back(StrCat("a", i, ": ", sets(200, StrCat("q", i, "_"))));
  }
  EXPECT_THAT(
      ReadFaults(With(StrCat("space: {choice: {arm: {", StrJoin(alternatives, ", "), "}}}\n"))),
      HasSubstr("lays 10000 different paths, at most 4096"));
  std::vector<std::string> axes;
  for (int i = 0; i < 3000; ++i) axes.push_back(StrCat("x", i, ": [1]"));
  EXPECT_THAT(ReadFaults(With(StrCat("space: {grid: {", StrJoin(axes, ", "), "}}\n"))),
              HasSubstr("has more than 64 axes"));
}

}  // namespace
}  // namespace switchyard::spec
