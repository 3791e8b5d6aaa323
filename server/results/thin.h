#pragma once

#include <cstddef>
#include <vector>

#include "server/store/rows.h"

namespace switchyard::results {

inline constexpr size_t kThinPointsMin = 8;

// About `max_points` (at least kThinPointsMin, never more) of the points of a scalar curve, in
// order: the first, the last, and of each of equal stretches between them the lowest, the highest
// and the first one that is not finite. A curve that is short enough stays as it is.
std::vector<store::CurvePoint> Thin(std::vector<store::CurvePoint> points, size_t max_points);

}  // namespace switchyard::results
