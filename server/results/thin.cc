#include "server/results/thin.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/base/check.h"

namespace switchyard::results {

std::vector<store::CurvePoint> Thin(std::vector<store::CurvePoint> points, size_t max_points) {
  SWITCHYARD_CHECK(max_points >= kThinPointsMin) << max_points << " points are too few";
  if (points.size() <= max_points) return points;
  const bool is_finite = std::ranges::all_of(
      points, [](const store::CurvePoint& point) { return std::isfinite(point.value); });
  const size_t stretches = (max_points - 2) / (is_finite ? 2 : 3);
  const size_t inner = points.size() - 2;
  std::vector<store::CurvePoint> kept;
  kept.push_back(std::move(points.front()));
  for (size_t stretch = 0; stretch < stretches; ++stretch) {
    const size_t begin = 1 + inner * stretch / stretches;
    const size_t end = 1 + inner * (stretch + 1) / stretches;
    constexpr size_t kNone = 0;  // the first point is in no stretch
    size_t lowest = kNone;
    size_t highest = kNone;
    size_t bad = kNone;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(points[i].value)) {
        if (bad == kNone) bad = i;
        continue;
      }
      if (lowest == kNone || points[i].value < points[lowest].value) lowest = i;
      if (highest == kNone || points[i].value > points[highest].value) highest = i;
    }
    std::array<size_t, 3> chosen = {lowest, highest, bad};
    std::ranges::sort(chosen);
    size_t before = kNone;
    for (const size_t i : chosen) {
      if (i == before) continue;
      kept.push_back(std::move(points[i]));
      before = i;
    }
  }
  kept.push_back(std::move(points.back()));
  return kept;
}

}  // namespace switchyard::results
