#include <algorithm>

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output/number.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

int ListLiveSweeps(const Context& context, Connection& connection, bool with_finished) {
  std::vector<pb::Sweep> sweeps;
  if (const Status status = ListSweeps(connection, with_finished, &sweeps); !status.ok()) {
    return context.Fail(status);
  }
  Listing listing;
  listing.columns = {{"name", "SWEEP"},
                     {"state", "STATE"},
                     {"project", "PROJECT"},
                     {"cells", "CELLS", Align::kRight},
                     {"runs", "RUNS", Align::kRight},
                     {"done", "DONE", Align::kRight},
                     {"active", "ACTIVE", Align::kRight},
                     {"queued", "QUEUED", Align::kRight},
                     {"succeeded", ""},
                     {"failed", "FAILED", Align::kRight},
                     {"cancelled", ""},
                     {"created_ms", "AGE", Align::kRight},
                     {"id", ""}};
  listing.empty_note = with_finished ? "no sweeps" : "no live sweeps (--all lists finished ones)";
  const int64_t now = UnixMilliseconds();
  for (const pb::Sweep& sweep : sweeps) {
    const pb::RunCounts& counts = sweep.counts();
    const uint64_t done =
        counts.succeeded() + counts.failed() + counts.cancelled() + counts.other();
    const uint64_t queued = counts.queued() + counts.waiting();
    const double share =
        sweep.runs() > 0 ? static_cast<double>(done) / static_cast<double>(sweep.runs()) : 1.0;
    listing.rows.push_back({{sweep.name(), {}},
                            {StateText(sweep.state()), {}},
                            {sweep.project(), {}},
                            {sweep.cells(), {}},
                            {sweep.runs(), {}},
                            {done, StrCat(done, " (", static_cast<int>(share * 100), "%)")},
                            {counts.active(), {}},
                            {queued, {}},
                            {counts.succeeded(), {}},
                            {counts.failed(), {}},
                            {counts.cancelled(), {}},
                            {sweep.created_ms(), AgeText(sweep.created_ms(), now)},
                            {sweep.id(), {}}});
  }
  context.Show(listing);
  return kExitOk;
}

// Axes and objective of what is listed: a column for each axis that any run has.
struct RunColumns {
  std::vector<std::string> axes;
  std::string metric;
};

Listing RunListing(const std::vector<pb::Run>& runs, const RunColumns& columns) {
  Listing listing;
  listing.columns = {{"name", "RUN"}, {"state", "STATE"}};
  const std::vector<std::string> titles = AxisTitles(columns.axes);
  for (size_t i = 0; i < columns.axes.size(); ++i) {
    listing.columns.push_back({columns.axes[i], titles[i]});
  }
  const std::vector<Column> rest = {{"seed", "SEED", Align::kRight},
                                    {"step", "STEP", Align::kRight},
                                    {"steps_total", ""},
                                    {columns.metric, columns.metric, Align::kRight},
                                    {"attempts", "ATTEMPTS", Align::kRight},
                                    {"router", ""},
                                    {"worker", ""},
                                    {"reason", "REASON"},
                                    {"id", ""}};
  listing.columns.insert(listing.columns.end(), rest.begin(), rest.end());
  listing.empty_note = "no runs";
  for (const pb::Run& run : runs) {
    std::vector<Cell> row = {{run.name(), {}}, {StateText(run.state()), {}}};
    for (const std::string& axis : columns.axes) {
      Cell cell;
      for (const pb::AxisValue& value : run.columns()) {
        if (value.axis() == axis) cell = {AxisCellValue(value.value()), value.value()};
      }
      row.push_back(std::move(cell));
    }
    const Value metric = PickValue(run, columns.metric, Pick::kBest);
    const auto* number = std::get_if<double>(&metric.data);
    const std::vector<Cell> tail = {{run.seed(), {}},
                                    {run.step(), StrCat(run.step(), "/", run.steps_total())},
                                    {run.steps_total(), {}},
                                    {metric, number != nullptr ? FormatValue(*number) : "-"},
                                    {static_cast<uint64_t>(run.attempts()), {}},
                                    {run.router(), {}},
                                    {run.worker(), {}},
                                    {run.reason(), {}},
                                    {run.id(), {}}};
    row.insert(row.end(), tail.begin(), tail.end());
    listing.rows.push_back(std::move(row));
  }
  return listing;
}

}  // namespace

int RunList(const Context& context, const ListOptions& options) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  if (options.sweep.empty()) {
    return ListLiveSweeps(context, connection, options.with_finished);
  }
  Selection selection;
  if (const Status status = Resolve(connection, {options.sweep}, &selection); !status.ok()) {
    return context.Fail(status);
  }
  std::vector<pb::Run> runs = std::move(selection.runs);
  RunColumns columns;
  // A terminal is not flooded with a big sweep; programs that read the output get all of it.
  constexpr uint64_t kTableRuns = 100;
  uint64_t limit = options.limit.value_or(context.is_for_people() ? kTableRuns : 0);
  if (limit == 0) limit = UINT64_MAX;
  for (const pb::Sweep& sweep : selection.sweeps) {
    pb::ListRunsRequest request;
    request.set_sweep(sweep.id());
    if (columns.metric.empty()) columns.metric = sweep.objective().metric();
    request.add_series(columns.metric);
    uint64_t total = 0;
    const Status status = ForEachRun(
        connection, request, [&](const pb::Run& run) { runs.push_back(run); }, limit, &total);
    if (!status.ok()) return context.Fail(status);
    if (total > limit) {
      context.Note(StrCat("the first ", limit, " of ", total, " runs of ", sweep.name(),
                          "; --limit 0 lists all"));
    }
  }
  for (const pb::Run& run : runs) {
    for (const pb::AxisValue& value : run.columns()) {
      if (std::find(columns.axes.begin(), columns.axes.end(), value.axis()) == columns.axes.end()) {
        columns.axes.push_back(value.axis());
      }
    }
  }
  if (columns.metric.empty()) columns.metric = kTrainLoss;
  context.Show(RunListing(runs, columns));
  return kExitOk;
}

}  // namespace switchyard::client
