#include "common/stats/verdict.h"

#include <cmath>

#include "common/base/strings.h"

namespace switchyard::stats {
namespace {

std::string Unit(const VerdictInput& input) {
  return input.unit.empty() ? std::string() : " " + input.unit;
}

std::string Within(const VerdictInput& input) {
  return StrCat("equivalent within ±", ShortNumber(*input.margin), Unit(input));
}

std::string Evidence(double confidence, const Interval& interval, const VerdictInput& input) {
  return StrCat(", ", ShortNumber(100 * confidence), " % interval [", ShortNumber(interval.low),
                ", ", ShortNumber(interval.high), "], ", input.n, " ", input.sample);
}

std::string DifferenceEvidence(const VerdictInput& input) {
  return Evidence(input.confidence, input.difference_interval, input);
}

std::string Deciding(const VerdictInput& input) {
  if (!input.deciding_n) return {};
  return StrCat("; ", *input.deciding_n, " ", input.sample, " would decide");
}

}  // namespace

std::string_view Name(Finding finding) {
  switch (finding) {
    case Finding::kEquivalent:
      return "equivalent";
    case Finding::kEquivalentResolved:
      return "equivalent_resolved";
    case Finding::kBetter:
      return "better";
    case Finding::kWorse:
      return "worse";
    case Finding::kUndecided:
      return "undecided";
    case Finding::kWithheld:
      return "withheld";
  }
  return "unknown";
}

Verdict Judge(const VerdictInput& input) {
  Verdict verdict;
  const bool differs = input.difference_p <= input.alpha;
  const bool equivalent = input.margin && input.equivalence_p < input.alpha;
  const bool better = (input.estimate < 0) == input.minimise;
  if (!input.withheld.empty() && (equivalent || (differs && better))) {
    verdict.finding = Finding::kWithheld;
    verdict.sentence = StrCat("no verdict: ", input.withheld, DifferenceEvidence(input));
    return verdict;
  }
  if (equivalent) {
    verdict.finding = differs ? Finding::kEquivalentResolved : Finding::kEquivalent;
    verdict.sentence = Within(input);
    if (differs) {
      verdict.sentence +=
          StrCat("; a difference of ", ShortNumber(input.estimate), Unit(input), " is resolved");
    }
    verdict.sentence += Evidence(input.equivalence_confidence, input.equivalence_interval, input);
    return verdict;
  }
  if (differs) {
    verdict.finding = better ? Finding::kBetter : Finding::kWorse;
    const Interval& interval = input.difference_interval;
    verdict.is_beyond_margin =
        input.margin && (interval.low > *input.margin || interval.high < -*input.margin);
    verdict.sentence = StrCat(better ? "better" : "worse", " by ",
                              ShortNumber(std::abs(input.estimate)), Unit(input));
    if (verdict.is_beyond_margin) {
      verdict.sentence += StrCat(" (by more than ", ShortNumber(*input.margin), ")");
    }
    verdict.sentence += DifferenceEvidence(input);
    return verdict;
  }
  verdict.finding = Finding::kUndecided;
  verdict.sentence =
      StrCat("undecided: ", ShortNumber(input.difference_interval.low), " to ",
             ShortNumber(input.difference_interval.high), Unit(input), " is possible") +
      StrCat(" (", ShortNumber(100 * input.confidence), " % interval, ", input.n, " ", input.sample,
             ")") +
      Deciding(input);
  return verdict;
}

}  // namespace switchyard::stats
