#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/stats/descriptive.h"
#include "common/stats/multiple_testing.h"
#include "common/stats/verdict.h"

// Comparing the arms of a sweep (analyses N15-N20): which values pair up, which test, which family,
// and what may be said. Pure: the caller brings one observation per run.
namespace switchyard::stats {

enum class TestKind {
  kPairedT,
  kWelchT,
  kWilcoxon,
  kSignFlip,
  kLabelPermutation,
  kBootstrap,
  kMcNemar,
};
// "paired_t", ...
std::string_view Name(TestKind test);
std::optional<TestKind> TestNamed(std::string_view name);

// What is drawn anew if the experiment were repeated.
enum class Unit {
  kSeed,       // training seeds
  kBatch,      // batches of one evaluation of two checkpoints; says nothing about other seeds
  kSeedBatch,  // both: crossed bootstrap
  kExample,    // labelled examples of one evaluation of two checkpoints
};
std::string_view Name(Unit unit);
std::optional<Unit> UnitNamed(std::string_view name);

// Why a run has no value.
enum class Absence {
  kNone,
  kUnfinished,
  kFailed,
  // Ended by a guard, for memory or for time: what is lost depends on the arm.
  kInformative,
};

struct Observation {
  std::string arm;
  // Value of the axes that are compared separately; empty when there are none.
  std::string within;
  // Value of the axes that are averaged inside a seed.
  std::string pool;
  uint64_t seed = 0;
  // Of the run, or the mean over its children.
  double value = 0;
  Absence absence = Absence::kNone;
  // Per batch or example, in evaluation order; for the units that need them.
  std::vector<double> parts;
};

struct ComparisonPlan {
  // Empty: all pairs of arms.
  std::string against;
  bool minimise = true;
  // Of the metric: "bits per byte".
  std::string metric_unit;
  std::vector<double> margins;
  double alpha = 0.05;
  Correction correction = Correction::kHolm;
  // Planned; `look` counts from 1. More than planned is exploratory.
  size_t looks = 1;
  size_t look = 1;
  Unit unit = Unit::kSeed;
  TestKind test = TestKind::kPairedT;
  size_t resamples = 10'000;
  // Of batches in the batch units.
  size_t block_length = 1;
  // Of the resampling, not of training.
  uint64_t random_seed = 0;
};

struct MissingSeed {
  uint64_t seed = 0;
  // Which arm lacks it, and where.
  std::string arm;
  Absence absence = Absence::kNone;
};

struct MarginResult {
  double margin = 0;
  double p = 1;
  double adjusted_p = 1;
};

struct ArmSummary {
  size_t n = 0;
  double mean = 0;
  double sd = 0;
};

struct ComparisonResult {
  std::string arm;
  std::string reference;
  std::string within;
  ArmSummary arm_values;
  ArmSummary reference_values;
  // arm - reference.
  double estimate = 0;
  double p = 1;
  double adjusted_p = 1;
  double confidence = 0.95;
  double equivalence_confidence = 0.90;
  Interval difference_interval;
  Interval equivalence_interval;
  // At 1 - alpha / m, for the family as a whole.
  Interval family_interval;
  size_t n = 0;
  double paired_sd = 0;    // NaN unless paired
  double correlation = 0;  // of the arms over seeds; NaN unless paired
  std::vector<MarginResult> margins;
  // The smallest margin that would pass at alpha, before adjustment.
  double smallest_margin = 0;
  // Two-sided evidence that may be looked at any time; NaN unless paired t.
  double anytime_p = 1;
  Interval anytime_interval;
  std::vector<MissingSeed> missing;
  std::vector<std::string> warnings;
  Verdict verdict;
};

struct Comparison {
  std::vector<ComparisonResult> results;
  // Difference tests in the family (equivalence tests form one of the same size per margin).
  size_t family_size = 0;
  // Not what was planned: more looks than registered.
  bool is_exploratory = false;
};

// Refused: an unknown reference, fewer than two arms, a test that cannot reach alpha at this n, a
// test that does not go with the unit or with margins.
Result<Comparison> Compare(const ComparisonPlan& plan,
                           const std::vector<Observation>& observations);

}  // namespace switchyard::stats
