#include "client/plot/curve_lines.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "client/commands/runs.h"
#include "client/commands/sweep_reader.h"
#include "client/export/export_writer.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kPlaces = 400;

// Curves of runs that share a line, cut into places of one width.
class Line {
 public:
  explicit Line(double width) : width_(width) {}

  void BeginRun() { run_.clear(); }
  void Add(double x, double value) {
    Place& place = run_[static_cast<int64_t>(std::floor(x / width_))];
    place.x += x;
    ++place.points;
    if (std::isfinite(value)) {
      place.sum += value;
      ++place.finite;
    } else {
      ++non_finite_;
    }
  }
  void EndRun() {
    runs_ += run_.empty() ? 0 : 1;
    for (const auto& [at, place] : run_) {
      Shared& shared = places_[at];
      shared.x += place.x;
      shared.points += place.points;
      if (place.finite > 0) shared.values.push_back(place.sum / static_cast<double>(place.finite));
    }
  }

  BandLine Take(const std::string& label, Band band) const {
    BandLine line;
    line.label = StrCat(label, " (", runs_, runs_ == 1 ? " run" : " runs");
    if (non_finite_ > 0) line.label += StrCat(", ", non_finite_, " values not finite");
    line.label += ")";
    for (const auto& [at, shared] : places_) {
      const Spread spread = SpreadOf(shared.values, band);
      line.points.push_back({.x = shared.x / static_cast<double>(shared.points),
                             .mean = spread.mean,
                             .low = spread.low,
                             .high = spread.high});
    }
    return line;
  }
  bool is_empty() const { return runs_ == 0; }

 private:
  struct Place {
    double x = 0;
    uint64_t points = 0;
    double sum = 0;
    uint64_t finite = 0;
  };
  struct Shared {
    double x = 0;
    uint64_t points = 0;
    std::vector<double> values;  // one per run
  };

  const double width_;
  std::map<int64_t, Place> run_;
  std::map<int64_t, Shared> places_;
  size_t runs_ = 0;
  uint64_t non_finite_ = 0;
};

// Where a point of a run lies on the x axis.
class XScale {
 public:
  // kInvalidArgument: an x that curves do not have; kNotFound: a run that does not count it.
  static Result<XScale> Make(Connection& connection, const pb::Run& run, const std::string& x) {
    XScale scale;
    if (x == "step") return scale;
    if (x == "tokens" || x == "train.flops") {
      // A step has a fixed number of either.
      const pb::SeriesSummary* tokens = FindSummary(run, kTrainTokens);
      const std::optional<double> end = NumberOf({}, run, x);
      if (tokens == nullptr || tokens->last_step() == 0 || !end) {
        return NotFound(StrCat("--x ", x, ": ", run.name(), " has no values of ", kTrainTokens,
                               x == "tokens" ? "" : StrCat(" and ", kFlopsPerToken)));
      }
      scale.factor_ = *end / static_cast<double>(tokens->last_step());
      return scale;
    }
    if (x == "wall_seconds") {
      pb::GetRunRequest request;
      request.set_run(run.id());
      SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(request, &scale.detail_));
      scale.is_time_ = true;
      return scale;
    }
    return InvalidArgument(
        StrCat("--x ", x, ": curves are drawn over step, tokens, wall_seconds or train.flops"));
  }

  double At(const pb::Point& point) const {
    if (!is_time_) return static_cast<double>(point.step()) * factor_;
    const int64_t since = UnixMs(detail_, point.attempt(), point.ms()) - detail_.run().started_ms();
    return static_cast<double>(std::max<int64_t>(0, since)) / 1000;
  }

  // Upper end of the run's curve.
  double End(const pb::Run& run, uint64_t last_step) const {
    if (!is_time_) return static_cast<double>(last_step) * factor_;
    const int64_t end = run.ended_ms() > 0 ? run.ended_ms() : UnixMilliseconds();
    return static_cast<double>(std::max<int64_t>(0, end - detail_.run().started_ms())) / 1000;
  }

 private:
  double factor_ = 1;
  bool is_time_ = false;
  pb::RunDetail detail_;
};

double ValueOf(const pb::Point& point) {
  if (point.values_size() == 0) return point.value();
  double sum = 0;
  int finite = 0;
  for (const float value : point.values()) {
    if (!std::isfinite(value)) continue;
    sum += static_cast<double>(value);
    ++finite;
  }
  return finite > 0 ? sum / finite : kNaN;
}

