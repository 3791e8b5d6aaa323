#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/connection.h"
#include "client/curves/curve_file.h"
#include "client/plot/figure.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class Run;
class Sweep;
}  // namespace switchyard::v1

// Figures of a sweep out of the coordinator's answers.
namespace switchyard::client {

enum class PlotKind { kCurve, kBar, kScatter, kPareto, kHeatMap, kParallel };
// Around the mean over runs: nothing, the sample standard deviation to both sides, the lowest and
// highest value, the 95 % confidence interval of the mean (Student's t).
enum class Band { kNone, kSd, kRange, kInterval };

struct PlotQuery {
  PlotKind kind = PlotKind::kCurve;
  // Series that is drawn upwards; empty: the objective's, of a heat map without `x`
  // routing/expert_load.
  std::string metric;
  // kCurve: step, tokens, wall_seconds or train.flops (empty: step). kScatter, kPareto: one of
  // these at the run's end, an axis, series or seed (empty: model/params_active). kHeatMap: an axis
  // of columns, for the mean of a scalar series (empty: experts).
  std::string x;
  // Axes, router, seed, state or run: runs that are equal in them share a line, bar or colour.
  // Empty: all axes of the sweep.
  std::vector<std::string> by;
  Band band = Band::kSd;
  std::string title;  // empty: made from the query
  bool has_log_x = false;
  bool has_log_y = false;
};

// The query with what was left open filled in.
PlotQuery Completed(PlotQuery query, const v1::Sweep& sweep);
// Series whose summaries MakeFigure wants with the runs of a completed query.
std::vector<std::string> SeriesNeeded(const PlotQuery& query, const v1::Sweep& sweep);

// `query` is completed. `imported` is drawn beside the curves. kNotFound: nothing to draw, and why;
// kInvalidArgument: a name that is none of the sweep's, or what does not go together.
Result<Figure> MakeFigure(Connection& connection, const v1::Sweep& sweep,
                          const std::vector<v1::Run>& runs, const PlotQuery& query,
                          const std::vector<CurveSet>& imported);

// What MakeFigure is made of.

// The run's value of an axis that is a number, a series (best or last, as the objective says; last
// for one without a direction), seed, or where it stands: step, tokens, wall_seconds, train.flops.
// None: it has none.
std::optional<double> NumberOf(const v1::Sweep& sweep, const v1::Run& run, std::string_view name);

struct RunGroup {
  std::string label;
  std::vector<const v1::Run*> runs;
};
// In order of first appearance. kInvalidArgument: an unknown name.
Result<std::vector<RunGroup>> GroupRuns(const v1::Sweep& sweep, const std::vector<v1::Run>& runs,
                                        const std::vector<std::string>& by);

struct Spread {
  double mean = 0;  // NaN: no value
  double low = 0;
  double high = 0;
};
// Of finite values.
Spread SpreadOf(const std::vector<double>& values, Band band);

// Points that no other one beats in both directions, by x. Smaller x is better, smaller y too
// unless `y_is_maximized`. Points that are not finite are left out.
std::vector<std::pair<double, double>> ParetoFront(std::vector<std::pair<double, double>> points,
                                                   bool y_is_maximized);

}  // namespace switchyard::client
