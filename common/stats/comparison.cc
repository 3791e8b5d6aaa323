#include "common/stats/comparison.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "common/stats/bootstrap.h"
#include "common/stats/looks.h"
#include "common/stats/mean_tests.h"
#include "common/stats/pairing.h"
#include "common/stats/permutation.h"
#include "common/stats/power.h"
#include "common/stats/rank_tests.h"

namespace switchyard::stats {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr std::array<std::pair<TestKind, std::string_view>, 7> kTests = {{
    {TestKind::kPairedT, "paired_t"},
    {TestKind::kWelchT, "welch_t"},
    {TestKind::kWilcoxon, "wilcoxon"},
    {TestKind::kSignFlip, "sign_flip"},
    {TestKind::kLabelPermutation, "label_permutation"},
    {TestKind::kBootstrap, "bootstrap"},
    {TestKind::kMcNemar, "mcnemar"},
}};
constexpr std::array<std::pair<Unit, std::string_view>, 4> kUnits = {{
    {Unit::kSeed, "seed"},
    {Unit::kBatch, "batch"},
    {Unit::kSeedBatch, "seed_batch"},
    {Unit::kExample, "example"},
}};

bool IsPaired(TestKind test) {
  return test != TestKind::kWelchT && test != TestKind::kLabelPermutation;
}

Status CheckPlan(const ComparisonPlan& plan) {
  if (!(plan.alpha > 0 && plan.alpha < 0.5)) {
    return InvalidArgument(StrCat("alpha is ", plan.alpha, "; a number in (0, 0.5) is wanted"));
  }
  if (plan.looks < 1 || plan.look < 1) {
    return InvalidArgument(StrCat("looks is ", plan.looks, "; at least 1 is wanted"));
  }
  for (const double margin : plan.margins) {
    if (!(margin > 0) || !std::isfinite(margin)) {
      return InvalidArgument(StrCat("margin is ", margin, "; a number above 0 is wanted"));
    }
  }
  const bool by_parts = plan.unit != Unit::kSeed;
  const bool parts_test = plan.test == TestKind::kBootstrap || plan.test == TestKind::kMcNemar;
  if (by_parts && !parts_test) {
    return InvalidArgument(StrCat("test ", Name(plan.test), " goes with unit seed; unit ",
                                  Name(plan.unit), " takes bootstrap",
                                  plan.unit == Unit::kExample ? " or mcnemar" : ""));
  }
  if (plan.test == TestKind::kMcNemar && plan.unit != Unit::kExample) {
    return InvalidArgument(
        StrCat("test mcnemar goes with unit example, not with ", Name(plan.unit)));
  }
  const bool has_interval = plan.test == TestKind::kPairedT || plan.test == TestKind::kWelchT ||
                            plan.test == TestKind::kBootstrap;
  if (!plan.margins.empty() && !has_interval) {
    return InvalidArgument(StrCat("test ", Name(plan.test),
                                  " cannot show equivalence; margins need paired_t, welch_t or "
                                  "bootstrap"));
  }
  return OkStatus();
}

// Confidence levels of one look, and of one comparison of a family.
struct Levels {
  double alpha;   // of this look
  double family;  // alpha over the family's size
  double reach;   // what the smallest p of the family must come to for a verdict
};

void TakeMeanTest(const MeanTest& test, const Levels& levels, ComparisonResult& result) {
  result.p = test.p;
  result.difference_interval = test.At(1 - levels.alpha);
  result.equivalence_interval = test.At(1 - 2 * levels.alpha);
  result.family_interval = test.At(1 - levels.family);
  result.smallest_margin = SmallestMargin(test, levels.alpha);
}

Status FillMargins(const MeanTest& test, ComparisonResult& result) {
  for (MarginResult& margin : result.margins) {
    SWITCHYARD_ASSIGN_OR_RETURN(const Tost tost, TostOf(test, margin.margin));
    margin.p = tost.p;
  }
  return OkStatus();
}

void TakeBootstrap(const Bootstrap& bootstrap, const Levels& levels, ComparisonResult& result) {
  result.estimate = bootstrap.estimate;
  result.p = bootstrap.DifferenceP();
  result.difference_interval = bootstrap.At(1 - levels.alpha);
  result.equivalence_interval = bootstrap.At(1 - 2 * levels.alpha);
  result.family_interval = bootstrap.At(1 - levels.family);
  result.smallest_margin = std::max(std::abs(result.equivalence_interval.low),
                                    std::abs(result.equivalence_interval.high));
  for (MarginResult& margin : result.margins) margin.p = bootstrap.EquivalenceP(margin.margin);
}

std::string NameOf(const ComparisonResult& result) {
  return StrCat(result.arm, " against ", result.reference, result.within.empty() ? "" : " at ",
                result.within);
}

Status TestSeeds(const ComparisonPlan& plan, const Levels& levels, const Pairs& pairs,
                 const std::vector<double>& arm, const std::vector<double>& reference,
                 ComparisonResult& result) {
  const bool paired = IsPaired(plan.test);
  Result<MeanTest> mean_test = paired ? PairedT(pairs.differences) : WelchT(arm, reference);
  if (!mean_test.ok()) {
    return FailedPrecondition(StrCat(NameOf(result), ": ", mean_test.status().message()));
  }
  result.estimate = mean_test->estimate;
  result.n = mean_test->n;
  TakeMeanTest(*mean_test, levels, result);
  SWITCHYARD_RETURN_IF_ERROR(FillMargins(*mean_test, result));
  if (paired) {
    result.paired_sd = mean_test->sd;
    result.correlation = Correlation(pairs.arm, pairs.reference);
    result.anytime_p = AnytimeP({{AnytimeEvidence(mean_test->t, mean_test->n)}});
    result.anytime_interval =
        AnytimeInterval(mean_test->estimate, mean_test->standard_error, mean_test->n, plan.alpha);
  }
  switch (plan.test) {
    case TestKind::kWilcoxon: {
      SWITCHYARD_RETURN_IF_ERROR(CheckCanReach(levels.reach, pairs.differences.size()));
      SWITCHYARD_ASSIGN_OR_RETURN(const Wilcoxon wilcoxon, WilcoxonSignedRank(pairs.differences));
      result.p = wilcoxon.p;
      break;
    }
    case TestKind::kSignFlip: {
      SWITCHYARD_RETURN_IF_ERROR(CheckCanReach(levels.reach, pairs.differences.size()));
      SWITCHYARD_ASSIGN_OR_RETURN(const Permutation flip,
                                  SignFlip(pairs.differences, plan.random_seed));
      result.p = flip.p;
      break;
    }
    case TestKind::kLabelPermutation: {
      SWITCHYARD_RETURN_IF_ERROR(CheckCanReach(levels.reach, arm.size(), reference.size()));
      SWITCHYARD_ASSIGN_OR_RETURN(const Permutation labels,
                                  LabelPermutation(arm, reference, plan.random_seed));
      result.p = labels.p;
      break;
    }
    case TestKind::kBootstrap: {
      SWITCHYARD_ASSIGN_OR_RETURN(
          const Bootstrap bootstrap,
          BootstrapMean(pairs.differences, plan.resamples,
                        IidIndices(pairs.differences.size(), plan.random_seed)));
      TakeBootstrap(bootstrap, levels, result);
      if (bootstrap.is_small) {
        result.warnings.push_back(
            StrCat("bootstrap over ", result.n, " seeds: its intervals are too narrow below 20"));
      }
      break;
    }
    default:
      break;
  }
  return OkStatus();
}

// An arm without results spoils its own verdict, not those of the others.
bool IsTooSmall(const ComparisonPlan& plan, const Pairs& pairs, const std::vector<double>& arm,
                const std::vector<double>& reference) {
  if (plan.unit != Unit::kSeed) return false;
  return IsPaired(plan.test) ? pairs.differences.size() < 2
                             : std::min(arm.size(), reference.size()) < 2;
}

// Stays in the family with p = 1.
void LeaveUntested(const Pairs& pairs, ComparisonResult& result) {
  const Interval none{.low = kNaN, .high = kNaN};
  result.n = pairs.differences.size();
  result.estimate = kNaN;
  result.difference_interval = none;
  result.equivalence_interval = none;
  result.family_interval = none;
  result.smallest_margin = kNaN;
}

bool IsUntested(const ComparisonResult& result) { return std::isnan(result.estimate); }

Status CheckAnyIsTested(const std::vector<ComparisonResult>& results) {
  if (std::any_of(results.begin(), results.end(),
                  [](const ComparisonResult& result) { return !IsUntested(result); })) {
    return OkStatus();
  }
  const ComparisonResult& first = results.front();
  return FailedPrecondition(StrCat(NameOf(first), ": ", first.n,
                                   " seeds have a value in both arms; at least 2 are needed"));
}

Status TestParts(const ComparisonPlan& plan, const Levels& levels, const SeedBatch& parts,
                 ComparisonResult& result) {
  if (plan.unit == Unit::kSeedBatch) {
    SWITCHYARD_ASSIGN_OR_RETURN(
        const Bootstrap bootstrap,
        CrossedBootstrap(parts, plan.resamples, plan.block_length, plan.random_seed));
    result.n = parts.seeds;
    TakeBootstrap(bootstrap, levels, result);
    if (bootstrap.is_small) {
      result.warnings.push_back(
          StrCat("crossed bootstrap over ", parts.seeds, " seeds: at least 5 are wanted"));
    }
    return OkStatus();
  }
  if (parts.seeds > 1) {
    return FailedPrecondition(StrCat("unit ", Name(plan.unit), " compares two checkpoints; ",
                                     parts.seeds,
                                     " seeds match (choose one with `where`, or "
                                     "take unit seed_batch)"));
  }
  result.n = parts.batches;
  result.warnings.push_back("the interval is about these two checkpoints, not about other seeds");
  if (plan.test == TestKind::kMcNemar) {
    uint64_t only_arm = 0;
    uint64_t only_reference = 0;
    for (const double difference : parts.values) {
      if (difference != 0 && std::abs(difference) != 1) {
        return FailedPrecondition(
            StrCat("mcnemar wants 0 or 1 for each example; a difference is ", difference));
      }
      only_arm += difference == 1 ? 1 : 0;
      only_reference += difference == -1 ? 1 : 0;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const MeanTest mean_test, PairedT(parts.values));
    TakeMeanTest(mean_test, levels, result);
    result.estimate = mean_test.estimate;
    result.p = McNemarExact(only_arm, only_reference);
    return OkStatus();
  }
  SWITCHYARD_ASSIGN_OR_RETURN(
      IndexSource source,
      BlockIndices(parts.batches, plan.block_length, BlockKind::kCircular, plan.random_seed));
  SWITCHYARD_ASSIGN_OR_RETURN(const Bootstrap bootstrap,
                              BootstrapMean(parts.values, plan.resamples, source));
  TakeBootstrap(bootstrap, levels, result);
  return OkStatus();
}

std::string SampleName(const ComparisonPlan& plan) {
  switch (plan.unit) {
    case Unit::kBatch:
      return "batches of these two checkpoints";
    case Unit::kExample:
      return "examples of these two checkpoints";
    case Unit::kSeedBatch:
      return "seeds crossed with batches";
    case Unit::kSeed:
      break;
  }
  return IsPaired(plan.test) ? "pairs" : "seeds an arm";
}

std::string Withheld(const std::vector<MissingSeed>& missing) {
  for (const MissingSeed& seed : missing) {
    if (seed.absence == Absence::kInformative) {
      return StrCat("seed ", seed.seed, " of ", seed.arm,
                    " ended by guard, memory or time, which may depend on the arm");
    }
  }
  return {};
}

// Pairs for 80 % power both to show equivalence at no difference and to detect a difference of the
// margin, with the spread's upper limit; never from the observed difference.
std::optional<size_t> DecidingPairs(const ComparisonPlan& plan, const ComparisonResult& result,
                                    double alpha) {
  if (plan.margins.empty() || plan.unit != Unit::kSeed || !(result.paired_sd > 0)) return {};
  const double margin = *std::max_element(plan.margins.begin(), plan.margins.end());
  const double effect = margin / PilotUpperSd(result.paired_sd, result.n);
  const Result<size_t> equivalence = PairsForEquivalence(effect, 0, alpha);
  const Result<size_t> difference = PairsForDifference(effect, alpha);
  if (!equivalence.ok() || !difference.ok()) return {};
  return std::max(*equivalence, *difference);
}

Verdict VerdictOf(const ComparisonPlan& plan, const ComparisonResult& result, double alpha) {
  if (IsUntested(result)) {
    std::string sentence =
        StrCat("no verdict: ", result.n, " ", SampleName(plan), ", at least 2 are needed");
    if (const std::string why = Withheld(result.missing); !why.empty()) sentence += "; " + why;
    return {.finding = Finding::kWithheld, .sentence = std::move(sentence)};
  }
  VerdictInput input{.estimate = result.estimate,
                     .minimise = plan.minimise,
                     .difference_p = result.adjusted_p,
                     .margin = {},
                     .equivalence_p = 1,
                     .alpha = plan.alpha,
                     .confidence = result.confidence,
                     .equivalence_confidence = result.equivalence_confidence,
                     .difference_interval = result.difference_interval,
                     .equivalence_interval = result.equivalence_interval,
                     .n = result.n,
                     .unit = plan.metric_unit,
                     .sample = SampleName(plan),
                     .deciding_n = DecidingPairs(plan, result, alpha),
                     .withheld = Withheld(result.missing)};
  Verdict verdict = Judge(input);
  // Margins are nested: the smallest that passes is the one to name.
  for (const MarginResult& margin : result.margins) {
    input.margin = margin.margin;
    input.equivalence_p = margin.adjusted_p;
    const Verdict next = Judge(input);
    if (margin.adjusted_p < plan.alpha) return next;
    if (next.is_beyond_margin || verdict.finding == Finding::kUndecided) verdict = next;
  }
  return verdict;
}

}  // namespace

