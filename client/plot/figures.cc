#include "client/plot/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "client/commands/runs.h"
#include "client/output/number.h"
#include "client/plot/curve_lines.h"
#include "common/base/strings.h"
#include "common/spec/series.h"
#include "common/stats/distributions.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kCategoriesMax = 12;
constexpr double kLogRatio = 50;  // an axis whose ends differ by more has a logarithmic scale

const std::string* ColumnOf(const pb::Run& run, std::string_view axis) {
  for (const pb::AxisValue& column : run.columns()) {
    if (column.axis() == axis) return &column.value();
  }
  return nullptr;
}

std::optional<double> LastOf(const pb::Run& run, const char* series) {
  const pb::SeriesSummary* summary = FindSummary(run, series);
  return summary == nullptr ? std::nullopt : std::optional<double>(summary->last());
}

bool HasAxis(const pb::Sweep& sweep, std::string_view name) {
  return std::ranges::find(sweep.axes(), name) != sweep.axes().end();
}

bool IsMaximized(const pb::Sweep& sweep, std::string_view series) {
  if (series == sweep.objective().metric()) {
    return sweep.objective().goal() == pb::GOAL_MAXIMIZE;
  }
  return spec::SeriesDirection(series) == spec::Direction::kMaximize;
}

Status Nothing(const pb::Sweep& sweep, const PlotQuery& query, size_t runs) {
  return NotFound(StrCat("nothing to draw: none of the ", runs, " chosen runs of ", sweep.name(),
                         " has a value of ", query.metric,
                         "; `switchyard metrics RUN` lists a run's series"));
}

// What each bar or line says about values that are in no mean.
std::string WithCounts(const std::string& label, size_t runs, uint64_t non_finite) {
  std::string text = StrCat(label, " (", runs, runs == 1 ? " run" : " runs");
  if (non_finite > 0) text += StrCat(", ", non_finite, " not finite");
  return text + ")";
}

Result<Figure> MakeBars(const pb::Sweep& sweep, const std::vector<pb::Run>& runs,
                        const PlotQuery& query) {
  Figure figure;
  figure.kind = Figure::Kind::kBars;
  figure.y_label = query.metric;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> groups, GroupRuns(sweep, runs, query.by));
  for (const RunGroup& group : groups) {
    std::vector<double> values;
    uint64_t non_finite = 0;
    for (const pb::Run* run : group.runs) {
      const std::optional<double> value = NumberOf(sweep, *run, query.metric);
      if (!value) continue;
      if (std::isfinite(*value)) {
        values.push_back(*value);
      } else {
        ++non_finite;
      }
    }
    if (values.empty()) continue;
    const Spread spread = SpreadOf(values, query.band);
    figure.bars.push_back({.label = WithCounts(group.label, values.size(), non_finite),
                           .mean = spread.mean,
                           .low = spread.low,
                           .high = spread.high});
  }
  if (figure.bars.empty()) return Nothing(sweep, query, runs.size());
  return figure;
}

Result<Figure> MakePoints(const pb::Sweep& sweep, const std::vector<pb::Run>& runs,
                          const PlotQuery& query) {
  Figure figure;
  figure.kind = Figure::Kind::kPoints;
  figure.x_label = query.x;
  figure.y_label = query.metric;
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> groups, GroupRuns(sweep, runs, query.by));
  std::vector<std::pair<double, double>> all;
  for (const RunGroup& group : groups) {
    PointGroup points{.label = group.label, .points = {}};
    for (const pb::Run* run : group.runs) {
      const std::optional<double> x = NumberOf(sweep, *run, query.x);
      const std::optional<double> y = NumberOf(sweep, *run, query.metric);
      if (!x || !y || !std::isfinite(*x) || !std::isfinite(*y)) continue;
      points.points.push_back({.x = *x, .y = *y, .label = run->name()});
      all.emplace_back(*x, *y);
    }
    if (!points.points.empty()) figure.groups.push_back(std::move(points));
  }
  if (all.empty()) {
    return NotFound(StrCat("nothing to draw: none of the ", runs.size(), " chosen runs of ",
                           sweep.name(), " has finite values of ", query.x, " and ", query.metric));
  }
  if (query.kind == PlotKind::kPareto) {
    figure.front = ParetoFront(std::move(all), IsMaximized(sweep, query.metric));
  }
  return figure;
}

