#include "common/spec/match.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/lay.h"
#include "common/spec/quantity.h"
#include "common/spec/unused.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Widths, lengths and counts of every field stay below.
constexpr uint64_t kVaryMax = uint64_t{1} << 24;

std::optional<double> QuantityOfWritten(const pb::RunSpec& written, const std::string& name) {
  pb::RunSpec filled = written;
  DropUnused(&filled);
  FillDefaults(&filled);
  return QuantityOf(filled, name);
}

Node NumberNode(uint64_t number) {
  Node node;
  node.scalar = std::to_string(number);
  return node;
}

class Solver {
 public:
  Solver(const Match& match, const pb::RunSpec& run) : match_(match), run_(run) {}

  // The fault of laying a number, if there is one.
  bool Try(std::vector<Fault>* faults) {
    pb::RunSpec copy = run_;
    return Layer("", faults).LayAt(&copy, match_.vary, NumberNode(1)) != nullptr;
  }

  double At(uint64_t number) const {
    pb::RunSpec copy = run_;
    std::vector<Fault> unused;
    Layer("", &unused).LayAt(&copy, match_.vary, NumberNode(number));
    return QuantityOfWritten(copy, match_.quantity).value_or(0);
  }

  // The largest number whose quantity is at most `target`; 0: there is none.
  uint64_t LargestBelow(double target) const {
    if (At(1) > target) return 0;
    uint64_t low = 1;
    uint64_t high = 2;
    while (high <= kVaryMax && At(high) <= target) {
      low = high;
      high *= 2;
    }
    while (high - low > 1) {
      const uint64_t middle = low + (high - low) / 2;
      (At(middle) <= target ? low : high) = middle;
    }
    return low;
  }

 private:
  const Match& match_;
  const pb::RunSpec& run_;
};

}  // namespace

void SolveMatch(const Match& match, const std::string& to, const pb::RunSpec& other,
                pb::RunSpec* run, std::vector<Fault>* faults) {
  const auto fail = [&](std::string message) {
    faults->push_back({"", match.vary, std::move(message)});
  };
  Solver solver(match, *run);
  if (!solver.Try(faults)) return;
  const std::optional<double> target = QuantityOfWritten(other, match.quantity);
  if (!target) {
    return fail(StrCat("cannot be matched: ", match.quantity, " of ", to,
                       " is known only once the data is read; give the length in steps or tokens"));
  }
  if (!(solver.At(kVaryMax) > solver.At(1))) {
    return fail(StrCat(match.quantity, " does not rise with it, so that it cannot be matched"));
  }
  const uint64_t below = solver.LargestBelow(*target);
  uint64_t best = below == 0 ? 1 : below;
  if (below != 0 &&
      std::abs(solver.At(below + 1) - *target) < std::abs(solver.At(below) - *target)) {
    best = below + 1;
  }
  const double reached = solver.At(best);
  const double apart = std::abs(reached - *target) / std::max(std::abs(*target), 1.0);
  if (apart > match.tolerance) {
    return fail(StrCat("the nearest ", match.quantity, " to ", FormatDouble(*target), " of ", to,
                       " is ", FormatDouble(reached), " at ", best, ", ",
                       "a relative difference of ",
                       FormatDouble(RoundDrawn(apart, 0, std::numeric_limits<double>::infinity())),
                       ", over the tolerance of ", FormatDouble(match.tolerance)));
  }
  Layer("", faults).LayAt(run, match.vary, NumberNode(best));
}

}  // namespace switchyard::spec