std::string_view Name(TestKind test) {
  for (const auto& [value, name] : kTests) {
    if (value == test) return name;
  }
  return "unknown";
}

std::optional<TestKind> TestNamed(std::string_view name) {
  for (const auto& [value, known] : kTests) {
    if (known == name) return value;
  }
  return std::nullopt;
}

std::string_view Name(Unit unit) {
  for (const auto& [value, name] : kUnits) {
    if (value == unit) return name;
  }
  return "unknown";
}

std::optional<Unit> UnitNamed(std::string_view name) {
  for (const auto& [value, known] : kUnits) {
    if (known == name) return value;
  }
  return std::nullopt;
}

Result<Comparison> Compare(const ComparisonPlan& plan,
                           const std::vector<Observation>& observations) {
  SWITCHYARD_RETURN_IF_ERROR(CheckPlan(plan));
  // In order of first appearance, which is the sweep's.
  std::vector<std::string> arms;
  std::vector<std::string> withins;
  std::map<std::string, std::vector<const Observation*>> by_within;
  for (const Observation& o : observations) {
    if (std::find(arms.begin(), arms.end(), o.arm) == arms.end()) arms.push_back(o.arm);
    if (!by_within.contains(o.within)) withins.push_back(o.within);
    by_within[o.within].push_back(&o);
  }
  if (arms.size() < 2) {
    return FailedPrecondition(
        StrCat("a comparison needs two arms; found ", arms.size(), ": ", StrJoin(arms, ", ")));
  }
  std::vector<std::pair<std::string, std::string>> pairs;  // arm, reference
  if (plan.against.empty()) {
    for (size_t i = 0; i < arms.size(); ++i) {
      for (size_t j = i + 1; j < arms.size(); ++j) pairs.emplace_back(arms[j], arms[i]);
    }
  } else {
    if (std::find(arms.begin(), arms.end(), plan.against) == arms.end()) {
      return InvalidArgument(
          StrCat("against is ", plan.against, "; the arms are ", StrJoin(arms, ", ")));
    }
    for (const std::string& arm : arms) {
      if (arm != plan.against) pairs.emplace_back(arm, plan.against);
    }
  }
  std::vector<double> margins = plan.margins;
  std::sort(margins.begin(), margins.end());
  Comparison comparison;
  comparison.is_exploratory = plan.look > plan.looks;
  comparison.family_size = pairs.size() * withins.size();
  const double look_alpha = plan.alpha / static_cast<double>(plan.looks);
  const double family_alpha = look_alpha / static_cast<double>(comparison.family_size);
  const Levels levels{.alpha = look_alpha,
                      .family = family_alpha,
                      .reach = plan.correction == Correction::kHolm ? family_alpha : look_alpha};
  for (const std::string& within : withins) {
    Arms grouped = GroupArms(by_within[within]);
    for (const auto& [arm_name, reference_name] : pairs) {
      const Arm& arm = grouped[arm_name];
      const Arm& reference = grouped[reference_name];
      const Pairs paired = PairUp(arm_name, arm, reference_name, reference);
      ComparisonResult result;
      result.arm = arm_name;
      result.reference = reference_name;
      result.within = within;
      result.confidence = 1 - levels.alpha;
      result.equivalence_confidence = 1 - 2 * levels.alpha;
      result.paired_sd = kNaN;
      result.correlation = kNaN;
      result.anytime_p = kNaN;
      result.anytime_interval = {.low = kNaN, .high = kNaN};
      result.missing = paired.missing;
      const std::vector<double> arm_values = Values(arm);
      const std::vector<double> reference_values = Values(reference);
      result.arm_values = Summarise(arm_values);
      result.reference_values = Summarise(reference_values);
      for (const double margin : margins) result.margins.push_back({.margin = margin});
      if (IsTooSmall(plan, paired, arm_values, reference_values)) {
        LeaveUntested(paired, result);
      } else if (plan.unit == Unit::kSeed) {
        SWITCHYARD_RETURN_IF_ERROR(
            TestSeeds(plan, levels, paired, arm_values, reference_values, result));
      } else {
        SWITCHYARD_ASSIGN_OR_RETURN(const SeedBatch parts,
                                    PartDifferences(arm_name, arm, reference_name, reference));
        SWITCHYARD_RETURN_IF_ERROR(TestParts(plan, levels, parts, result));
      }
      comparison.results.push_back(std::move(result));
    }
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckAnyIsTested(comparison.results));
  std::vector<double> p;
  for (const ComparisonResult& result : comparison.results) p.push_back(result.p);
  p = Adjust(p, plan.correction);
  for (size_t i = 0; i < p.size(); ++i) {
    comparison.results[i].adjusted_p = AdjustForLooks(p[i], plan.looks);
  }
  for (size_t m = 0; m < margins.size(); ++m) {
    std::vector<double> q;
    for (const ComparisonResult& result : comparison.results) q.push_back(result.margins[m].p);
    q = Adjust(q, plan.correction);
    for (size_t i = 0; i < q.size(); ++i) {
      comparison.results[i].margins[m].adjusted_p = AdjustForLooks(q[i], plan.looks);
    }
  }
  for (ComparisonResult& result : comparison.results) {
    result.verdict = VerdictOf(plan, result, levels.family);
  }
  return comparison;
}

}  // namespace switchyard::stats
