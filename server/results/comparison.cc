#include "server/results/comparison.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/fault.h"
#include "common/spec/report.h"
#include "common/spec/sweep_plan.h"
#include "server/results/compute.h"
#include "server/results/query.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using stats::Absence;

std::optional<stats::TestKind> TestOf(pb::CompareTest test) {
  switch (test) {
    case pb::COMPARE_TEST_PAIRED_T:
      return stats::TestKind::kPairedT;
    case pb::COMPARE_TEST_WELCH_T:
      return stats::TestKind::kWelchT;
    case pb::COMPARE_TEST_WILCOXON:
      return stats::TestKind::kWilcoxon;
    case pb::COMPARE_TEST_SIGN_FLIP:
      return stats::TestKind::kSignFlip;
    case pb::COMPARE_TEST_PERMUTATION:
      return stats::TestKind::kLabelPermutation;
    case pb::COMPARE_TEST_BOOTSTRAP:
      return stats::TestKind::kBootstrap;
    default:
      return std::nullopt;
  }
}

stats::Correction CorrectionOf(pb::Correction correction) {
  switch (correction) {
    case pb::CORRECTION_BH:
      return stats::Correction::kBenjaminiHochberg;
    case pb::CORRECTION_NONE:
      return stats::Correction::kNone;
    default:
      return stats::Correction::kHolm;
  }
}

// The stage that a comparison is about: the one named, or the last; null without stages.
const pb::StageSpec* StageOf(const pb::SweepSpec& spec, const pb::CompareSpec& compare) {
  for (const pb::StageSpec& stage : spec.stages()) {
    if (stage.id() == compare.stage()) return &stage;
  }
  return spec.stages().empty() ? nullptr : &spec.stages(spec.stages_size() - 1);
}

// `asked` over the registered comparison that it is about, with defaults.
Result<pb::CompareSpec> Resolve(const pb::SweepSpec& spec, const std::string& metric,
                                const CompareQuestion& question) {
  const pb::CompareSpec& asked = question.asked;
  const auto& registered = spec.report().compare();
  pb::CompareSpec compare;
  if (question.registered > 0) {
    if (question.registered > static_cast<size_t>(registered.size())) {
      return InvalidArgument(StrCat("registered: ", question.registered, ", but the sweep has ",
                                    registered.size(), " registered comparisons"));
    }
    compare = registered[static_cast<int>(question.registered) - 1];
  } else if (question.arms.empty()) {
    const auto same = std::ranges::find_if(registered, [&](const pb::CompareSpec& each) {
      return asked.by().empty() || each.by() == asked.by();
    });
    if (same != registered.end()) compare = *same;
  }
  if (!asked.against().empty()) compare.clear_pairs();
  if (asked.pairs() != pb::COMPARE_PAIRS_UNSPECIFIED) compare.clear_against();
  if (asked.unit() != pb::COMPARE_UNIT_UNSPECIFIED) compare.clear_test();
  // A rank test shows no equivalence: the registered margins are not part of such a question.
  const bool is_by_ranks = asked.test() == pb::COMPARE_TEST_WILCOXON ||
                           asked.test() == pb::COMPARE_TEST_SIGN_FLIP ||
                           asked.test() == pb::COMPARE_TEST_PERMUTATION;
  if (asked.margins_size() > 0 || is_by_ranks) compare.clear_margins();
  if (asked.within_size() > 0) compare.clear_within();
  if (asked.pool_size() > 0) compare.clear_pool();
  if (asked.at_size() > 0) compare.clear_at();
  if (asked.match_size() > 0) compare.clear_match();
  compare.MergeFrom(asked);
  if (!question.arms.empty()) compare.clear_by();
  const pb::StageSpec* stage = StageOf(spec, compare);
  const bool has_own_metric = stage != nullptr && !stage->objective().metric().empty();
  spec::FillCompareDefaults(has_own_metric ? stage->objective().metric() : metric, &compare);
  return compare;
}

// The faults that a report section with this comparison would have.
Status CheckFields(const pb::SweepSpec& spec, const std::vector<std::string>& axes,
                   const pb::CompareSpec& compare) {
  pb::SweepSpec probe = spec;
  probe.clear_report();
  *probe.mutable_report()->add_compare() = compare;
  std::vector<spec::Fault> faults;
  const pb::StageSpec* stage = StageOf(spec, compare);
  spec::CheckReport(probe, {{stage == nullptr ? "" : stage->id(), axes}}, &faults);
  static constexpr std::string_view kPrefix = "report.compare[0].";
  for (const spec::Fault& fault : faults) {
    std::string field = fault.path;
    if (field.starts_with(kPrefix)) field.erase(0, kPrefix.size());
    // Arms by expression have no axis.
    if (field == "by" && compare.by().empty()) continue;
    return InvalidArgument(StrCat(field, ": ", fault.message));
  }
  return OkStatus();
}