// Best finite value of the objective among the runs; the first run without one.
const pb::Run* BestRun(const pb::Sweep& sweep, const std::vector<const pb::Run*>& runs) {
  const std::string& metric = sweep.objective().metric();
  const bool is_maximized = IsMaximized(sweep, metric);
  const pb::Run* best = runs.front();
  double best_value = kNaN;
  for (const pb::Run* run : runs) {
    const double value = NumberOf(sweep, *run, metric).value_or(kNaN);
    if (!std::isfinite(value)) continue;
    if (std::isnan(best_value) || (is_maximized ? value > best_value : value < best_value)) {
      best = run;
      best_value = value;
    }
  }
  return best;
}

// The metric's mean over the runs of each place: columns are values of `query.x`, rows those of the
// other axes.
Result<Figure> MakeAxisMap(const pb::Sweep& sweep, const std::vector<pb::Run>& runs,
                           const PlotQuery& query) {
  std::vector<std::string> rows_by = query.by;
  std::erase(rows_by, query.x);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> rows, GroupRuns(sweep, runs, rows_by));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> columns,
                              GroupRuns(sweep, runs, {query.x}));
  Matrix matrix{.rows = rows.size(), .columns = columns.size()};
  for (const RunGroup& column : columns) matrix.column_labels.push_back(column.label);
  bool has_any = false;
  for (const RunGroup& row : rows) {
    matrix.row_labels.push_back(row.label);
    for (const RunGroup& column : columns) {
      std::vector<double> values;
      for (const pb::Run* run : row.runs) {
        if (std::ranges::find(column.runs, run) == column.runs.end()) continue;
        const double value = NumberOf(sweep, *run, query.metric).value_or(kNaN);
        if (std::isfinite(value)) values.push_back(value);
      }
      has_any = has_any || !values.empty();
      matrix.values.push_back(SpreadOf(values, Band::kNone).mean);
    }
  }
  if (!has_any) return Nothing(sweep, query, runs.size());
  Figure figure;
  figure.kind = Figure::Kind::kHeatMap;
  figure.x_label = AxisTitles({query.x}).front();
  figure.matrices.push_back(std::move(matrix));
  return figure;
}

// Experts have no order that seeds share, so that a mean over runs would level them: each group is
// shown by its best run.
Result<Figure> MakeLoadMap(Connection& connection, const pb::Sweep& sweep,
                           const std::vector<pb::Run>& runs, const PlotQuery& query) {
  Figure figure;
  figure.kind = Figure::Kind::kHeatMap;
  figure.x_label = "expert";
  figure.y_label = "layer";
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> groups, GroupRuns(sweep, runs, query.by));
  for (const RunGroup& group : groups) {
    std::vector<const pb::Run*> with_series;
    for (const pb::Run* run : group.runs) {
      if (FindSummary(*run, query.metric) != nullptr) with_series.push_back(run);
    }
    if (with_series.empty()) continue;
    const pb::Run& run = *BestRun(sweep, with_series);
    pb::GetCurveRequest request;
    request.set_run(run.id());
    request.set_series(query.metric);
    request.set_from_step(FindSummary(run, query.metric)->last_step());
    pb::GetCurveResponse page;
    SWITCHYARD_RETURN_IF_ERROR(connection.GetCurve(request, &page));
    if (page.points_size() == 0) continue;
    const pb::Point& last = page.points(page.points_size() - 1);
    if (page.shape_size() != 2 ||
        static_cast<uint64_t>(last.values_size()) != uint64_t{page.shape(0)} * page.shape(1)) {
      return InvalidArgument(StrCat("a heat map shows a series of layers and experts; ",
                                    query.metric, " of ", run.name(), " has ", page.shape_size(),
                                    " dimensions"));
    }
    Matrix matrix{.title = StrCat(group.label, ", ", run.name(), ", step ", last.step()),
                  .rows = page.shape(0),
                  .columns = page.shape(1),
                  .values = {last.values().begin(), last.values().end()}};
    figure.matrices.push_back(std::move(matrix));
  }
  if (figure.matrices.empty()) return Nothing(sweep, query, runs.size());
  return figure;
}

