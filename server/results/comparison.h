#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/stats/comparison.h"
#include "server/store/rows.h"

namespace switchyard::v1 {
class CompareSpec;
}
namespace switchyard::store {
class ReadStore;
}

// Comparing the arms of a stored sweep: which runs stand for what, what was registered, and what a
// reader must know beside the verdict.
namespace switchyard::results {

struct ComparisonAnswer {
  stats::Comparison comparison;
  stats::ComparisonPlan plan;
  std::vector<std::string> arms;  // in order of first appearance
  // Not as registered at submission, in the words of `reasons`.
  bool is_exploratory = false;
  std::vector<std::string> reasons;
  std::vector<std::string> warnings;  // about the arms: compute, data, devices, selection
};

// `asked` with what it leaves open taken from the registered comparison of the same axis, then from
// the defaults. `sweep` has its spec. `look` counts from 1.
//   kInvalidArgument     an axis, arm, test or margin that does not fit; what is not served
//   kFailedPrecondition  a test that cannot reach alpha with these seeds
Result<ComparisonAnswer> CompareArms(store::ReadStore& store, const store::SweepInfo& sweep,
                                     const v1::CompareSpec& asked, size_t look);

}  // namespace switchyard::results