Status CheckIsServed(const pb::CompareSpec& compare, const CompareQuestion& question,
                     const std::vector<std::string>& axes) {
  if (compare.by().empty() && question.arms.empty()) {
    return InvalidArgument(StrCat("by: is required, for the sweep registers no comparison; axes: ",
                                  axes.empty() ? "none" : StrJoin(axes, ", ")));
  }
  if (question.arms.size() == 1) return InvalidArgument("arms: one is given; two are wanted");
  std::set<std::string> names;
  for (const ArmFilter& arm : question.arms) {
    if (arm.name.empty()) return InvalidArgument("arms: a name is empty");
    if (!names.insert(arm.name).second) {
      return InvalidArgument(StrCat("arms: ", EscapeForTerminal(arm.name), " is given twice"));
    }
  }
  if (!question.chosen_on.empty() && !compare.tune()) {
    return InvalidArgument("chosen_on: goes with tune only");
  }
  if (compare.unit() != pb::COMPARE_UNIT_SEED) {
    return InvalidArgument(
        "unit: only seed is served; values of single batches and examples are not stored");
  }
  if (!TestOf(compare.test())) return InvalidArgument("test: goes with another unit than seed");
  return OkStatus();
}

// What was chosen by its results on the very seeds that judge it.
void WarnSelection(const CompareQuestion& question, bool has_choice, ComparisonSetup* setup) {
  if (has_choice && question.chosen_on.empty()) {
    setup->warnings.emplace_back(
        "each arm is its best cell, chosen on the seeds that it is judged on: the difference is "
        "optimistic; compare the chosen cells on fresh seeds");
  }
  if (!setup->runs.outcome_names.empty()) {
    setup->warnings.push_back(StrCat("the runs are chosen by how they went (",
                                     StrJoin(setup->runs.outcome_names, ", "),
                                     "), on the seeds that they are judged on"));
  }
}

size_t LookOf(const ComparisonSetup& setup, const CompareQuestion& question) {
  return question.look == 0 ? setup.compare->looks() : question.look;
}

class Registration {
 public:
  Registration(const ComparisonSetup& setup, const CompareQuestion& question,
               ComparisonAnswer* answer)
      : setup_(setup), question_(question), answer_(*answer) {}

  // What was hashed at submission against what is asked and what is there.
  void Check() {
    const pb::CompareSpec& compare = *setup_.compare;
    std::vector<spec::Fault> faults;
    const std::unique_ptr<spec::SweepPlan> plan = spec::SweepPlan::Make(*setup_.spec, &faults, 0);
    if (plan == nullptr) {
      Explore("the sweep's document cannot be expanded any more");
      return;
    }
    const std::vector<std::string> arms =
        compare.by().empty() ? setup_.runs.arms : spec::ArmsOf(*plan, compare.by());
    answer_.registration = spec::RegistrationHash(compare, *setup_.objective, arms, plan->seeds());
    CheckIsRegistered(*plan);
    CheckSeeds(plan->seeds());
    CheckLook();
    CheckReuse();
  }

 private:
  void CheckIsRegistered(const spec::SweepPlan& plan) {
    const auto& registered = setup_.spec->report().compare();
    if (registered.empty()) {
      Explore("the sweep registers no comparison");
      return;
    }
    const bool is_registered =
        question_.arms.empty() && std::ranges::any_of(registered, [&](const pb::CompareSpec& each) {
          pb::CompareSpec filled = each;
          spec::FillCompareDefaults(setup_.compare->metric(), &filled);
          return each.stage() == setup_.compare->stage() &&
                 spec::RegistrationHash(filled, *setup_.objective, spec::ArmsOf(plan, each.by()),
                                        plan.seeds()) == answer_.registration;
        });
    if (!is_registered) Explore("the question is not one that was registered at submission");
    if (!question_.chosen_on.empty()) Explore("seeds to choose on were named after submission");
  }

  // With `paired: false` each cell has seeds of its own, which the plan derives; the plan is that
  // of the first stage.
  void CheckSeeds(const std::vector<uint64_t>& planned) {
    if (!setup_.spec->stages().empty()) return;
    if (setup_.spec->replicates().has_paired() && !setup_.spec->replicates().paired()) return;
    std::set<uint64_t> others;
    for (const ArmRun& run : setup_.runs.runs) {
      if (std::ranges::find(planned, run.seed) == planned.end()) others.insert(run.seed);
    }
    if (others.empty()) return;
    Explore(StrCat("seed ", *others.begin(), " was not planned at submission"));
  }

  void CheckLook() {
    const size_t looks = setup_.compare->looks();
    const size_t look = LookOf(setup_, question_);
    if (look > looks) {
      Explore(StrCat("look ", look, " of ", looks, " planned"));
      return;
    }
    if (look < looks) return;
    const auto unfinished =
        std::ranges::count(setup_.runs.runs, Absence::kUnfinished, &ArmRun::absence);
    if (unfinished == 0) return;
    Explore(StrCat("the last planned look comes before ", unfinished, " of ",
                   setup_.runs.runs.size(), " runs have ended"));
  }