// Places of the runs on one axis, 0..1, and its ticks.
struct Dimension {
  ParallelAxis axis;
  std::vector<double> places;
};

Dimension NumericDimension(const std::string& name, const std::vector<double>& values) {
  Dimension out{.axis = {.name = name, .ticks = {}}, .places = {}};
  double low = kNaN;
  double high = kNaN;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::isnan(low) ? value : std::min(low, value);
    high = std::isnan(high) ? value : std::max(high, value);
  }
  const bool is_log = low > 0 && high / low > kLogRatio;
  const auto place = [&](double value) {
    if (!std::isfinite(value)) return kNaN;
    if (low == high) return 0.5;
    return is_log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  };
  for (const double value : values) out.places.push_back(place(value));
  if (std::isnan(low)) return out;
  const double middle = is_log ? std::sqrt(low * high) : low + (high - low) / 2;
  for (const double value : {low, middle, high}) {
    out.axis.ticks.emplace_back(place(value), FormatValue(value));
    if (low == high) break;
  }
  return out;
}

Dimension CategoricalDimension(const std::string& name, const std::vector<std::string>& texts) {
  Dimension out{.axis = {.name = name, .ticks = {}}, .places = {}};
  std::vector<std::string> distinct;
  for (const std::string& text : texts) {
    if (std::ranges::find(distinct, text) == distinct.end()) distinct.push_back(text);
  }
  const double last = std::max<double>(1, static_cast<double>(distinct.size()) - 1);
  for (const std::string& text : texts) {
    const auto at = std::ranges::find(distinct, text) - distinct.begin();
    out.places.push_back(distinct.size() == 1 ? 0.5 : static_cast<double>(at) / last);
  }
  const size_t stride = (distinct.size() + kCategoriesMax - 1) / kCategoriesMax;
  for (size_t i = 0; i < distinct.size(); i += stride) {
    out.axis.ticks.emplace_back(distinct.size() == 1 ? 0.5 : static_cast<double>(i) / last,
                                distinct[i].empty() ? "-" : distinct[i]);
  }
  return out;
}

Result<Figure> MakeParallel(const pb::Sweep& sweep, const std::vector<pb::Run>& runs,
                            const PlotQuery& query) {
  Figure figure;
  figure.kind = Figure::Kind::kParallel;
  figure.y_label = query.metric;
  std::vector<double> objective;
  size_t with_value = 0;
  for (const pb::Run& run : runs) {
    objective.push_back(NumberOf(sweep, run, query.metric).value_or(kNaN));
    with_value += std::isfinite(objective.back()) ? 1 : 0;
  }
  if (with_value == 0) return Nothing(sweep, query, runs.size());
  const std::vector<std::string> titles = AxisTitles(query.by);
  std::vector<Dimension> dimensions;
  for (size_t a = 0; a < query.by.size(); ++a) {
    std::vector<double> numbers;
    std::vector<std::string> texts;
    bool is_numeric = true;
    for (const pb::Run& run : runs) {
      const std::string* text = ColumnOf(run, query.by[a]);
      if (text == nullptr && query.by[a] != "seed" && query.by[a] != "step") {
        if (!HasAxis(sweep, query.by[a])) {
          return InvalidArgument(StrCat("--by ", query.by[a], " is no axis of ", sweep.name(),
                                        "; parallel coordinates are drawn over axes"));
        }
      }
      texts.push_back(text != nullptr ? *text : "");
      const std::optional<double> number = NumberOf(sweep, run, query.by[a]);
      numbers.push_back(number.value_or(kNaN));
      is_numeric = is_numeric && (number.has_value() || texts.back().empty());
    }
    dimensions.push_back(is_numeric ? NumericDimension(titles[a], numbers)
                                    : CategoricalDimension(titles[a], texts));
  }
  dimensions.push_back(NumericDimension(query.metric, objective));
  for (const Dimension& dimension : dimensions) figure.axes.push_back(dimension.axis);
  for (size_t r = 0; r < runs.size(); ++r) {
    ParallelLine line{.label = runs[r].name(), .places = {}, .color = objective[r]};
    if (!std::isfinite(line.color)) continue;
    for (const Dimension& dimension : dimensions) line.places.push_back(dimension.places[r]);
    figure.parallel.push_back(std::move(line));
  }
  return figure;
}

