#include <cmath>
#include <memory>
#include <set>

#include "client/commands/commands.h"
#include "client/commands/results_table.h"
#include "client/commands/sweep_reader.h"
#include "client/curves/curve_shelf.h"
#include "client/exit_code.h"
#include "client/plot/curve_lines.h"
#include "client/plot/figures.h"
#include "client/plot/gnuplot.h"
#include "client/report/comparison_section.h"
#include "client/report/html.h"
#include "client/report/pivot.h"
#include "client/report/report_page.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "switchyard/v1/admin_service.pb.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr size_t kDetailsMax = 500;  // runs whose attempts are on the page
constexpr size_t kMapsMax = 12;      // heat maps in one figure

PlotKind KindOf(pb::PlotKind kind) {
  switch (kind) {
    case pb::PLOT_KIND_SCATTER:
      return PlotKind::kScatter;
    case pb::PLOT_KIND_BAR:
      return PlotKind::kBar;
    case pb::PLOT_KIND_HEATMAP:
      return PlotKind::kHeatMap;
    default:
      return PlotKind::kCurve;
  }
}

Band BandOf(pb::PlotBand band) {
  switch (band) {
    case pb::PLOT_BAND_NONE:
      return Band::kNone;
    case pb::PLOT_BAND_CI:
      return Band::kInterval;
    case pb::PLOT_BAND_RANGE:
      return Band::kRange;
    default:
      return Band::kSd;
  }
}

// Two conditions together.
std::string Both(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return a + b;
  return StrCat("(", a, ") and (", b, ")");
}

// Collects what the page says, question by question.
class ReportMaker {
 public:
  ReportMaker(const Context& context, Connection& connection, const ReportOptions& options)
      : context_(context), connection_(connection), options_(options) {}

  Result<std::string> Make() {
    SWITCHYARD_RETURN_IF_ERROR(ReadSweep(connection_, options_.sweep, &sweep_));
    SWITCHYARD_RETURN_IF_ERROR(ReadImported());
    data_.sweep = &sweep_;
    data_.where = options_.where;
    data_.made_ms = UnixMilliseconds();
    data_.client_version = StrCat("switchyard ", kVersion, " (", kCommit, ")");
    pb::GetStatusResponse status;
    SWITCHYARD_RETURN_IF_ERROR(connection_.GetStatus({}, &status));
    data_.coordinator_version =
        StrCat("switchyard-coordinator ", status.version(), ", cluster ", status.cluster_id());
    SWITCHYARD_RETURN_IF_ERROR(
        ReadRuns(connection_, sweep_.id(), options_.where,
                 {sweep_.objective().metric(), kTokensPerSecond, kUsageEntropy, kParamsTotal,
                  kParamsActive, kAuditCausality},
                 &runs_));
    data_.runs = runs_.size();
    SWITCHYARD_RETURN_IF_ERROR(ReadDetails());
    SWITCHYARD_RETURN_IF_ERROR(AddResults());
    SWITCHYARD_RETURN_IF_ERROR(AddComparisons());
    SWITCHYARD_RETURN_IF_ERROR(AddFigures());
    return RenderReport(data_);
  }

 private:
  Status ReadImported() {
    if (options_.with.empty()) return OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(const CurveShelf shelf, CurveShelf::Open(context_.getenv));
    for (const std::string& name : options_.with) {
      SWITCHYARD_ASSIGN_OR_RETURN(CurveSet set, shelf.Get(name));
      imported_.push_back(std::move(set));
    }
    return OkStatus();
  }

  Status ReadDetails() {
    for (const pb::Run& run : runs_) {
      if (details_.size() == kDetailsMax) {
        data_.details_left_out = runs_.size() - kDetailsMax;
        break;
      }
      auto detail = std::make_unique<pb::RunDetail>();
      SWITCHYARD_RETURN_IF_ERROR(ReadDetail(connection_, run, detail.get()));
      for (const pb::SeriesSummary& series : detail->run().summary()) series_.insert(series.name());
      details_.push_back(std::move(detail));
      data_.details.push_back(details_.back().get());
    }
    return OkStatus();
  }

  std::vector<ResultMetric> Metrics() const {
    const Pick pick =
        sweep_.objective().value() == pb::OBJECTIVE_VALUE_LAST ? Pick::kLast : Pick::kBest;
    const std::string& objective = sweep_.objective().metric();
    std::vector<ResultMetric> metrics;
    if (!objective.empty())
      metrics.push_back({.series = objective, .title = objective, .pick = pick});
    metrics.push_back({.series = kTokensPerSecond, .title = "TOKENS/S", .pick = Pick::kLast});
    metrics.push_back({.series = kUsageEntropy, .title = "ENTROPY", .pick = Pick::kLast});
    metrics.push_back({.series = kParamsTotal, .title = "PARAMS", .pick = Pick::kLast});
    metrics.push_back({.series = kParamsActive, .title = "ACTIVE", .pick = Pick::kLast});
    if (series_.contains(kAuditCausality)) {
      metrics.push_back({.series = kAuditCausality, .title = "CAUSALITY", .pick = Pick::kLast});
    }
    return metrics;
  }

