#include <set>

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output/number.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

Status ListRunSeries(const Context& context, Connection& connection, const std::string& run) {
  pb::ListSeriesRequest request;
  request.set_run(run);
  pb::ListSeriesResponse response;
  SWITCHYARD_RETURN_IF_ERROR(connection.ListSeries(request, &response));
  Listing listing;
  listing.columns = {{"name", "SERIES"},
                     {"last", "LAST", Align::kRight},
                     {"last_step", "AT", Align::kRight},
                     {"best", "BEST", Align::kRight},
                     {"best_step", "AT", Align::kRight},
                     {"count", "POINTS", Align::kRight},
                     {"non_finite", "NOT FINITE", Align::kRight}};
  listing.empty_note = "no series yet";
  for (const pb::SeriesSummary& series : response.series()) {
    const bool has_best = series.has_best();
    listing.rows.push_back(
        {{series.name(), {}},
         {series.last(), FormatValue(series.last())},
         {series.last_step(), {}},
         {has_best ? Value(series.best()) : Value(), has_best ? FormatValue(series.best()) : "-"},
         {has_best ? Value(series.best_step()) : Value(),
          has_best ? std::to_string(series.best_step()) : "-"},
         {series.count(), {}},
         {series.non_finite(), {}}});
  }
  context.Show(listing);
  return OkStatus();
}

// Appends one attempt's points (0: the canonical curve).
Status AppendCurve(Connection& connection, pb::GetCurveRequest request, Listing* listing) {
  while (true) {
    pb::GetCurveResponse page;
    SWITCHYARD_RETURN_IF_ERROR(connection.GetCurve(request, &page));
    for (const pb::Point& point : page.points()) {
      Cell value{point.value(), FormatValue(point.value())};
      if (point.values_size() > 0) {
        Value::List values;
        std::string shown;
        for (const float item : point.values()) {
          values.emplace_back(static_cast<double>(item));
          shown += StrCat(shown.empty() ? "" : " ", FormatValue(static_cast<double>(item)));
        }
        value = {values, shown};
      }
      listing->rows.push_back({{point.step(), {}},
                               {point.ms(), FormatDuration(static_cast<double>(point.ms()) / 1000)},
                               {static_cast<uint64_t>(point.attempt()), {}},
                               std::move(value)});
    }
    if (page.next_page_token().empty()) return OkStatus();
    request.set_page_token(page.next_page_token());
  }
}

// The attempts to read: 0 for the canonical curve.
Result<std::vector<uint32_t>> Attempts(Connection& connection, const MetricsOptions& options,
                                       const std::string& run) {
  if (options.attempts.empty()) return std::vector<uint32_t>{0};
  if (options.attempts != "all") {
    const auto number = ParseUint64(options.attempts);
    if (!number.has_value() || *number == 0 || *number > UINT32_MAX) {
      return InvalidArgument(
          StrCat("--attempts ", options.attempts, ": expected a number from 1, or all"));
    }
    return std::vector<uint32_t>{static_cast<uint32_t>(*number)};
  }
  pb::GetRunRequest request;
  request.set_run(run);
  pb::RunDetail detail;
  SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(request, &detail));
  // After a restore two attempts may share an ordinal, which stands for the newer one.
  std::set<uint32_t> ordinals;
  for (const pb::Attempt& attempt : detail.attempts()) ordinals.insert(attempt.ordinal());
  return std::vector<uint32_t>(ordinals.begin(), ordinals.end());
}

}  // namespace

int RunMetrics(const Context& context, const MetricsOptions& options) {
  const Result<std::string> run = SingleRun(options.run);
  if (!run.ok()) return context.Fail(run.status());
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  if (options.series.empty()) {
    const Status status = ListRunSeries(context, connection, *run);
    return status.ok() ? kExitOk : context.Fail(status);
  }
  const Result<std::vector<uint32_t>> attempts = Attempts(connection, options, *run);
  if (!attempts.ok()) return context.Fail(attempts.status());
  Listing listing;
  listing.columns = {{"step", "STEP", Align::kRight},
                     {"ms", "TIME", Align::kRight},
                     {"attempt", "ATTEMPT", Align::kRight},
                     {options.series, options.series, Align::kRight}};
  listing.quiet_column = 3;
  listing.empty_note = StrCat("no points of ", options.series);
  for (const uint32_t attempt : *attempts) {
    pb::GetCurveRequest request;
    request.set_run(*run);
    request.set_series(options.series);
    request.set_attempt(attempt);
    request.set_from_step(options.from_step);
    request.set_max_points(options.points_max);
    if (const Status status = AppendCurve(connection, request, &listing); !status.ok()) {
      return context.Fail(status);
    }
  }
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