std::string BandText(Band band) {
  switch (band) {
    case Band::kNone:
      return "mean over runs";
    case Band::kSd:
      return "mean over runs, band: standard deviation";
    case Band::kRange:
      return "mean over runs, band: lowest to highest";
    case Band::kInterval:
      return "mean over runs, band: 95 % interval";
  }
  return {};
}

std::string TitleOf(const pb::Sweep& sweep, const PlotQuery& query) {
  switch (query.kind) {
    case PlotKind::kCurve:
    case PlotKind::kBar:
      return StrCat(sweep.name(), ": ", query.metric, " (", BandText(query.band), ")");
    case PlotKind::kScatter:
      return StrCat(sweep.name(), ": ", query.metric, " by ", query.x);
    case PlotKind::kPareto:
      return StrCat(sweep.name(), ": ", query.metric, " by ", query.x, ", Pareto front");
    case PlotKind::kHeatMap:
      return StrCat(sweep.name(), ": ", query.metric,
                    query.metric == kExpertLoad ? " (1: an even share)"
                    : query.x.empty()           ? ""
                                                : " (mean over runs)");
    case PlotKind::kParallel:
      return StrCat(sweep.name(), ": ", query.metric, " by axes");
  }
  return {};
}

}  // namespace

PlotQuery Completed(PlotQuery query, const pb::Sweep& sweep) {
  if (query.metric.empty()) {
    const bool is_load = query.kind == PlotKind::kHeatMap && query.x.empty();
    query.metric = is_load ? kExpertLoad : sweep.objective().metric();
  }
  if (query.x.empty()) {
    if (query.kind == PlotKind::kCurve) query.x = "step";
    if (query.kind == PlotKind::kScatter || query.kind == PlotKind::kPareto) {
      query.x = kParamsActive;
    }
  }
  if (query.by.empty()) query.by.assign(sweep.axes().begin(), sweep.axes().end());
  if (query.title.empty()) query.title = TitleOf(sweep, query);
  return query;
}

std::vector<std::string> SeriesNeeded(const PlotQuery& query, const pb::Sweep& sweep) {
  std::set<std::string> names = {query.metric, sweep.objective().metric()};
  if (query.kind == PlotKind::kCurve || query.x == "tokens" || query.x == "train.flops") {
    names.insert(kTrainTokens);
    names.insert(kFlopsPerToken);
  } else if (!query.x.empty() && !HasAxis(sweep, query.x)) {
    names.insert(query.x);
  }
  names.erase("");
  return {names.begin(), names.end()};
}

std::optional<double> NumberOf(const pb::Sweep& sweep, const pb::Run& run, std::string_view name) {
  if (const std::string* text = ColumnOf(run, name)) return ParseDouble(*text);
  if (name == "seed") return static_cast<double>(run.seed());
  if (name == "step") return static_cast<double>(run.step());
  if (name == "tokens") return LastOf(run, kTrainTokens);
  if (name == "wall_seconds" && run.started_ms() > 0 && run.ended_ms() > 0) {
    // A wall clock may have been set back meanwhile; no run takes less than no time.
    return static_cast<double>(std::max<int64_t>(0, run.ended_ms() - run.started_ms())) / 1000;
  }
  if (name == "train.flops") {
    const std::optional<double> tokens = LastOf(run, kTrainTokens);
    const std::optional<double> each = LastOf(run, kFlopsPerToken);
    if (!tokens || !each) return std::nullopt;
    return kForwardAndBackward * *tokens * *each;
  }
  const bool has_best = spec::SeriesDirection(name).has_value();
  const bool wants_last = sweep.objective().value() == pb::OBJECTIVE_VALUE_LAST;
  const Value value = PickValue(run, name, has_best && !wants_last ? Pick::kBest : Pick::kLast);
  const double* number = std::get_if<double>(&value.data);
  return number == nullptr ? std::nullopt : std::optional<double>(*number);
}