Status AddRun(Connection& connection, const pb::Run& run, const std::string& metric,
              const XScale& scale, Line* line) {
  line->BeginRun();
  SWITCHYARD_RETURN_IF_ERROR(
      ReadCurve(connection, run.id(), metric, 0, [&](const pb::GetCurveResponse& page) {
        for (const pb::Point& point : page.points()) line->Add(scale.At(point), ValueOf(point));
        return OkStatus();
      }));
  line->EndRun();
  return OkStatus();
}

// Lines of one imported set: a line per run, repetitions by seed.
Status AddImported(const CurveSet& set, const PlotQuery& query, double width, Figure* figure) {
  if (query.x != "step") {
    return InvalidArgument(
        StrCat("--with ", set.name, ": imported curves are drawn over steps, not ", query.x));
  }
  std::map<std::string, std::vector<const ImportedCurve*>> runs;
  for (const ImportedCurve& curve : set.curves) {
    if (curve.metric == query.metric) runs[curve.run].push_back(&curve);
  }
  if (runs.empty()) {
    return NotFound(StrCat("--with ", set.name, ": it has no curve of ", query.metric, "; it has ",
                           StrJoin(set.Metrics(), ", "),
                           " (import --rename OLD=NEW gives a metric another name)"));
  }
  for (const auto& [run, curves] : runs) {
    Line line(width);
    for (const ImportedCurve* curve : curves) {
      line.BeginRun();
      for (const auto& [step, value] : curve->points) line.Add(static_cast<double>(step), value);
      line.EndRun();
    }
    BandLine drawn = line.Take(run == set.name ? run : StrCat(set.name, ": ", run), query.band);
    drawn.is_dashed = true;
    figure->lines.push_back(std::move(drawn));
  }
  return OkStatus();
}

double ImportedEnd(const std::vector<CurveSet>& imported, const std::string& metric) {
  double end = 0;
  for (const CurveSet& set : imported) {
    for (const ImportedCurve& curve : set.curves) {
      if (curve.metric != metric || curve.points.empty()) continue;
      end = std::max(end, static_cast<double>(curve.points.back().first));
    }
  }
  return end;
}

}  // namespace

Result<Figure> MakeCurves(Connection& connection, const pb::Sweep& sweep,
                          const std::vector<pb::Run>& runs, const PlotQuery& query,
                          const std::vector<CurveSet>& imported) {
  Figure figure;
  figure.kind = Figure::Kind::kCurves;
  figure.x_label = query.x;
  figure.y_label = query.metric;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> groups, GroupRuns(sweep, runs, query.by));
  std::map<const pb::Run*, XScale> scales;
  double end = ImportedEnd(imported, query.metric);
  for (const pb::Run& run : runs) {
    const pb::SeriesSummary* summary = FindSummary(run, query.metric);
    if (summary == nullptr) continue;
    SWITCHYARD_ASSIGN_OR_RETURN(XScale scale, XScale::Make(connection, run, query.x));
    end = std::max(end, scale.End(run, summary->last_step()));
    scales.emplace(&run, std::move(scale));
  }
  if (scales.empty() && imported.empty()) {
    return NotFound(StrCat("nothing to draw: none of the ", runs.size(), " chosen runs of ",
                           sweep.name(), " has a value of ", query.metric,
                           "; `switchyard metrics RUN` lists a run's series"));
  }
  const double width =
      query.x == "step" ? std::max(1.0, std::ceil(end / kPlaces)) : std::max(end / kPlaces, 1e-9);
  for (const RunGroup& group : groups) {
    Line line(width);
    for (const pb::Run* run : group.runs) {
      const auto scale = scales.find(run);
      if (scale == scales.end()) continue;
      SWITCHYARD_RETURN_IF_ERROR(AddRun(connection, *run, query.metric, scale->second, &line));
    }
    if (!line.is_empty()) figure.lines.push_back(line.Take(group.label, query.band));
  }
  for (const CurveSet& set : imported) {
    SWITCHYARD_RETURN_IF_ERROR(AddImported(set, query, width, &figure));
  }
  return figure;
}

}  // namespace switchyard::client
