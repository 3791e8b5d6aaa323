#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/search/preview.h"

namespace switchyard::search {

// A learning curve for trying a strategy without training: it falls like step^-1/2 from about 3
// towards a floor of 1 plus the mean squared distance of the point to a hidden optimum, each
// dimension's distance in units of its distribution (a wrong category is 1). A run that changed its
// point on the way has the mean floor of its steps. Noise is normal with standard deviation `noise`
// / sqrt(step). Minimised; `is_maximized` turns the sign. The optimum is drawn from `seed`. `space`
// outlives it.
Curve SyntheticCurve(const Space& space, uint64_t steps, uint64_t seed, double noise,
                     bool is_maximized);

// One recorded value.
struct RecordedPoint {
  Point point;
  uint64_t seed = 0;
  uint64_t step = 0;
  double value = 0;
};

// Recorded curves as a table: a run takes the recorded cell that is nearest to its newest point
// (distance as above), of its own seed where that was recorded, and between two recorded steps the
// value of the line through them; beyond the ends the nearest value. kInvalidArgument: no point, or
// one that is not of the space. `space` outlives it.
Result<Curve> RecordedCurve(const Space& space, const std::vector<RecordedPoint>& points);

}  // namespace switchyard::search
