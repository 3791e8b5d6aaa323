#include "server/results/power.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "common/base/strings.h"
#include "common/stats/power.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using stats::Absence;

std::optional<uint64_t> Pairs(bool is_equivalence, double effect, double alpha, double power) {
  const Result<size_t> pairs = is_equivalence ? stats::PairsForEquivalence(effect, 0, alpha, power)
                                              : stats::PairsForDifference(effect, alpha, power);
  if (!pairs.ok()) return std::nullopt;
  return *pairs;
}

PowerGoal GoalOf(bool is_equivalence, double effect, const PowerEstimate& estimate, double alpha,
                 double power) {
  return {.is_equivalence = is_equivalence,
          .effect = effect,
          .pairs_at_sd = Pairs(is_equivalence, effect / estimate.sd, alpha, power),
          .pairs = Pairs(is_equivalence, effect / estimate.sd_upper, alpha, power)};
}

std::vector<ArmCost> Costs(const ArmRuns& runs) {
  std::vector<ArmCost> costs;
  for (const std::string& arm : runs.arms) {
    ArmCost cost{.arm = arm};
    for (const ArmRun& run : runs.runs) {
      if (run.arm != arm || run.absence != Absence::kNone) continue;
      ++cost.runs;
      cost.slot_hours += run.slot_hours;
    }
    if (cost.runs > 0) cost.slot_hours /= static_cast<double>(cost.runs);
    costs.push_back(std::move(cost));
  }
  return costs;
}

// One seed of everything: each cell at its arm's mean.
double SlotHoursPerSeed(const ArmRuns& runs, const std::vector<ArmCost>& costs) {
  std::set<std::pair<std::string, uint64_t>> cells;
  for (const ArmRun& run : runs.runs) cells.insert({run.arm, run.cell});
  double hours = 0;
  for (const auto& [arm, cell] : cells) {
    hours += std::ranges::find(costs, arm, &ArmCost::arm)->slot_hours;
  }
  return hours;
}

Status CheckQuestion(const PowerQuestion& question, const pb::CompareSpec& compare) {
  if (!(question.power > 0 && question.power < 1)) {
    return InvalidArgument(StrCat("power: ", question.power, " is not between 0 and 1"));
  }
  if (!(question.difference >= 0) || !std::isfinite(question.difference)) {
    return InvalidArgument(StrCat("difference: ", question.difference, " is not above 0"));
  }
  if (compare.margins().empty() && question.difference == 0) {
    return InvalidArgument("margins: at least one is required, or a difference to detect");
  }
  if (compare.test() != pb::COMPARE_TEST_PAIRED_T) {
    return InvalidArgument("test: seeds are planned for paired_t only");
  }
  return OkStatus();
}

Result<PowerEstimate> EstimateOf(const stats::ComparisonResult& pair, const PowerQuestion& question,
                                 const pb::CompareSpec& compare, double alpha) {
  const std::string name = StrCat(pair.arm, " against ", pair.reference,
                                  pair.within.empty() ? "" : StrCat(" at ", pair.within));
  if (pair.n < 2) {
    return FailedPrecondition(StrCat(name, ": the pilot has ", pair.n,
                                     " pairs, at least 2 are "
                                     "needed to know their spread"));
  }
  if (!(pair.paired_sd > 0)) {
    return FailedPrecondition(StrCat(name, ": all ", pair.n,
                                     " differences of the pilot are equal, which says nothing "
                                     "about other seeds"));
  }
  PowerEstimate estimate{.arm = pair.arm,
                         .reference = pair.reference,
                         .within = pair.within,
                         .pilot_pairs = pair.n,
                         .sd = pair.paired_sd,
                         .sd_upper = stats::PilotUpperSd(pair.paired_sd, pair.n),
                         .correlation = pair.correlation,
                         .goals = {}};
  for (const double margin : compare.margins()) {
    estimate.goals.push_back(GoalOf(true, margin, estimate, alpha, question.power));
    if (question.difference > 0) continue;
    estimate.goals.push_back(GoalOf(false, margin, estimate, alpha, question.power));
  }
  if (question.difference > 0) {
    estimate.goals.push_back(GoalOf(false, question.difference, estimate, alpha, question.power));
  }
  return estimate;
}

}  // namespace

Result<PowerAnswer> EstimatePower(store::ReadStore& store, const store::SweepInfo& sweep,
                                  const PowerQuestion& question) {
  SWITCHYARD_ASSIGN_OR_RETURN(ComparisonSetup setup, SetUp(store, sweep, question.compare));
  const pb::CompareSpec& compare = *setup.compare;
  SWITCHYARD_RETURN_IF_ERROR(CheckQuestion(question, compare));
  SWITCHYARD_ASSIGN_OR_RETURN(const stats::Comparison comparison,
                              stats::Compare({.against = compare.against(),
                                              .metric_unit = {},
                                              .margins = {},
                                              .alpha = compare.alpha()},
                                             Observations(setup.runs)));
  PowerAnswer answer;
  answer.alpha_each = compare.alpha() / static_cast<double>(compare.looks());
  if (compare.correction() != pb::CORRECTION_NONE) {
    answer.alpha_each /= static_cast<double>(comparison.family_size);
  }
  answer.seeds = 0;
  for (const stats::ComparisonResult& pair : comparison.results) {
    SWITCHYARD_ASSIGN_OR_RETURN(PowerEstimate estimate,
                                EstimateOf(pair, question, compare, answer.alpha_each));
    for (const PowerGoal& goal : estimate.goals) {
      if (!goal.pairs) answer.seeds.reset();
      if (answer.seeds && goal.pairs) answer.seeds = std::max(*answer.seeds, *goal.pairs);
    }
    answer.estimates.push_back(std::move(estimate));
  }
  answer.costs = Costs(setup.runs);
  answer.is_gpu = std::ranges::any_of(setup.runs.runs, &ArmRun::is_gpu);
  if (answer.seeds) {
    answer.slot_hours =
        static_cast<double>(*answer.seeds) * SlotHoursPerSeed(setup.runs, answer.costs);
  }
  answer.setup = std::move(setup);
  return answer;
}

}  // namespace switchyard::results
