#include "client/output/bar.h"

#include <algorithm>
#include <cmath>

namespace switchyard::client {
namespace {

constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};

}  // namespace

std::string ProgressBar(double fraction, size_t width) {
  const double share = std::isnan(fraction) ? 0.0 : std::clamp(fraction, 0.0, 1.0);
  // Rounded down: only what is finished looks full.
  const auto eighths = static_cast<size_t>(share * static_cast<double>(width) * 8.0 + 1e-9);
  std::string out;
  for (size_t i = 0; i < eighths / 8; ++i) out += "█";
  size_t used = eighths / 8;
  if (used < width && eighths % 8 != 0) {
    out += kEighths[eighths % 8];
    ++used;
  }
  for (; used < width; ++used) out += "·";
  return out;
}

std::string StackedBar(const std::vector<BarPart>& parts, size_t width) {
  double total = 0;
  for (const BarPart& part : parts) total += static_cast<double>(part.count);
  if (total == 0 || width == 0) return {};
  std::vector<size_t> cells(parts.size(), 0);
  size_t used = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].count == 0) continue;
    const double share = static_cast<double>(parts[i].count) / total * static_cast<double>(width);
    cells[i] = std::max<size_t>(1, static_cast<size_t>(share));
    used += cells[i];
  }
  // What rounding left over goes to the largest part; what it took too much comes from there.
  while (used != width) {
    const size_t largest = static_cast<size_t>(
        std::max_element(parts.begin(), parts.end(),
                         [](const BarPart& a, const BarPart& b) { return a.count < b.count; }) -
        parts.begin());
    if (used < width) {
      cells[largest] += width - used;
      used = width;
      break;
    }
    const size_t widest =
        static_cast<size_t>(std::max_element(cells.begin(), cells.end()) - cells.begin());
    --cells[widest];
    --used;
  }
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t n = 0; n < cells[i]; ++n) out += parts[i].glyph;
  }
  return out;
}

}  // namespace switchyard::client
