#include <algorithm>
#include <optional>

#include "client/commands/commands.h"
#include "client/commands/results_table.h"
#include "client/exit_code.h"
#include "client/output/number.h"
#include "common/base/strings.h"
#include "common/spec/series.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr uint32_t kPageSize = 1000;
constexpr size_t kGroupedSeriesMax = 16;  // results_service.proto

// A loss or a score of the language model, which means something only with its verdict beside it.
bool IsOfLanguageModel(const std::string& series) {
  return series.starts_with("valid/") || series.starts_with("test/") ||
         series.starts_with("train/nats");
}

void AppendVerdict(std::vector<ResultMetric>* metrics) {
  bool is_wanted = false;
  for (const ResultMetric& metric : *metrics) {
    if (metric.series == kAuditCausality) return;
    is_wanted = is_wanted || IsOfLanguageModel(metric.series);
  }
  if (!is_wanted || metrics->size() >= kGroupedSeriesMax) return;
  metrics->push_back({.series = kAuditCausality, .title = "CAUSALITY", .pick = Pick::kLast});
}

// The asked series, and how the table heads and shows them.
std::vector<ResultMetric> Metrics(const ResultsOptions& options, const std::string& objective,
                                  Pick objective_pick) {
  const Pick pick = options.wants_best   ? Pick::kBest
                    : options.wants_last ? Pick::kLast
                                         : objective_pick;
  std::vector<ResultMetric> metrics;
  if (!options.metrics.empty()) {
    for (const std::string& series : options.metrics) {
      const bool has_best = spec::SeriesDirection(series).has_value();
      metrics.push_back({.series = series, .title = series, .pick = has_best ? pick : Pick::kLast});
    }
    AppendVerdict(&metrics);
    return metrics;
  }
  metrics.push_back({.series = objective, .title = objective, .pick = pick});
  metrics.push_back({.series = kTokensPerSecond, .title = "TOKENS/S", .pick = Pick::kLast});
  metrics.push_back({.series = kUsageEntropy, .title = "ENTROPY", .pick = Pick::kLast});
  metrics.push_back({.series = kParamsTotal, .title = "PARAMS", .pick = Pick::kLast});
  metrics.push_back({.series = kParamsActive, .title = "ACTIVE", .pick = Pick::kLast});
  AppendVerdict(&metrics);
  return metrics;
}

// ME3: "best" of a series that has no direction is not a question with an answer.
Status CheckDirections(const ResultsOptions& options, const std::string& objective) {
  if (!options.wants_best) return OkStatus();
  std::vector<std::string> asked = options.metrics;
  if (asked.empty()) asked.push_back(objective);
  for (const std::string& series : asked) {
    if (spec::SeriesDirection(series).has_value()) continue;
    return InvalidArgument(
        StrCat("--best: series ", series, " has no direction, so no best value; use --last"));
  }
  return OkStatus();
}

ResultRow FromRun(const pb::Run& run, const std::vector<ResultMetric>& metrics) {
  ResultRow row{.name = run.name(),
                .number = run.number(),
                .seed = run.seed(),
                .state = StateText(run.state()),
                .attempts = run.attempts(),
                .id = run.id()};
  for (const pb::AxisValue& column : run.columns()) {
    row.columns.emplace_back(column.axis(), column.value());
  }
  for (const ResultMetric& metric : metrics) {
    const Value value = PickValue(run, metric.series, metric.pick);
    const auto* number = std::get_if<double>(&value.data);
    row.values.push_back(number != nullptr ? std::optional<double>(*number) : std::nullopt);
  }
  return row;
}

// The series that --sort stands for where it is one, with its own direction; else the expression.
// Without --sort the first metric, the best first.
void SetOrder(const ResultsOptions& options, const ResultTable& table,
              pb::ListResultsRequest* request) {
  if (options.sort.empty()) {
    const ResultMetric& metric = table.metrics.front();
    request->set_order_by(
        StrCat(metric.pick == Pick::kBest ? "best(" : "last(", metric.series, ")"));
    request->set_descending(table.is_maximized);
    return;
  }
  request->set_order_by(options.sort);
  bool descending = options.descending;
  if (spec::SeriesDirection(options.sort) == spec::Direction::kMaximize ||
      (options.sort == table.metrics.front().series && table.is_maximized)) {
    descending = !descending;
  }
  request->set_descending(descending);
}

