#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/unit/server/search/worlds.h"

// Known answers of each strategy, and of what is around all of them.
namespace switchyard::search {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<Point> PointsOf(const Actions& actions) {
  std::vector<Point> points;
  for (const Action& action : actions) points.push_back(action.point);
  return points;
}

// "propose 3", "stop 2", ... for short expectations.
std::vector<std::string> Short(const Actions& actions) {
  std::vector<std::string> text;
  for (const Action& action : actions) {
    const char* names[] = {"", "propose ", "stop ", "pause ", "resume "};
    text.push_back(names[static_cast<int>(action.kind)] + std::to_string(action.cell));
    if (action.until_step > 0 && action.kind != Action::Kind::kPause) {
      text.back() += " until " + std::to_string(action.until_step);
    }
    if (action.kind == Action::Kind::kPause)
      text.back() += "/" + std::to_string(action.seeds.at(0));
  }
  return text;
}
using Texts = std::vector<std::string>;

TEST(Grid, LastAxisIsFastestAndConditionsHold) {
  Settings settings = SettingsOf(Method::kGrid);
  const Space space{
      {Categorical("router", 2), Under(Int("rank", 1, 2), 0, 1), Categorical("x", 2)}};
  const auto search = MakeSearch(settings, space);
  const std::optional<double> none;
  EXPECT_EQ(PointsOf(search->Propose(100)), (std::vector<Point>{{0.0, none, 0.0},
                                                                {0.0, none, 1.0},
                                                                {1.0, 1.0, 0.0},
                                                                {1.0, 1.0, 1.0},
                                                                {1.0, 2.0, 0.0},
                                                                {1.0, 2.0, 1.0}}));
  EXPECT_TRUE(search->is_exhausted());
}

TEST(Grid, ASpaceWithoutDimensionsHasOneCell) {
  const auto search = MakeSearch(SettingsOf(Method::kGrid), Space{});
  EXPECT_EQ(search->Propose(100).size(), 1U);
  EXPECT_TRUE(search->is_exhausted());
}

TEST(Draws, ALongerSweepBeginsWithThePointsOfTheShortOne) {
  for (const Method method : {Method::kRandom, Method::kSobol}) {
    Settings settings = SettingsOf(method);
    settings.cells = 10;
    const std::vector<Point> few = PointsOf(MakeSearch(settings, MixedSpace())->Propose(1000));
    settings.cells = 100;
    std::vector<Point> many = PointsOf(MakeSearch(settings, MixedSpace())->Propose(1000));
    ASSERT_EQ(few.size(), 10U);
    ASSERT_EQ(many.size(), 100U);
    many.resize(10);
    EXPECT_EQ(few, many);
  }
}

TEST(Draws, AnotherSeedIsAnotherSweep) {
  for (const Method method : {Method::kRandom, Method::kSobol}) {
    Settings settings = SettingsOf(method);
    const auto first = PointsOf(MakeSearch(settings, MixedSpace())->Propose(1));
    settings.seed = 8;
    EXPECT_NE(PointsOf(MakeSearch(settings, MixedSpace())->Propose(1)), first);
  }
}

TEST(Random, ANewDimensionShiftsNoOther) {
  const Settings settings = SettingsOf(Method::kRandom);
  const auto one = PointsOf(MakeSearch(settings, {{Log("lr", 1e-4, 1)}})->Propose(20));
  const auto two =
      PointsOf(MakeSearch(settings, {{Real("dropout", 0, 1), Log("lr", 1e-4, 1)}})->Propose(20));
  for (size_t i = 0; i < one.size(); ++i) EXPECT_EQ(one[i][0], two[i][1]);
}

// `extend`: the stored state goes into a sweep with more cells, which goes on where it was.
TEST(EveryMethod, AnExtendedSweepGoesOn) {
  for (const Method method : {Method::kRandom, Method::kSobol, Method::kTpe, Method::kAsha}) {
    Settings settings = SettingsOf(method);
    settings.cells = 5;
    const auto few = MakeSearch(settings, MixedSpace());
    EXPECT_EQ(few->Propose(100).size(), 5U);
    EXPECT_TRUE(few->is_exhausted());
    settings.cells = 8;
    const auto more = MakeSearch(settings, MixedSpace());
    ASSERT_TRUE(more->Restore(few->Snapshot()).ok());
    EXPECT_EQ(Short(more->Propose(100)), (Texts{"propose 6", "propose 7", "propose 8"}));
    const auto at_once = MakeSearch(settings, MixedSpace());
    at_once->Propose(100);
    EXPECT_EQ(at_once->Snapshot(), more->Snapshot());
  }
}

TEST(EveryMethod, StateOfAnotherSweepIsRefused) {
  const auto search = MakeSearch(SettingsOf(Method::kRandom), MixedSpace());
  const std::string state = search->Snapshot();
  EXPECT_EQ(MakeSearch(SettingsOf(Method::kSobol), MixedSpace())->Restore(state).code(),
            Code::kFailedPrecondition);
  Settings settings = SettingsOf(Method::kRandom);
  settings.per = {"router"};
  EXPECT_EQ(MakeSearch(settings, MixedSpace())->Restore(state).code(), Code::kFailedPrecondition);
  settings = SettingsOf(Method::kRandom);
  settings.seeds = {1, 2};
  EXPECT_EQ(MakeSearch(settings, MixedSpace())->Restore(state).code(), Code::kFailedPrecondition);
}

TEST(Rungs, AreMovedToTheNextEvaluationAndLieBeforeTheEnd) {
  Settings settings = SettingsOf(Method::kAsha);  // min 3, eta 3, 81 steps
  EXPECT_EQ(RungSteps(settings), (std::vector<uint64_t>{3, 9, 27}));
  settings.eval_steps = 10;
  EXPECT_EQ(RungSteps(settings), (std::vector<uint64_t>{10, 30}));
  settings.eval_steps = 30;
  settings.min_steps = 40;
  EXPECT_EQ(RungSteps(settings), (std::vector<uint64_t>{60}));  // 81 is no multiple
  settings.min_steps = 3;
  settings.eval_steps = 50;
  EXPECT_EQ(RungSteps(settings), (std::vector<uint64_t>{50}));
  settings.min_steps = 60;
  EXPECT_EQ(RungSteps(settings), std::vector<uint64_t>{});
  settings.eval_steps = 0;
  settings.min_steps = 3;
  EXPECT_EQ(RungSteps(settings), std::vector<uint64_t>{});
}

TEST(AshaStop, StopsWhatIsNotAmongTheBestThirdSoFar) {
  const auto search = MakeSearch(SettingsOf(Method::kAsha), MixedSpace());
  search->Propose(6);
  EXPECT_TRUE(search->Observe(1, 1, 3, 5).empty());                     // 1 of 1
  EXPECT_TRUE(search->Observe(2, 1, 3, 4).empty());                     // 1 of 2, 1 goes on
  EXPECT_EQ(Short(search->Observe(3, 1, 3, 4.5)), (Texts{"stop 3"}));   // 2 of 3, 1 goes on
  EXPECT_TRUE(search->Observe(4, 1, 3, 4.2).empty());                   // 2 of 4, 2 go on
  EXPECT_EQ(Short(search->Observe(5, 1, 3, kNan)), (Texts{"stop 5"}));  // worst
  EXPECT_TRUE(search->Observe(1, 1, 6, 100).empty());                   // no rung
  EXPECT_TRUE(search->Observe(1, 1, 9, 100).empty());                   // 1 of 1 at the next one
  EXPECT_EQ(search->Observe(6, 1, 3, 4.9)[0].reason, "rung 1 (step 3): 4 of 6, 2 go on");
}

TEST(AshaPromote, TheBestOfThreeGoesOnBeforeANewOneStarts) {
  const auto search = MakeSearch(SettingsOf(Method::kAsha, AshaRule::kPromote), MixedSpace());
  EXPECT_EQ(Short(search->Propose(3)),
            (Texts{"propose 1 until 3", "propose 2 until 3", "propose 3 until 3"}));
  EXPECT_EQ(Short(search->Observe(1, 1, 3, 5)), (Texts{"pause 1/1"}));
  EXPECT_EQ(Short(search->Propose(1)), (Texts{"propose 4 until 3"}));
  EXPECT_EQ(Short(search->Observe(2, 1, 3, 4)), (Texts{"pause 2/1"}));
  EXPECT_EQ(Short(search->Observe(3, 1, 3, 6)), (Texts{"pause 3/1"}));
  EXPECT_EQ(Short(search->Propose(2)), (Texts{"resume 2 until 9", "propose 5 until 3"}));
  EXPECT_EQ(Short(search->Observe(2, 1, 9, 3)), (Texts{"pause 2/1"}));
}

TEST(AshaPromote, WhatIsNotPromotedIsStoppedInTheEnd) {
  Settings settings = SettingsOf(Method::kAsha, AshaRule::kPromote);
  settings.cells = 2;
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(2);
  search->Observe(1, 1, 3, 5);
  EXPECT_TRUE(search->Propose(1).empty());  // 2 still runs
  search->Observe(2, 1, 3, 4);
  EXPECT_EQ(Short(search->Propose(1)), (Texts{"stop 1", "stop 2"}));
  EXPECT_TRUE(search->is_exhausted());
}

// Table 1 of the Hyperband paper: R = 81, eta = 3.
TEST(Hyperband, BracketsAreThoseOfThePaper) {
  Settings settings = SettingsOf(Method::kHyperband);
  settings.min_steps = 1;
  settings.eval_steps = 1;
  const auto search = MakeSearch(settings, MixedSpace());
  const Actions all = search->Propose(1000);
  std::map<uint64_t, uint64_t> cells_by_budget;
  for (const Action& action : all) ++cells_by_budget[action.until_step];
  EXPECT_EQ(cells_by_budget,
            (std::map<uint64_t, uint64_t>{{1, 81}, {3, 34}, {9, 15}, {27, 8}, {0, 5}}));
  // The first bracket: 81, 27, 9, 3, 1.
  std::vector<uint64_t> going;
  for (uint64_t cell = 1; cell <= 81; ++cell) going.push_back(cell);
  for (const auto& [step, next, left] :
       {std::tuple<uint64_t, uint64_t, size_t>{1, 3, 27}, {3, 9, 9}, {9, 27, 3}, {27, 0, 1}}) {
    std::vector<uint64_t> resumed;
    for (size_t i = 0; i < going.size(); ++i) {
      for (const Action& action :
           search->Observe(going[i], 1, step, static_cast<double>(going[i] % 41))) {
        if (action.kind != Action::Kind::kResume) continue;
        EXPECT_EQ(action.until_step, next);
        EXPECT_EQ(i + 1, going.size());  // all at once, when the last has come
        resumed.push_back(action.cell);
      }
    }
    ASSERT_EQ(resumed.size(), left);
    going = resumed;
  }
  EXPECT_EQ(going, std::vector<uint64_t>{41});  // 41 % 41 is the smallest
}

TEST(Pbt, TheWorstContinuesACopyOfTheBest) {
  Settings settings = SettingsOf(Method::kPbt);
  settings.population = 4;
  const auto search = MakeSearch(settings, {{Real("lr", 0, 1e6), Categorical("kind", 3)}});
  const Actions first = search->Propose(10);
  ASSERT_EQ(Short(first), (Texts{"propose 1 until 12", "propose 2 until 12", "propose 3 until 12",
                                 "propose 4 until 12"}));
  search->Observe(1, 1, 12, 3);
  search->Observe(2, 1, 12, 1);
  search->Observe(3, 1, 12, 2);
  const Actions actions = search->Observe(4, 1, 12, 9);
  ASSERT_EQ(Short(actions), (Texts{"resume 2 until 24", "resume 3 until 24", "resume 1 until 24",
                                   "stop 4", "propose 5 until 24"}));
  EXPECT_EQ(actions[4].parent, 2U);
  EXPECT_EQ(actions[4].parent_step, 12U);
  EXPECT_EQ(actions[4].point[1], first[1].point[1]);
  EXPECT_NE(actions[4].point[0], first[1].point[0]);
}

TEST(Pbt, NumbersAreMultipliedOrDrawnAnewWithAQuarterOfChance) {
  Settings settings = SettingsOf(Method::kPbt);
  settings.population = 2000;
  settings.quantile = 0.5;
  const auto search = MakeSearch(settings, {{Real("lr", 0, 1e9)}});
  std::map<uint64_t, double> values;
  for (const Action& action : search->Propose(2000)) values[action.cell] = *action.point[0];
  Actions last;
  for (uint64_t cell = 1; cell <= 2000; ++cell) {
    last = search->Observe(cell, 1, 12, static_cast<double>(cell));
  }
  int up = 0;
  int down = 0;
  int other = 0;
  for (const Action& action : last) {
    if (action.kind != Action::Kind::kPropose) continue;
    const double ratio = *action.point[0] / values.at(action.parent);
    // The upper bound may have cut the product.
    const bool is_up = std::abs(ratio - 1.2) < 1e-4 || *action.point[0] >= 9.9999e8;
    ++(is_up ? up : std::abs(ratio * 1.2 - 1) < 1e-4 ? down : other);
  }
  EXPECT_EQ(up + down + other, 1000);
  EXPECT_NEAR(up, 375, 50);
  EXPECT_NEAR(down, 375, 50);
  EXPECT_NEAR(other, 250, 45);
}

TEST(Pbt, APopulationPerSeed) {
  Settings settings = SettingsOf(Method::kPbt);
  settings.population = 3;
  settings.seeds = {11, 12};
  const auto search = MakeSearch(settings, MixedSpace());
  std::map<uint64_t, int> members;
  for (const Action& action : search->Propose(10)) {
    ASSERT_EQ(action.seeds.size(), 1U);
    ++members[action.seeds[0]];
  }
  EXPECT_EQ(members, (std::map<uint64_t, int>{{11, 3}, {12, 3}}));
}

TEST(Pbt, AMemberThatFailedIsReplaced) {
  Settings settings = SettingsOf(Method::kPbt);
  settings.population = 3;
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(3);
  search->Finish(1, 1, {.kind = RunEnd::Kind::kWorst});
  search->Observe(2, 1, 12, 5);
  EXPECT_EQ(Short(search->Observe(3, 1, 12, 4)),
            (Texts{"resume 3 until 24", "resume 2 until 24", "propose 4 until 24"}));
}

TEST(Tpe, StartsLikeRandom) {
  Settings settings = SettingsOf(Method::kTpe);
  const auto tpe = PointsOf(MakeSearch(settings, MixedSpace())->Propose(8));
  settings.method = Method::kRandom;
  EXPECT_EQ(PointsOf(MakeSearch(settings, MixedSpace())->Propose(8)), tpe);
}

TEST(MedianStop, StopsBelowTheMedianAfterTheGrace) {
  Settings settings = SettingsOf(Method::kRandom);
  settings.grace_steps = 6;
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(5);
  for (const uint64_t step : {3, 6}) {
    for (uint64_t cell = 1; cell <= 3; ++cell) {
      EXPECT_TRUE(search->Observe(cell, 1, step, static_cast<double>(cell)).empty());
    }
  }
  EXPECT_TRUE(search->Observe(4, 1, 3, 2.5).empty());                  // in the grace
  EXPECT_EQ(Short(search->Observe(4, 1, 6, 2.2)), (Texts{"stop 4"}));  // median of 1, 2, 3
  EXPECT_TRUE(search->Observe(5, 1, 3, 1.9).empty());
  EXPECT_TRUE(search->Observe(5, 1, 6, 99).empty());  // its best counts
}

TEST(Replicates, AStrategySeesTheMeanOnceAllHaveReported) {
  Settings settings = SettingsOf(Method::kAsha);
  settings.seeds = {1, 2};
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(3);
  search->Observe(1, 1, 3, 0);
  search->Observe(1, 2, 3, 2);                                         // mean 1
  EXPECT_TRUE(search->Observe(2, 1, 3, -100).empty());                 // waits for its other seed
  EXPECT_EQ(Short(search->Observe(2, 2, 3, 103)), (Texts{"stop 2"}));  // mean 1.5
}

// Guard, memory and time are observations; a run that is lost says nothing.
TEST(Replicates, AGuardedOneIsWorstAndALostOneIsLeftOut) {
  Settings settings = SettingsOf(Method::kAsha);
  settings.seeds = {1, 2};
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(3);
  search->Observe(1, 1, 3, 5);
  search->Observe(1, 2, 3, 5);
  search->Observe(2, 1, 3, 4);
  EXPECT_TRUE(search->Finish(2, 2, {.kind = RunEnd::Kind::kLost}).empty());  // 4 of one: the best
  search->Observe(3, 1, 3, 1);
  EXPECT_EQ(Short(search->Finish(3, 2, {.kind = RunEnd::Kind::kWorst})), (Texts{"stop 3"}));
}

TEST(Replicates, EachPausesAtItsBudgetAndAllResumeTogether) {
  Settings settings = SettingsOf(Method::kAsha, AshaRule::kPromote);
  settings.seeds = {1, 2};
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(3);
  for (uint64_t cell = 1; cell <= 3; ++cell) {
    const std::string name = "pause " + std::to_string(cell);
    EXPECT_EQ(Short(search->Observe(cell, 2, 3, 1)), (Texts{name + "/2"}));
    EXPECT_EQ(Short(search->Observe(cell, 1, 3, 1)), (Texts{name + "/1"}));
  }
  EXPECT_EQ(Short(search->Propose(1)), (Texts{"resume 1 until 9"}));
}

TEST(Per, EachArmHasItsOwnBudgetAndTheSameDraws) {
  Settings settings = SettingsOf(Method::kRandom);
  settings.cells = 4;
  settings.per = {"router"};
  const auto search = MakeSearch(settings, MixedSpace());
  std::map<double, std::vector<double>> rates;
  double expected_router = 0;
  for (const Action& action : search->Propose(100)) {
    EXPECT_EQ(*action.point[0], expected_router);  // round the arms
    expected_router = expected_router == 2 ? 0 : expected_router + 1;
    rates[*action.point[0]].push_back(*action.point[1]);
  }
  ASSERT_EQ(rates.size(), 3U);
  EXPECT_EQ(rates[0].size(), 4U);
  EXPECT_EQ(rates[0], rates[1]);
  EXPECT_EQ(rates[0], rates[2]);
}

// An arm is halved among its own cells only.
TEST(Per, ArmsDoNotCompete) {
  Settings settings = SettingsOf(Method::kAsha);
  settings.per = {"router"};
  const auto search = MakeSearch(settings, MixedSpace());
  search->Propose(6);  // cells 1 and 4 are of the first arm
  EXPECT_TRUE(search->Observe(1, 1, 3, 1).empty());
  EXPECT_TRUE(search->Observe(2, 1, 3, 100).empty());
  EXPECT_EQ(Short(search->Observe(4, 1, 3, 2)), (Texts{"stop 4"}));
}

TEST(External, TakesPointsFromOutside) {
  const Settings settings = SettingsOf(Method::kExternal);
  const auto search =
      MakeSearch(settings, MixedSpace(), [](const Point& point) { return *point[3] < 0.4; });
  const Point point = {0.0, 0.001, std::nullopt, 0.1, 1.0};
  EXPECT_TRUE(search->Propose(10).empty());
  EXPECT_EQ(Short(*search->Tell(point)), (Texts{"propose 1"}));
  EXPECT_EQ(Short(*search->Tell(point)), (Texts{"propose 2"}));
  EXPECT_EQ(search->Tell({9.0, 0.001, std::nullopt, 0.1, 1.0}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(search->Tell({0.0, 0.001, std::nullopt, 0.45, 1.0}).status().code(),
            Code::kInvalidArgument);
  EXPECT_FALSE(search->is_exhausted());
  const auto restored = MakeSearch(settings, MixedSpace());
  ASSERT_TRUE(restored->Restore(search->Snapshot()).ok());
  EXPECT_EQ(Short(*restored->TellStop(2)), (Texts{"stop 2"}));
  EXPECT_EQ(restored->TellStop(3).status().code(), Code::kNotFound);
  EXPECT_TRUE(restored->Close().ok());
  EXPECT_TRUE(restored->is_exhausted());
  EXPECT_EQ(restored->Tell(point).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(MakeSearch(SettingsOf(Method::kRandom), MixedSpace())->Tell(point).status().code(),
            Code::kFailedPrecondition);
}

TEST(External, ReportsWhatWentOnAndEnded) {
  Settings settings = SettingsOf(Method::kExternal);
  settings.is_maximized = true;
  settings.seeds = {1, 2};
  auto search = MakeSearch(settings, {{Real("x", 0, 1)}});
  for (const double x : {0.1, 0.2, 0.3}) ASSERT_TRUE(search->Tell({x}).ok());
  search->Observe(2, 1, 3, 5);
  EXPECT_TRUE(search->Reports(0).empty());
  search->Observe(2, 2, 3, 7);
  search->Finish(3, 1, {.kind = RunEnd::Kind::kSucceeded, .value = 9});
  search->Finish(3, 2, {.kind = RunEnd::Kind::kSucceeded, .value = 10});
  search->Finish(1, 1, {.kind = RunEnd::Kind::kWorst});
  search->Finish(1, 2, {.kind = RunEnd::Kind::kSucceeded, .value = 1});
  const auto restored = MakeSearch(settings, {{Real("x", 0, 1)}});
  ASSERT_TRUE(restored->Restore(search->Snapshot()).ok());
  const std::vector<CellReport> reports = restored->Reports(0);
  ASSERT_EQ(reports.size(), 3U);
  EXPECT_EQ(reports[0].cell, 3U);
  EXPECT_EQ(reports[0].end, CellEnd::Kind::kCompleted);
  EXPECT_EQ(reports[0].value, 9.5);
  EXPECT_EQ(reports[1].cell, 1U);
  EXPECT_EQ(reports[1].end, CellEnd::Kind::kFailed);
  EXPECT_TRUE(std::isnan(reports[1].value));
  EXPECT_EQ(reports[2].cell, 2U);
  EXPECT_FALSE(reports[2].end.has_value());
  EXPECT_EQ(reports[2].step, 3U);
  EXPECT_EQ(reports[2].value, 6);
  EXPECT_EQ(restored->Reports(2).size(), 1U);
}

// ME2: an early-stopping sweep of 4 runs, one reports NaN at rung 1: the others go on, it ends.
TEST(Faults, OneNanAtTheFirstRungOfFourRuns) {
  Settings settings = SettingsOf(Method::kAsha);
  settings.cells = 4;
  const auto search = MakeSearch(settings, {{Real("x", 0, 1)}});
  std::optional<double> bad;  // the point of the first run that reports
  const PreviewResult result =
      Preview(search.get(), 4, [&](const std::vector<Segment>& history, uint64_t, uint64_t step) {
        const double x = *history[0].point[0];
        if (!bad.has_value()) bad = x;
        return x == *bad && step == 3 ? kNan : x;
      });
  ASSERT_TRUE(bad.has_value());
  EXPECT_FALSE(search->has_open_cells());
  EXPECT_GT(result.runs_completed, 0U);
}

// ME2: -7.539e-05 is not below -1.2.
TEST(Faults, SmallNegativeObjectivesRankByValue) {
  Settings settings = SettingsOf(Method::kRandom);
  settings.cells = 2;
  const auto search = MakeSearch(settings, {{Real("x", 0, 1)}});
  bool is_first = true;
  const PreviewResult result =
      Preview(search.get(), 1, [&](const std::vector<Segment>&, uint64_t, uint64_t step) {
        const double value = is_first ? -7.539e-05 : -1.2;
        if (step == 81) is_first = false;
        return value;
      });
  EXPECT_EQ(result.best_cell, 2U);
  EXPECT_EQ(result.best_value, -1.2);
}

TEST(Settings, FaultsNameTheFieldAndWhatIsWanted) {
  const auto fault = [](Settings settings) {
    return Search::Make(std::move(settings), MixedSpace(), Anything).status().message();
  };
  Settings s = SettingsOf(Method::kRandom);
  s.cells = 0;
  EXPECT_EQ(fault(s), "cells is 0; wanted: 1 to 1000000");
  s = SettingsOf(Method::kAsha);
  s.eta = 1;
  EXPECT_EQ(fault(s), "eta is 1; wanted: 2 to 1000");
  s = SettingsOf(Method::kAsha);
  s.min_steps = 100;
  EXPECT_EQ(fault(s),
            "min is 100; no evaluation (every 3 steps) lies between it and the run's end 81");
  s = SettingsOf(Method::kHyperband);
  s.eval_steps = 0;
  EXPECT_EQ(
      fault(s),
      "eval.every_steps is 0 (one evaluation, at the end); rungs want evaluations on the way");
  s = SettingsOf(Method::kAsha);
  s.grace_steps = 3;
  EXPECT_EQ(fault(s), "early_stop with strategy asha; median_stop goes with random, sobol and tpe");
  s = SettingsOf(Method::kTpe);
  s.per = {"lr"};
  EXPECT_NE(fault(s), "");
  s.per = {"router", "router"};
  EXPECT_EQ(fault(s), "per names router twice");
  s = SettingsOf(Method::kPbt);
  s.population = 1;
  EXPECT_EQ(fault(s), "population is 1; wanted: 2 to 10000");
  s = SettingsOf(Method::kPbt);
  s.quantile = kNan;
  EXPECT_NE(fault(s), "");
  s = SettingsOf(Method::kPbt);
  s.every_steps = 81;
  EXPECT_NE(fault(s), "");
  s = SettingsOf(Method::kGrid);
  EXPECT_NE(fault(s), "");  // reals without a step
}

}  // namespace
}  // namespace switchyard::search