  Status AddResults() {
    if (sweep_.axes_size() > 0) SWITCHYARD_RETURN_IF_ERROR(AddCells());
    ResultTable table{.axes = {sweep_.axes().begin(), sweep_.axes().end()},
                      .metrics = Metrics(),
                      .is_maximized = sweep_.objective().goal() == pb::GOAL_MAXIMIZE,
                      .is_ordered = sweep_.objective().metric().empty(),
                      .rows = {}};
    for (const pb::Run& run : runs_) {
      ResultRow row{.name = run.name(),
                    .number = run.number(),
                    .seed = run.seed(),
                    .state = StateText(run.state()),
                    .attempts = run.attempts(),
                    .id = run.id(),
                    .columns = {},
                    .values = {}};
      for (const pb::AxisValue& column : run.columns()) {
        row.columns.emplace_back(column.axis(), column.value());
      }
      for (const ResultMetric& metric : table.metrics) {
        const Value value = PickValue(run, metric.series, metric.pick);
        const auto* number = std::get_if<double>(&value.data);
        row.values.push_back(number != nullptr ? std::optional<double>(*number) : std::nullopt);
      }
      table.rows.push_back(std::move(row));
    }
    data_.results.push_back({.title = "Runs, the best first",
                             .note = "",
                             .listing = RunResultsListing(std::move(table))});
    for (const pb::TableSpec& wanted : sweep_.spec().report().table()) {
      SWITCHYARD_RETURN_IF_ERROR(AddTable(wanted));
    }
    return OkStatus();
  }

  Status AddCells() {
    pb::GroupResultsRequest request;
    request.set_sweep(sweep_.id());
    request.set_filter(options_.where);
    const std::vector<ResultMetric> metrics = Metrics();
    for (const std::string& axis : sweep_.axes()) request.add_by(axis);
    for (const ResultMetric& metric : metrics) request.add_series(metric.series);
    pb::GroupResultsResponse response;
    SWITCHYARD_RETURN_IF_ERROR(connection_.GroupResults(request, &response));
    std::vector<GroupRow> rows;
    for (const pb::ResultGroup& group : response.groups()) {
      GroupRow row{.key = {}, .runs = group.runs(), .values = {}};
      for (const pb::AxisValue& key : group.key()) row.key.push_back(key.value());
      for (const pb::GroupValue& value : group.values()) {
        row.values.push_back({.n = value.n(),
                              .non_finite = value.non_finite(),
                              .mean = value.mean(),
                              .sd = value.sd(),
                              .best = value.best(),
                              .best_run = value.best_run() == 0
                                              ? ""
                                              : StrCat(sweep_.name(), "/", value.best_run())});
      }
      rows.push_back(std::move(row));
    }
    data_.results.push_back(
        {.title = "Cells",
         .note = "Mean ± sample standard deviation over runs with a finite value; n of runs.",
         .listing = GroupListing({sweep_.axes().begin(), sweep_.axes().end()}, metrics, rows)});
    return OkStatus();
  }

  // One of the tables that the sweep file asks for. What cannot be made is said in its place.
  Status AddTable(const pb::TableSpec& wanted) {
    const std::string metric =
        wanted.metric().empty() ? sweep_.objective().metric() : wanted.metric();
    std::vector<pb::Run> runs;
    SWITCHYARD_RETURN_IF_ERROR(
        ReadRuns(connection_, sweep_.id(), Both(options_.where, wanted.where()), {metric}, &runs));
    const Result<Listing> listing = PivotListing(sweep_, runs, wanted);
    data_.results.push_back(
        {.title =
             StrCat(metric, " by ", StrJoin({wanted.rows().begin(), wanted.rows().end()}, ", ")),
         .note = listing.ok() ? wanted.where() : listing.status().message(),
         .listing = listing.ok() ? *listing : Listing{}});
    return OkStatus();
  }

  // Every comparison that the sweep has registered. One that cannot be made says why.
  Status AddComparisons() {
    const auto& registered = sweep_.spec().report().compare();
    for (int i = 0; i < registered.size(); ++i) {
      pb::CompareRequest request;
      request.set_sweep(sweep_.id());
      request.set_registered(static_cast<uint32_t>(i) + 1);
      pb::CompareResponse response;
      const Status status = connection_.Compare(request, &response);
      if (status.ok()) {
        data_.comparisons.push_back(ComparisonSection(response));
        continue;
      }
      if (status.code() != Code::kInvalidArgument && status.code() != Code::kFailedPrecondition) {
        return status;
      }
      data_.comparisons.push_back(
          {.title = StrCat("Comparison ", i + 1, " by ", registered[i].by()),
           .sentences = {StrCat("No verdict: ", status.message())},
           .tables = {}});
    }
    return OkStatus();
  }

