#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/stats/comparison.h"
#include "server/results/arms.h"
#include "server/store/rows.h"

namespace switchyard::v1 {
class CompareSpec;
class ObjectiveSpec;
class SweepSpec;
}  // namespace switchyard::v1
namespace switchyard::store {
class ReadStore;
}

// Comparing the arms of a stored sweep: which runs stand for what, what was registered, and what a
// reader must know beside the verdict.
namespace switchyard::results {

struct CompareQuestion {
  // What it leaves open comes from the registered comparison, then from the defaults.
  const v1::CompareSpec& asked;
  // Arms by expression instead of by axis.
  std::vector<ArmFilter> arms;
  // Number of the registered comparison, from 1; 0: the first with the same `by`, or the first.
  size_t registered = 0;
  // Which of the planned looks at the data this is, from 1; 0: the last one.
  size_t look = 0;
  // With `tune`: the best cells are chosen on these seeds and judged on the others.
  std::vector<uint64_t> chosen_on;
};

// A question with everything filled in, and the runs that it is about.
struct ComparisonSetup {
  std::shared_ptr<v1::SweepSpec> spec;  // as submitted
  std::shared_ptr<v1::ObjectiveSpec> objective;
  std::shared_ptr<v1::CompareSpec> compare;
  ArmRuns runs;
  bool is_maximized = false;
  std::vector<std::string> warnings;  // about the arms: compute, data, devices, selection
};
// `sweep` has its spec.
//   kInvalidArgument     an axis, arm, test or margin that does not fit; what is not served
//   kFailedPrecondition  arms further apart in compute than `match` allows
Result<ComparisonSetup> SetUp(store::ReadStore& store, const store::SweepInfo& sweep,
                              const CompareQuestion& question);

struct ComparisonAnswer {
  ComparisonSetup setup;
  stats::ComparisonPlan plan;
  stats::Comparison comparison;
  std::string registration;  // hex SHA-256 of what was asked with the planned arms and seeds
  // Not as registered at submission, in the words of `reasons`.
  bool is_exploratory = false;
  std::vector<std::string> reasons;
};
// As SetUp, and
//   kFailedPrecondition  a test that cannot reach alpha with these seeds
Result<ComparisonAnswer> CompareArms(store::ReadStore& store, const store::SweepInfo& sweep,
                                     const CompareQuestion& question);

// The runs as the statistics take them.
std::vector<stats::Observation> Observations(const ArmRuns& runs);

// "bits per byte" of "valid/bits_per_byte".
std::string UnitText(const std::string& series);

}  // namespace switchyard::results