Result<std::vector<RunGroup>> GroupRuns(const pb::Sweep& sweep, const std::vector<pb::Run>& runs,
                                        const std::vector<std::string>& by) {
  static const std::set<std::string> kFields = {"router", "seed", "state", "run"};
  for (const std::string& name : by) {
    if (HasAxis(sweep, name) || kFields.contains(name)) continue;
    return InvalidArgument(StrCat("--by ", name, ": not known; there are router, seed, state, run",
                                  sweep.axes_size() > 0 ? " and the axes " : "",
                                  StrJoin({sweep.axes().begin(), sweep.axes().end()}, ", ")));
  }
  std::vector<RunGroup> groups;
  std::map<std::vector<std::string>, size_t> places;
  for (const pb::Run& run : runs) {
    std::vector<std::string> key;
    for (const std::string& name : by) {
      const std::string* text = ColumnOf(run, name);
      if (text != nullptr) {
        key.push_back(*text);
      } else if (name == "router") {
        key.push_back(run.router());
      } else if (name == "seed") {
        key.push_back(StrCat("seed ", run.seed()));
      } else if (name == "state") {
        key.push_back(StateText(run.state()));
      } else {
        key.push_back(name == "run" ? run.name() : "-");
      }
    }
    const auto [at, is_new] = places.try_emplace(key, groups.size());
    if (is_new)
      groups.push_back({.label = by.empty() ? sweep.name() : StrJoin(key, ", "), .runs = {}});
    groups[at->second].runs.push_back(&run);
  }
  return groups;
}

Spread SpreadOf(const std::vector<double>& values, Band band) {
  if (values.empty()) return {.mean = kNaN, .low = kNaN, .high = kNaN};
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  if (band == Band::kRange) {
    const auto [low, high] = std::ranges::minmax(values);
    return {.mean = mean, .low = low, .high = high};
  }
  if (band == Band::kNone || values.size() < 2) return {.mean = mean, .low = mean, .high = mean};
  double width = std::sqrt(squares / (n - 1));
  if (band == Band::kInterval) width *= stats::StudentQuantile(0.975, n - 1) / std::sqrt(n);
  return {.mean = mean, .low = mean - width, .high = mean + width};
}

std::vector<std::pair<double, double>> ParetoFront(std::vector<std::pair<double, double>> points,
                                                   bool y_is_maximized) {
  std::erase_if(points, [](const auto& point) {
    return !std::isfinite(point.first) || !std::isfinite(point.second);
  });
  std::ranges::sort(points, [&](const auto& a, const auto& b) {
    if (a.first != b.first) return a.first < b.first;
    return y_is_maximized ? a.second > b.second : a.second < b.second;
  });
  std::vector<std::pair<double, double>> front;
  for (const auto& point : points) {
    const bool is_better = front.empty() || (y_is_maximized ? point.second > front.back().second
                                                            : point.second < front.back().second);
    if (is_better) front.push_back(point);
  }
  return front;
}

Result<Figure> MakeFigure(Connection& connection, const pb::Sweep& sweep,
                          const std::vector<pb::Run>& runs, const PlotQuery& query,
                          const std::vector<CurveSet>& imported) {
  if (!imported.empty() && query.kind != PlotKind::kCurve) {
    return InvalidArgument("--with: imported curves are drawn beside curves only");
  }
  if (runs.empty())
    return NotFound(StrCat("nothing to draw: no run of ", sweep.name(), " is chosen"));
  Result<Figure> figure = [&]() -> Result<Figure> {
    switch (query.kind) {
      case PlotKind::kBar:
        return MakeBars(sweep, runs, query);
      case PlotKind::kScatter:
      case PlotKind::kPareto:
        return MakePoints(sweep, runs, query);
      case PlotKind::kHeatMap:
        return query.x.empty() ? MakeLoadMap(connection, sweep, runs, query)
                               : MakeAxisMap(sweep, runs, query);
      case PlotKind::kParallel:
        return MakeParallel(sweep, runs, query);
      case PlotKind::kCurve:
        break;
    }
    return MakeCurves(connection, sweep, runs, query, imported);
  }();
  if (!figure.ok()) return figure.status();
  figure->title = query.title;
  figure->has_log_x = query.has_log_x;
  figure->has_log_y = query.has_log_y;
  return figure;
}

}  // namespace switchyard::client
