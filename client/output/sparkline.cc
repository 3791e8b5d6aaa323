#include "client/output/sparkline.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace switchyard::client {
namespace {

constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

}  // namespace

std::vector<double> Thin(const std::vector<double>& values, size_t width) {
  const size_t cells = std::min(values.size(), width);
  std::vector<double> out;
  out.reserve(cells);
  for (size_t cell = 0; cell < cells; ++cell) {
    const size_t begin = cell * values.size() / cells;
    const size_t end = (cell + 1) * values.size() / cells;
    double sum = 0;
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(values[i])) continue;
      sum += values[i];
      ++count;
    }
    out.push_back(count > 0 ? sum / static_cast<double>(count)
                            : std::numeric_limits<double>::quiet_NaN());
  }
  return out;
}

std::string Sparkline(const std::vector<double>& values, size_t width, std::optional<Scale> scale) {
  const std::vector<double> cells = Thin(values, width);
  if (!scale.has_value()) {
    Scale own{.low = std::numeric_limits<double>::infinity(),
              .high = -std::numeric_limits<double>::infinity()};
    for (const double value : cells) {
      if (std::isnan(value)) continue;
      own.low = std::min(own.low, value);
      own.high = std::max(own.high, value);
    }
    scale = own;
  }
  std::string out;
  for (const double value : cells) {
    if (std::isnan(value)) {
      out += "×";
      continue;
    }
    // In halves: the ends may be further apart than the largest double.
    const double span = scale->high / 2 - scale->low / 2;
    const double share = span > 0 ? (value / 2 - scale->low / 2) / span : 0.45;
    const auto block = static_cast<size_t>(std::clamp(share * 8.0, 0.0, 7.0));
    out += kBlocks[block];
  }
  return out;
}

}  // namespace switchyard::client
