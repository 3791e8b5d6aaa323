#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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

// The asked series, and how the table heads and shows them.
std::vector<ResultMetric> Metrics(const ResultsOptions& options, const std::string& objective,
                                  Pick objective_pick) {
  const Pick pick = options.wants_best   ? Pick::kBest
                    : options.wants_last ? Pick::kLast
                                         : objective_pick;
  std::vector<ResultMetric> metrics;
  if (!options.metrics.empty()) {
    for (const std::string& series : options.metrics) {
      const bool has_best = spec::SeriesDirection(series).has_value() || series == objective;
      metrics.push_back({.series = series, .title = series, .pick = has_best ? pick : Pick::kLast});
    }
    return metrics;
  }
  metrics.push_back({.series = objective, .title = objective, .pick = pick});
  metrics.push_back({.series = kTokensPerSecond, .title = "TOKENS/S", .pick = Pick::kLast});
  metrics.push_back({.series = kUsageEntropy, .title = "ENTROPY", .pick = Pick::kLast});
  metrics.push_back({.series = kParamsTotal, .title = "PARAMS", .pick = Pick::kLast});
  metrics.push_back({.series = kParamsActive, .title = "ACTIVE", .pick = Pick::kLast});
  return metrics;
}

// ME3: "best" of a series that has no direction is not a question with an answer.
Status CheckDirections(const ResultsOptions& options, const std::string& objective) {
  if (!options.wants_best) return OkStatus();
  for (const std::string& series : options.metrics) {
    if (series == objective || spec::SeriesDirection(series).has_value()) continue;
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
  table.is_maximized = sweep.objective().goal() == pb::GOAL_MAXIMIZE;

  pb::ListResultsRequest request;
  request.set_sweep(sweep.id());
  request.set_page_size(kPageSize);
  for (const ResultMetric& metric : table.metrics) request.add_series(metric.series);
  while (true) {
    pb::ListResultsResponse page;
    if (const Status status = connection.ListResults(request, &page); !status.ok()) {
      return context.Fail(status);
    }
    for (const pb::Run& run : page.runs()) table.rows.push_back(FromRun(run, table.metrics));
    if (page.next_page_token().empty()) break;
    request.set_page_token(page.next_page_token());
  }
  context.Show(options.group_by == GroupBy::kCell ? CellResults(std::move(table))
                                                  : RunResultsListing(std::move(table)));
  return kExitOk;
}

}  // namespace switchyard::client
