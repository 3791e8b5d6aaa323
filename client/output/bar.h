#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace switchyard::client {

// `fraction` (cut to 0..1; NaN is 0) of `width` cells in eighths, the rest dotted.
std::string ProgressBar(double fraction, size_t width);

struct BarPart {
  uint64_t count = 0;
  std::string glyph;  // one cell
};

// Cells shared out by count over `width`. What counts at least one gets at least one cell while
// there are cells enough, so that a single failure among a million runs is seen.
std::string StackedBar(const std::vector<BarPart>& parts, size_t width);

}  // namespace switchyard::client
