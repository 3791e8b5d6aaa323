#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::client {

struct NumberRange {
  uint64_t first = 0;
  uint64_t last = 0;  // inclusive
  bool operator==(const NumberRange&) const = default;
};

// Which sweeps or runs a verb is for.
//   last            the newest sweep            all           every live sweep
//   NAME, sweep:NAME  a sweep                   UUID          a sweep or a run
//   NAME/3          a run of it                 NAME/3-9,12   several
//   3-9, 7,9        runs of the last sweep      state:failed  runs in a state, of all sweeps
//   NAME/state:failed  those of one sweep
struct Selector {
  enum class Kind { kAll, kSweep, kRuns, kState, kId };
  Kind kind = Kind::kSweep;
  std::string text;                  // as given, for messages
  std::string sweep;                 // kSweep, kRuns, kState (empty: all): name or "last"
  std::vector<NumberRange> numbers;  // kRuns, sorted, without overlap
  std::string state;                 // kState: "failed"
  std::string id;                    // kId
  bool operator==(const Selector&) const = default;
};

// kInvalidArgument with what is wrong and the forms there are.
Result<Selector> ParseSelector(std::string_view text);

}  // namespace switchyard::client