  // Results that were there before the sweep was submitted may have shaped its comparison.
  void CheckReuse() {
    std::set<std::string> arms;
    for (const ArmRun& run : setup_.runs.runs) {
      if (run.is_reused && run.arm != setup_.compare->against()) arms.insert(run.arm);
    }
    if (arms.empty()) return;
    Explore(StrCat("runs of an earlier sweep are reused in ",
                   StrJoin({arms.begin(), arms.end()}, ", ")));
  }

  void Explore(std::string reason) {
    answer_.is_exploratory = true;
    answer_.reasons.push_back(std::move(reason));
  }

  const ComparisonSetup& setup_;
  const CompareQuestion& question_;
  ComparisonAnswer& answer_;
};

stats::ComparisonPlan PlanOf(const ComparisonSetup& setup, size_t look) {
  const pb::CompareSpec& compare = *setup.compare;
  return {.against = compare.against(),
          .minimise = !setup.is_maximized,
          .metric_unit = UnitText(compare.metric()),
          .margins = {compare.margins().begin(), compare.margins().end()},
          .alpha = compare.alpha(),
          .correction = CorrectionOf(compare.correction()),
          .looks = compare.looks(),
          .look = look,
          .test = *TestOf(compare.test())};
}

}  // namespace

std::string UnitText(const std::string& series) {
  std::string unit = series.substr(series.rfind('/') + 1);
  std::ranges::replace(unit, '_', ' ');
  return unit;
}

std::vector<stats::Observation> Observations(const ArmRuns& runs) {
  std::vector<stats::Observation> observations;
  for (const ArmRun& run : runs.runs) {
    observations.push_back({.arm = run.arm,
                            .within = run.within,
                            .pool = run.pool,
                            .seed = run.seed,
                            .value = run.value,
                            .absence = run.absence,
                            .parts = {}});
  }
  return observations;
}

Result<ComparisonSetup> SetUp(store::ReadStore& store, const store::SweepInfo& sweep,
                              const CompareQuestion& question) {
  ComparisonSetup setup{.spec = std::make_shared<pb::SweepSpec>(),
                        .objective = std::make_shared<pb::ObjectiveSpec>(),
                        .compare = nullptr,
                        .runs = {},
                        .warnings = {}};
  if (!setup.spec->ParseFromString(sweep.row.spec) ||
      !setup.objective->ParseFromString(sweep.row.objective)) {
    return DataLoss(StrCat("the document of sweep ", sweep.row.name, " cannot be read"));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const pb::CompareSpec compare,
                              Resolve(*setup.spec, setup.objective->metric(), question));
  setup.compare = std::make_shared<pb::CompareSpec>(compare);
  SWITCHYARD_RETURN_IF_ERROR(CheckIsServed(compare, question, sweep.row.axes));
  SWITCHYARD_RETURN_IF_ERROR(CheckFields(*setup.spec, sweep.row.axes, compare));
  setup.is_maximized = IsMaximized(sweep, compare.metric()).value_or(false);
  const pb::StageSpec* stage = StageOf(*setup.spec, compare);
  SWITCHYARD_ASSIGN_OR_RETURN(setup.runs, CollectArms(store, sweep, compare, question.arms,
                                                      stage == nullptr ? "" : stage->id()));
  SWITCHYARD_ASSIGN_OR_RETURN(CellDocuments documents, ReadDocuments(store, setup.runs));
  if (compare.at_size() > 0) {
    SWITCHYARD_RETURN_IF_ERROR(TakeValuesAt(store, compare, documents, &setup.runs));
  }
  const bool has_choice =
      compare.tune() && KeepBestCells(setup.is_maximized, question.chosen_on, &setup.runs);
  SWITCHYARD_ASSIGN_OR_RETURN(setup.warnings, CheckArms(compare, documents, setup.runs));
  if (!IsMaximized(sweep, compare.metric())) {
    setup.warnings.push_back(StrCat(EscapeForTerminal(compare.metric()),
                                    " has no direction: lower is taken for better"));
  }
  WarnSelection(question, has_choice, &setup);
  return setup;
}

Result<ComparisonAnswer> CompareArms(store::ReadStore& store, const store::SweepInfo& sweep,
                                     const CompareQuestion& question) {
  SWITCHYARD_ASSIGN_OR_RETURN(ComparisonSetup setup, SetUp(store, sweep, question));
  ComparisonAnswer answer;
  Registration(setup, question, &answer).Check();
  answer.plan = PlanOf(setup, LookOf(setup, question));
  SWITCHYARD_ASSIGN_OR_RETURN(answer.comparison,
                              stats::Compare(answer.plan, Observations(setup.runs)));
  answer.is_exploratory |= answer.comparison.is_exploratory;
  answer.setup = std::move(setup);
  return answer;
}

}  // namespace switchyard::results