  // The usual figures where they have something to show, then those of the sweep file.
  Status AddFigures() {
    const std::string& objective = sweep_.objective().metric();
    const auto has = [&](const std::string& series) { return series_.contains(series); };
    if (has(objective)) {
      SWITCHYARD_RETURN_IF_ERROR(AddFigure({.metric = objective}, "", !imported_.empty()));
    }
    if (has(kTrainLoss) && objective != kTrainLoss) {
      SWITCHYARD_RETURN_IF_ERROR(AddFigure({.metric = kTrainLoss}, "", false));
    }
    if (has(objective) && sweep_.axes_size() > 0) {
      SWITCHYARD_RETURN_IF_ERROR(
          AddFigure({.kind = PlotKind::kBar, .metric = objective}, "", false));
    }
    if (has(objective) && sweep_.axes_size() > 1) {
      SWITCHYARD_RETURN_IF_ERROR(
          AddFigure({.kind = PlotKind::kParallel, .metric = objective}, "", false));
    }
    if (has(objective) && VariesInParameters()) {
      SWITCHYARD_RETURN_IF_ERROR(
          AddFigure({.kind = PlotKind::kPareto, .metric = objective}, "", false));
    }
    if (has(kUsageEntropy)) {
      SWITCHYARD_RETURN_IF_ERROR(AddFigure({.metric = kUsageEntropy}, "", false));
    }
    if (has(kExpertLoad)) {
      SWITCHYARD_RETURN_IF_ERROR(AddFigure({.kind = PlotKind::kHeatMap}, "", false));
    }
    for (const pb::PlotSpec& wanted : sweep_.spec().report().plot()) {
      SWITCHYARD_RETURN_IF_ERROR(AddFigure(QueryOf(wanted), wanted.where(), false));
    }
    return OkStatus();
  }

  static PlotQuery QueryOf(const pb::PlotSpec& wanted) {
    PlotQuery query{.kind = KindOf(wanted.kind()),
                    .metric = wanted.y(),
                    .x = wanted.x(),
                    .by = {wanted.by().begin(), wanted.by().end()},
                    .band = BandOf(wanted.band())};
    // Bars stand side by side along `x`.
    if (query.kind == PlotKind::kBar) query.by.insert(query.by.begin(), wanted.x());
    return query;
  }

  bool VariesInParameters() const {
    std::set<double> counts;
    for (const pb::Run& run : runs_) {
      const std::optional<double> count = NumberOf(sweep_, run, kParamsActive);
      if (count) counts.insert(*count);
    }
    return counts.size() > 1;
  }

  // A figure that cannot be drawn leaves its reason on the page; trouble with the coordinator ends
  // the report.
  Status AddFigure(const PlotQuery& asked, const std::string& where, bool with_imported) {
    const PlotQuery query = Completed(asked, sweep_);
    std::vector<pb::Run> runs;
    SWITCHYARD_RETURN_IF_ERROR(ReadRuns(connection_, sweep_.id(), Both(options_.where, where),
                                        SeriesNeeded(query, sweep_), &runs));
    Result<Figure> figure = MakeFigure(connection_, sweep_, runs, query,
                                       with_imported ? imported_ : std::vector<CurveSet>());
    ReportFigure& out = data_.figures.emplace_back();
    out.title = query.title;
    if (!figure.ok()) {
      if (figure.status().code() != Code::kNotFound &&
          figure.status().code() != Code::kInvalidArgument) {
        return figure.status();
      }
      out.note = figure.status().message();
      return OkStatus();
    }
    figure->title.clear();  // It stands below the figure.
    if (figure->matrices.size() > kMapsMax) {
      out.title += StrCat(" (the first ", kMapsMax, " of ", figure->matrices.size(), ")");
      figure->matrices.resize(kMapsMax);
    }
    const std::string name = StrCat("figure", data_.figures.size());
    const Result<std::string> svg = Svg(*figure, name);
    if (svg.ok()) {
      out.svg = *svg;
    } else {
      out.note = svg.status().message();
      if (!has_warned_) context_.Note(StrCat("without figures: ", svg.status().message()));
      has_warned_ = true;
    }
    return OkStatus();
  }

  static Result<std::string> Svg(const Figure& figure, const std::string& name) {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string picture, Draw(figure, {}));
    return InlineSvg(picture, name + "-");
  }

  const Context& context_;
  Connection& connection_;
  const ReportOptions& options_;
  pb::Sweep sweep_;
  std::vector<pb::Run> runs_;
  std::vector<std::unique_ptr<pb::RunDetail>> details_;
  std::set<std::string> series_;  // of the runs with details
  std::vector<CurveSet> imported_;
  ReportData data_;
  bool has_warned_ = false;
};

Status Report(const Context& context, const ReportOptions& options) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, context.Connect());
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string page,
                              ReportMaker(context, *connection, options).Make());
  if (options.html == "-") {
    context.Print(page);
    return OkStatus();
  }
  SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(options.html, page));
  context.Note(StrCat("written: ", options.html));
  return OkStatus();
}

}  // namespace

int RunReport(const Context& context, const ReportOptions& options) {
  const Status status = Report(context, options);
  return status.ok() ? kExitOk : context.Fail(status);
}

}  // namespace switchyard::client
