#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
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

// Which runs of a sweep stand for which arm of a comparison, and what they have come to.
namespace switchyard::results {

// An arm that is not a value of an axis: the runs that satisfy an expression.
struct ArmFilter {
  std::string name;
  std::string filter;
};

// What one (cell, seed) has come to.
struct ArmRun {
  std::string arm;
  std::string within;  // "axis=value, axis=value" of the axes that are compared separately
  std::string pool;    // of those averaged inside a seed
  uint64_t cell = 0;
  uint64_t seed = 0;
  uint64_t number = 0;
  RunId run;
  double value = 0;  // of the metric, where absence is kNone
  stats::Absence absence = stats::Absence::kNone;
  bool is_reused = false;  // another sweep proposed it first
  bool is_gpu = false;
  double slot_hours = 0;  // slots times active time
};

struct ArmRuns {
  std::vector<ArmRun> runs;       // by number
  std::vector<std::string> arms;  // in order of first appearance
  // What the filters read of the runs' outcomes: series, state, ...
  std::vector<std::string> outcome_names;
};

// The runs of `compare`'s arms, with the best or last value of its metric as the objective says:
// the values of its axis `by`, or those of `filters` (`by` is then empty). A retry stands for the
// run that it repeats. Axes that are neither `within` nor `pool` are compared separately where all
// arms take the same values; they belong to the arms where each has one value. `compare` has its
// defaults.
//   kInvalidArgument   an expression that cannot be read, a run that satisfies two filters, an
//                      axis that varies inside some arms only
Result<ArmRuns> CollectArms(store::ReadStore& store, const store::SweepInfo& sweep,
                            const v1::CompareSpec& compare, const std::vector<ArmFilter>& filters,
                            const std::string& stage);

// Keeps of each arm (and `within`) the cell with the best mean over its seeds, or over those in
// `chosen_on`, whose runs are then dropped. True when an arm had a choice.
bool KeepBestCells(bool is_maximized, const std::vector<uint64_t>& chosen_on, ArmRuns* runs);

}  // namespace switchyard::results
