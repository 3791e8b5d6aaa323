#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "common/spec/fault.h"

namespace switchyard::spec {

// For a word that is not one of `known`: "nearest: X", else "known: A, B"; `none` where nothing is
// known.
std::string WordHint(std::string_view word, const std::vector<std::string>& known,
                     std::string_view none = "");

// What the checkers of a document share: they collect all faults, not only the first.
class Checker {
 protected:
  void Fail(std::string path, std::string message) {
    faults_.push_back({"", std::move(path), std::move(message)});
  }
  // `value` in [min, max], or a fault.
  bool Range(const std::string& path, uint64_t value, uint64_t min, uint64_t max) {
    if (value >= min && value <= max) return true;
    if (value == 0) {
      Fail(path, min == 1 ? StrCat("is required, or 0 where at least 1 is wanted")
                          : StrCat("is 0; at least ", min, " is wanted"));
    } else {
      Fail(path, StrCat(value, " is not between ", min, " and ", max));
    }
    return false;
  }
  void Positive(const std::string& path, double value) {
    if (!(value > 0)) Fail(path, StrCat(value, " must be above 0"));
  }
  void NotNegative(const std::string& path, double value) {
    if (!(value >= 0)) Fail(path, StrCat(value, " must not be negative"));
  }
  // [0, 1): a probability of dropping, a decay.
  void Fraction(const std::string& path, double value) {
    if (!(value >= 0 && value < 1)) Fail(path, StrCat(value, " is not in [0, 1)"));
  }

  std::vector<Fault> faults_;
};

}  // namespace switchyard::spec
