#include "server/api/compare.h"

#include <string>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "server/api/convert.h"
#include "server/results/comparison.h"
#include "server/results/power.h"
#include "server/store/store.h"
#include "switchyard/v1/results_service.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr int kArmsMax = 100;

template <typename Request>
Result<std::vector<results::ArmFilter>> ArmsOf(const Request& request) {
  if (request.arms_size() > kArmsMax) {
    return InvalidArgument(StrCat("arms: ", request.arms_size(), ", at most ", kArmsMax));
  }
  std::vector<results::ArmFilter> arms;
  for (const pb::ArmFilter& arm : request.arms()) {
    SWITCHYARD_RETURN_IF_ERROR(CheckText(arm.name(), "arms.name", 256));
    SWITCHYARD_RETURN_IF_ERROR(CheckText(arm.filter(), "arms.filter"));
    arms.push_back({.name = arm.name(), .filter = arm.filter()});
  }
  return arms;
}

Status CheckTexts(const pb::CompareSpec& compare) {
  SWITCHYARD_RETURN_IF_ERROR(CheckText(compare.by(), "by"));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(compare.against(), "against"));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(compare.metric(), "metric"));
  return CheckText(compare.where(), "where");
}

void ToProto(const stats::ArmSummary& summary, pb::ArmStatistics* out) {
  out->set_n(summary.n);
  out->set_mean(summary.mean);
  out->set_sd(summary.sd);
}

void ToProto(double confidence, const stats::Interval& interval, pb::CompareInterval* out) {
  out->set_confidence(confidence);
  out->set_low(interval.low);
  out->set_high(interval.high);
}

const char* WhyOf(stats::Absence absence) {
  switch (absence) {
    case stats::Absence::kInformative:
      return "informative";
    case stats::Absence::kFailed:
      return "failed";
    default:
      return "unfinished";
  }
}

void ToProto(const stats::ComparisonResult& pair, const stats::ComparisonPlan& plan,
             size_t family_size, pb::ComparedPair* out) {
  out->set_arm(pair.arm);
  out->set_reference(pair.reference);
  out->set_within(pair.within);
  out->set_sentence(pair.verdict.sentence);
  out->set_finding(std::string(stats::Name(pair.verdict.finding)));
  ToProto(pair.arm_values, out->mutable_arm_values());
  ToProto(pair.reference_values, out->mutable_reference_values());
  out->set_estimate(pair.estimate);
  out->set_n(pair.n);
  out->set_p(pair.p);
  out->set_adjusted_p(pair.adjusted_p);
  ToProto(pair.confidence, pair.difference_interval, out->mutable_difference());
  ToProto(pair.equivalence_confidence, pair.equivalence_interval, out->mutable_equivalence());
  ToProto(1 - (1 - pair.confidence) / static_cast<double>(family_size), pair.family_interval,
          out->mutable_family());
  ToProto(1 - plan.alpha, pair.anytime_interval, out->mutable_anytime());
  out->set_anytime_p(pair.anytime_p);
  for (const stats::MarginResult& margin : pair.margins) {
    pb::MarginTest* one = out->add_margins();
    one->set_margin(margin.margin);
    one->set_p(margin.p);
    one->set_adjusted_p(margin.adjusted_p);
  }
  out->set_smallest_margin(pair.smallest_margin);
  out->set_paired_sd(pair.paired_sd);
  out->set_correlation(pair.correlation);
  for (const stats::MissingSeed& missing : pair.missing) {
    pb::MissingSeed* one = out->add_missing();
    one->set_seed(missing.seed);
    one->set_arm(missing.arm);
    one->set_why(WhyOf(missing.absence));
  }
  out->mutable_warnings()->Add(pair.warnings.begin(), pair.warnings.end());
}

void ToProto(const results::PowerEstimate& estimate, pb::PowerEstimate* out) {
  out->set_arm(estimate.arm);
  out->set_reference(estimate.reference);
  out->set_within(estimate.within);
  out->set_pilot_pairs(estimate.pilot_pairs);
  out->set_sd(estimate.sd);
  out->set_sd_upper(estimate.sd_upper);
  out->set_correlation(estimate.correlation);
  for (const results::PowerGoal& goal : estimate.goals) {
    pb::PowerGoal* one = out->add_goals();
    one->set_kind(goal.is_equivalence ? "equivalence" : "difference");
    one->set_effect(goal.effect);
    one->set_pairs_at_sd(goal.pairs_at_sd.value_or(0));
    one->set_pairs(goal.pairs.value_or(0));
  }
}

}  // namespace

Status AnswerCompare(store::ReadStore& store, const pb::CompareRequest& request,
                     pb::CompareResponse* response) {
  SWITCHYARD_RETURN_IF_ERROR(CheckTexts(request.compare()));
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<results::ArmFilter> arms, ArmsOf(request));
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/true));
  SWITCHYARD_ASSIGN_OR_RETURN(const results::ComparisonAnswer answer,
                              results::CompareArms(store, sweep,
                                                   {.asked = request.compare(),
                                                    .arms = std::move(arms),
                                                    .registered = request.registered(),
                                                    .look = request.look(),
                                                    .chosen_on = {request.chosen_on().begin(),
                                                                  request.chosen_on().end()}}));
  response->set_sweep(sweep.row.name);
  *response->mutable_compare() = *answer.setup.compare;
  for (const std::string& arm : answer.setup.runs.arms) response->add_arms(arm);
  for (const stats::ComparisonResult& pair : answer.comparison.results) {
    ToProto(pair, answer.plan, answer.comparison.family_size, response->add_pairs());
  }
  response->set_family_size(answer.comparison.family_size);
  response->set_look(static_cast<uint32_t>(answer.plan.look));
  response->set_exploratory(answer.is_exploratory);
  for (const std::string& reason : answer.reasons) response->add_reasons(reason);
  response->set_registration(answer.registration);
  for (const std::string& warning : answer.setup.warnings) response->add_warnings(warning);
  return OkStatus();
}

Status AnswerPower(store::ReadStore& store, const pb::EstimatePowerRequest& request,
                   pb::EstimatePowerResponse* response) {
  SWITCHYARD_RETURN_IF_ERROR(CheckTexts(request.compare()));
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<results::ArmFilter> arms, ArmsOf(request));
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/true));
  const double power = request.power() == 0 ? 0.8 : request.power();
  SWITCHYARD_ASSIGN_OR_RETURN(
      const results::PowerAnswer answer,
      results::EstimatePower(store, sweep,
                             {.compare = {.asked = request.compare(),
                                          .arms = std::move(arms),
                                          .registered = request.registered(),
                                          .chosen_on = {}},
                              .difference = request.difference(),
                              .power = power}));
  response->set_sweep(sweep.row.name);
  *response->mutable_compare() = *answer.setup.compare;
  response->set_power(power);
  response->set_alpha_each(answer.alpha_each);
  for (const results::PowerEstimate& estimate : answer.estimates) {
    ToProto(estimate, response->add_pairs());
  }
  for (const results::ArmCost& cost : answer.costs) {
    pb::ArmCost* one = response->add_costs();
    one->set_arm(cost.arm);
    one->set_runs(cost.runs);
    one->set_slot_hours(cost.slot_hours);
  }
  response->set_seeds(answer.seeds.value_or(0));
  response->set_slot_hours(answer.slot_hours);
  response->set_slot_kind(answer.is_gpu ? "gpu" : "cpu");
  for (const std::string& warning : answer.setup.warnings) response->add_warnings(warning);
  return OkStatus();
}

}  // namespace switchyard::api
