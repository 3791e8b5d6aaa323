#include <algorithm>
#include <map>

#include "client/commands/commands.h"
#include "client/commands/sweep_reader.h"
#include "client/curves/curve_shelf.h"
#include "client/exit_code.h"
#include "client/plot/figures.h"
#include "client/plot/gnuplot.h"
#include "client/plot/terminal_chart.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr size_t kNarrowestCells = 40;
constexpr size_t kLowestCells = 12;

// What the words of the command line stand for; CLI11 has checked them.
PlotKind KindOf(const std::string& word) {
  static const std::map<std::string, PlotKind> kinds = {
      {"curve", PlotKind::kCurve},     {"bar", PlotKind::kBar},
      {"scatter", PlotKind::kScatter}, {"pareto", PlotKind::kPareto},
      {"heatmap", PlotKind::kHeatMap}, {"parallel", PlotKind::kParallel}};
  return kinds.at(word);
}

Band BandOf(const std::string& word) {
  static const std::map<std::string, Band> bands = {
      {"none", Band::kNone}, {"sd", Band::kSd}, {"range", Band::kRange}, {"ci", Band::kInterval}};
  return bands.at(word);
}

// The points that a figure shows, for -o json and csv.
Listing PointsOf(const Figure& figure) {
  Listing listing;
  const auto columns = [&](std::vector<const char*> names) {
    for (const char* name : names) listing.columns.push_back({name, name, Align::kRight});
    listing.columns.front().align = Align::kLeft;
  };
  switch (figure.kind) {
    case Figure::Kind::kCurves:
      columns({"line", "x", "mean", "low", "high"});
      for (const BandLine& line : figure.lines) {
        for (const BandPoint& point : line.points) {
          listing.rows.push_back({{line.label, {}},
                                  {point.x, {}},
                                  {point.mean, {}},
                                  {point.low, {}},
                                  {point.high, {}}});
        }
      }
      break;
    case Figure::Kind::kPoints:
      columns({"run", "group", "x", "y", "is_on_front"});
      for (const PointGroup& group : figure.groups) {
        for (const LabelledPoint& point : group.points) {
          const bool is_on_front =
              std::ranges::find(figure.front, std::pair(point.x, point.y)) != figure.front.end();
          listing.rows.push_back({{point.label, {}},
                                  {group.label, {}},
                                  {point.x, {}},
                                  {point.y, {}},
                                  {is_on_front, {}}});
        }
      }
      break;
    case Figure::Kind::kBars:
      columns({"group", "mean", "low", "high"});
      for (const Bar& bar : figure.bars) {
        listing.rows.push_back({{bar.label, {}}, {bar.mean, {}}, {bar.low, {}}, {bar.high, {}}});
      }
      break;
    case Figure::Kind::kHeatMap:
      columns({"map", "row", "column", "value"});
      for (const Matrix& matrix : figure.matrices) {
        for (uint64_t i = 0; i < matrix.values.size(); ++i) {
          const uint64_t row = i / matrix.columns;
          const uint64_t column = i % matrix.columns;
          listing.rows.push_back(
              {{matrix.title, {}},
               {matrix.row_labels.empty() ? std::to_string(row) : matrix.row_labels[row], {}},
               {matrix.column_labels.empty() ? std::to_string(column)
                                             : matrix.column_labels[column],
                {}},
               {matrix.values[i], {}}});
        }
      }
      break;
    case Figure::Kind::kParallel:
      columns({"run"});
      for (const ParallelAxis& axis : figure.axes) {
        listing.columns.push_back({axis.name, axis.name, Align::kRight});
      }
      for (const ParallelLine& line : figure.parallel) {
        std::vector<Cell>& row = listing.rows.emplace_back(1 + line.places.size());
        row[0].value = line.label;
        for (size_t i = 0; i < line.places.size(); ++i) row[i + 1].value = line.places[i];
      }
      break;
  }
  return listing;
}

void ShowOnTerminal(const Context& context, const Figure& figure) {
  const TerminalSize size = context.console.size();
  context.Print(RenderChart(figure, {.columns = std::max<size_t>(kNarrowestCells, size.columns),
                                     .rows = std::max<size_t>(kLowestCells, size.rows - 2),
                                     .has_color = context.console.has_color}));
}

Status WritePicture(const Context& context, const Figure& figure, const std::string& file,
                    Canvas::Kind kind) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string picture, Draw(figure, {.kind = kind}));
  SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(file, picture));
  context.Note(StrCat("written: ", file));
  return OkStatus();
}

Status Plot(const Context& context, const PlotOptions& options) {
  const bool is_png = options.out.ends_with(".png");
  if (!options.out.empty() && !is_png && !options.out.ends_with(".svg")) {
    return InvalidArgument(StrCat("--out ", options.out, ": a name that ends in .svg or .png"));
  }
  std::vector<CurveSet> imported;
  if (!options.with.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(const CurveShelf shelf, CurveShelf::Open(context.getenv));
    for (const std::string& name : options.with) {
      SWITCHYARD_ASSIGN_OR_RETURN(CurveSet set, shelf.Get(name));
      imported.push_back(std::move(set));
    }
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, context.Connect());
  pb::Sweep sweep;
  SWITCHYARD_RETURN_IF_ERROR(ReadSweep(*connection, options.sweep, &sweep));
  const PlotQuery query = Completed({.kind = KindOf(options.kind),
                                     .metric = options.metric,
                                     .x = options.x,
                                     .by = options.by,
                                     .band = BandOf(options.band),
                                     .title = options.title,
                                     .has_log_x = options.has_log_x,
                                     .has_log_y = options.has_log_y},
                                    sweep);
  std::vector<pb::Run> runs;
  SWITCHYARD_RETURN_IF_ERROR(
      ReadRuns(*connection, sweep.id(), options.where, SeriesNeeded(query, sweep), &runs));
  SWITCHYARD_ASSIGN_OR_RETURN(const Figure figure,
                              MakeFigure(*connection, sweep, runs, query, imported));
  if (!options.out.empty()) {
    return WritePicture(context, figure, options.out,
                        is_png ? Canvas::Kind::kPng : Canvas::Kind::kSvg);
  }
  if (context.is_for_people()) {
    ShowOnTerminal(context, figure);
  } else {
    context.Show(PointsOf(figure));
  }
  return OkStatus();
}

}  // namespace

int RunPlot(const Context& context, const PlotOptions& options) {
  const Status status = Plot(context, options);
  return status.ok() ? kExitOk : context.Fail(status);
}

}  // namespace switchyard::client