Status ListRows(Connection& connection, const ResultsOptions& options, const pb::Sweep& sweep,
                ResultTable* table) {
  pb::ListResultsRequest request;
  request.set_sweep(sweep.id());
  request.set_filter(options.where);
  request.set_page_size(kPageSize);
  // All rows are ordered here; of a few first ones the coordinator knows which.
  if (!options.sort.empty() || options.limit > 0) {
    SetOrder(options, *table, &request);
    table->is_ordered = true;
    if (options.limit > 0 && options.limit < kPageSize) {
      request.set_page_size(static_cast<uint32_t>(options.limit));
    }
  }
  for (const ResultMetric& metric : table->metrics) request.add_series(metric.series);
  while (true) {
    pb::ListResultsResponse page;
    SWITCHYARD_RETURN_IF_ERROR(connection.ListResults(request, &page));
    for (const pb::Run& run : page.runs()) table->rows.push_back(FromRun(run, table->metrics));
    const bool has_enough = options.limit > 0 && table->rows.size() >= options.limit;
    if (has_enough || page.next_page_token().empty()) return OkStatus();
    request.set_page_token(page.next_page_token());
  }
}

Result<Listing> Grouped(Connection& connection, const ResultsOptions& options,
                        const pb::Sweep& sweep, const ResultTable& table) {
  if (!options.sort.empty()) {
    return InvalidArgument(
        "--sort orders runs; groups are ordered by the mean of the first --metric");
  }
  std::vector<std::string> by = options.by;
  if (by.size() == 1 && by.front() == "cell") by = table.axes;
  pb::GroupResultsRequest request;
  request.set_sweep(sweep.id());
  request.set_filter(options.where);
  for (const std::string& name : by) request.add_by(name);
  for (const ResultMetric& metric : table.metrics) request.add_series(metric.series);
  request.set_value(options.wants_best   ? pb::OBJECTIVE_VALUE_BEST
                    : options.wants_last ? pb::OBJECTIVE_VALUE_LAST
                                         : pb::OBJECTIVE_VALUE_UNSPECIFIED);
  pb::GroupResultsResponse response;
  SWITCHYARD_RETURN_IF_ERROR(connection.GroupResults(request, &response));
  std::vector<GroupRow> rows;
  for (const pb::ResultGroup& group : response.groups()) {
    GroupRow row{.runs = group.runs()};
    for (const pb::AxisValue& key : group.key()) row.key.push_back(key.value());
    for (const pb::GroupValue& value : group.values()) {
      row.values.push_back(
          {.n = value.n(),
           .non_finite = value.non_finite(),
           .mean = value.mean(),
           .sd = value.sd(),
           .best = value.best(),
           .best_run = value.best_run() == 0 ? "" : StrCat(sweep.name(), "/", value.best_run())});
    }
    if (row.values.size() != table.metrics.size() || row.key.size() != by.size()) {
      return Internal("the coordinator's groups do not fit the question");
    }
    rows.push_back(std::move(row));
  }
  return GroupListing(by, table.metrics, rows);
}

}  // namespace

int RunResults(const Context& context, const ResultsOptions& options) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  Selection selection;
  if (const Status status = Resolve(connection, {options.sweep}, &selection); !status.ok()) {
    return context.Fail(status);
  }
  if (selection.sweeps.size() != 1) {
    return context.Fail(InvalidArgument(
        StrCat("results are of one sweep; \"", options.sweep, "\" is not one sweep")));
  }
  const pb::Sweep& sweep = selection.sweeps.front();
  const std::string& objective = sweep.objective().metric();
  if (const Status status = CheckDirections(options, objective); !status.ok()) {
    return context.Fail(status);
  }
  const Pick pick =
      sweep.objective().value() == pb::OBJECTIVE_VALUE_LAST ? Pick::kLast : Pick::kBest;
  ResultTable table;
  table.metrics = Metrics(options, objective, pick);
  table.axes.assign(sweep.axes().begin(), sweep.axes().end());
  table.is_maximized =
      table.metrics.front().series == objective
          ? sweep.objective().goal() == pb::GOAL_MAXIMIZE
          : spec::SeriesDirection(table.metrics.front().series) == spec::Direction::kMaximize;

  Listing listing;
  if (options.by.empty() || (options.by.size() == 1 && options.by.front() == "run")) {
    if (const Status status = ListRows(connection, options, sweep, &table); !status.ok()) {
      return context.Fail(status);
    }
    listing = RunResultsListing(std::move(table));
  } else {
    Result<Listing> grouped = Grouped(connection, options, sweep, table);
    if (!grouped.ok()) return context.Fail(grouped.status());
    listing = *std::move(grouped);
  }
  if (options.limit > 0 && listing.rows.size() > options.limit) listing.rows.resize(options.limit);
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
