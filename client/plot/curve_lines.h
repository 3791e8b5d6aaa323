#pragma once

#include <string>
#include <vector>

#include "client/plot/figures.h"

namespace switchyard::client {

inline constexpr char kExpertLoad[] = "routing/expert_load";
inline constexpr char kTrainTokens[] = "train/tokens";
inline constexpr char kFlopsPerToken[] = "model/flops_per_token_active";
// Operations of an update by those of its forward pass, as `train.flops` counts them
// (common/spec/quantity.h).
inline constexpr double kForwardAndBackward = 3;

// Curves with bands: a line per group of runs. A run counts once at every place: where it has
// several points, by their mean. Long curves are cut into about 400 places; up to that many steps
// every step is one. A point of a vector counts by the mean of its finite elements.
Result<Figure> MakeCurves(Connection& connection, const v1::Sweep& sweep,
                          const std::vector<v1::Run>& runs, const PlotQuery& query,
                          const std::vector<CurveSet>& imported);

}  // namespace switchyard::client
