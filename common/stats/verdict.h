#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/stats/descriptive.h"

// What a comparison says, in one sentence (analyses N20). "No difference" is never among the
// answers: a null result is an interval.
namespace switchyard::stats {

enum class Finding {
  kEquivalent,          // inside the margin, not distinguished from 0
  kEquivalentResolved,  // inside the margin, and different from 0
  kBetter,
  kWorse,
  kUndecided,
  // Runs are missing for a reason that the arm itself may have caused.
  kWithheld,
};
std::string_view Name(Finding finding);

struct VerdictInput {
  double estimate = 0;  // arm - reference, in the metric's unit
  bool minimise = true;
  // Adjusted for the family and the looks.
  double difference_p = 1;
  std::optional<double> margin;
  double equivalence_p = 1;  // with a margin
  double alpha = 0.05;
  double confidence = 0.95;              // of `difference_interval`
  double equivalence_confidence = 0.90;  // of `equivalence_interval`
  Interval difference_interval;
  Interval equivalence_interval;
  size_t n = 0;
  std::string unit;    // "bits per byte"; may be empty
  std::string sample;  // "pairs", "seeds an arm", "batches of these two checkpoints"
  // Pairs that would decide, when known.
  std::optional<size_t> deciding_n;
  // Why no better or equivalent verdict may be given; empty: none.
  std::string withheld;
};

struct Verdict {
  Finding finding = Finding::kUndecided;
  // The interval beyond the margin on one side: better or worse by more than it.
  bool is_beyond_margin = false;
  std::string sentence;
};

Verdict Judge(const VerdictInput& input);

}  // namespace switchyard::stats
