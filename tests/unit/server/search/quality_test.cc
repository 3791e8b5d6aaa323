#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tests/suites/search_problems.h"
#include "tests/unit/server/search/worlds.h"

// Each adaptive strategy against random search with the same budget on synthetic objectives: mean
// regret over fixed seeds, with a stated bound on the ratio.
namespace switchyard::search {
namespace {

constexpr int kSeeds = 20;

struct Total {
  double regret = 0;
  double steps = 0;
};

Total MeanRegret(Settings settings, const Space& space, const Curve& curve, uint64_t slots) {
  Total total;
  for (int seed = 0; seed < kSeeds; ++seed) {
    settings.seed = 100 + static_cast<uint64_t>(seed);
    const auto search = MakeSearch(settings, space);
    const PreviewResult result = Preview(search.get(), slots, curve);
    EXPECT_NE(result.best_cell, 0U);
    total.regret += result.best_value / kSeeds;
    total.steps += static_cast<double>(result.steps) / kSeeds;
  }
  return total;
}

// A quarter of random search's regret on the smooth ones, half on the valley and the mixed one.
TEST(Quality, TpeBeatsRandomSearch) {
  for (const SearchProblem& problem : SearchProblems()) {
    Settings settings{
        .method = Method::kTpe, .cells = 100, .startup = 10, .steps = 1, .eval_steps = 1};
    const Curve curve = [&](const std::vector<Segment>& history, uint64_t, uint64_t) {
      return problem.objective(history.back().point);
    };
    const double tpe = MeanRegret(settings, problem.space, curve, 1).regret;
    const double tpe_8 = MeanRegret(settings, problem.space, curve, 8).regret;
    settings.method = Method::kRandom;
    const double random = MeanRegret(settings, problem.space, curve, 1).regret;
    std::printf("%-10s random %.5f  tpe %.5f (%.2f)  8 at a time %.5f (%.2f)\n", problem.name,
                random, tpe, tpe / random, tpe_8, tpe_8 / random);
    EXPECT_LE(tpe, 0.5 * random) << problem.name;
    EXPECT_LE(tpe_8, 0.7 * random) << problem.name;
  }
}

// Learning curves: the floor shows early, with noise that fades.
double TuningCurve(const std::vector<Segment>& history, uint64_t seed, uint64_t step) {
  const double noise =
      std::sin(static_cast<double>(seed * 7919 + step) * 12.9898 + *history.back().point[1] * 1e5);
  return Tuning(history.back().point) + 2 / std::sqrt(static_cast<double>(step)) +
         0.3 * noise / static_cast<double>(step) - 2 / 9.0;
}

// With the steps that they used, random search finds a floor that is at least this much worse.
TEST(Quality, HalvingBeatsRandomSearchWithTheSameSteps) {
  const Space space = SearchProblems()[3].space;
  struct Row {
    const char* name;
    Settings settings;
    double bound;
  };
  Settings base{.cells = 100, .min_steps = 3, .eta = 3, .steps = 81, .eval_steps = 3};
  std::vector<Row> rows = {
      {"asha stop", base, 0.7}, {"asha promote", base, 0.7}, {"hyperband", base, 0.85}};
  rows[0].settings.method = Method::kAsha;
  rows[1].settings.method = Method::kAsha;
  rows[1].settings.rule = AshaRule::kPromote;
  rows[2].settings.method = Method::kHyperband;
  for (const Row& row : rows) {
    const Total halving = MeanRegret(row.settings, space, TuningCurve, 4);
    Settings random = base;
    random.method = Method::kRandom;
    random.cells = static_cast<uint64_t>(halving.steps / 81 + 0.5);
    const Total drawn = MeanRegret(random, space, TuningCurve, 4);
    std::printf("%-12s %.5f in %.0f steps, random (%llu cells) %.5f: %.2f\n", row.name,
                halving.regret, halving.steps, static_cast<unsigned long long>(random.cells),
                drawn.regret, halving.regret / drawn.regret);
    EXPECT_LE(halving.regret, row.bound * drawn.regret) << row.name;
  }
}

// An objective where the best learning rate falls while training goes on: a schedule beats any
// constant, and PBT finds one.
double Annealed(const std::vector<Segment>& history, uint64_t, uint64_t step) {
  double loss = 1;
  size_t segment = 0;
  for (uint64_t at = 0; at < step; ++at) {
    while (segment + 1 < history.size() && history[segment + 1].from_step <= at) ++segment;
    const double wanted = -1 - 3 * static_cast<double>(at) / 81;
    const double off = std::log10(*history[segment].point[0]) - wanted;
    loss *= 1 - 0.1 * std::exp(-off * off);
  }
  return loss;
}

TEST(Quality, PbtBeatsRandomSearchWhereTheBestChangesDuringTraining) {
  const Space space{{Log("lr", 1e-6, 1)}};
  Settings settings{.method = Method::kPbt,
                    .cells = 16,
                    .population = 16,
                    .every_steps = 9,
                    .perturb = 2,
                    .steps = 81,
                    .eval_steps = 3};
  const Total pbt = MeanRegret(settings, space, Annealed, 4);
  settings.method = Method::kRandom;
  settings.cells = static_cast<uint64_t>(pbt.steps / 81 + 0.5);
  const Total random = MeanRegret(settings, space, Annealed, 4);
  std::printf("pbt %.5f in %.0f steps, random (%llu cells) %.5f: %.2f\n", pbt.regret, pbt.steps,
              static_cast<unsigned long long>(settings.cells), random.regret,
              pbt.regret / random.regret);
  EXPECT_LE(pbt.regret, 0.8 * random.regret);
}

TEST(Quality, MedianStopSavesStepsAndKeepsTheBest) {
  const Space space = SearchProblems()[3].space;
  Settings settings{.method = Method::kRandom, .cells = 40, .steps = 81, .eval_steps = 3};
  const Total full = MeanRegret(settings, space, TuningCurve, 4);
  settings.grace_steps = 9;
  const Total stopped = MeanRegret(settings, space, TuningCurve, 4);
  std::printf("median stop: %.0f of %.0f steps, %.5f against %.5f\n", stopped.steps, full.steps,
              stopped.regret, full.regret);
  EXPECT_LE(stopped.steps, 0.7 * full.steps);
  EXPECT_LE(stopped.regret, 1.05 * full.regret);
}

}  // namespace
}  // namespace switchyard::search
