#include "client/commands/sweep_reader.h"

#include "client/commands/runs.h"
#include "common/base/strings.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr uint32_t kRunsPerPage = 1000;
constexpr uint32_t kPointsPerPage = 20'000;

}  // namespace

Status ReadSweep(Connection& connection, const std::string& selector, pb::Sweep* sweep) {
  Selection selection;
  SWITCHYARD_RETURN_IF_ERROR(Resolve(connection, {selector}, &selection));
  if (selection.sweeps.size() != 1 || !selection.runs.empty()) {
    return InvalidArgument(
        StrCat("\"", selector, "\" is not one sweep; a sweep is NAME, last, or its id"));
  }
  pb::GetSweepRequest request;
  request.set_sweep(selection.sweeps.front().id());
  return connection.GetSweep(request, sweep);
}

Result<bool> ReadRunOrSweep(Connection& connection, const Selector& selector, const std::string& id,
                            pb::RunDetail* run, pb::Sweep* sweep) {
  const Result<std::string> single = SingleRun(id);
  if (single.ok()) {
    pb::GetRunRequest request;
    request.set_run(*single);
    const Status status = connection.GetRun(request, run);
    if (status.ok()) return true;
    if (selector.kind != Selector::Kind::kId || status.code() != Code::kNotFound) return status;
  } else if (selector.kind != Selector::Kind::kSweep) {
    return single.status();
  }
  pb::GetSweepRequest request;
  request.set_sweep(selector.kind == Selector::Kind::kId ? selector.id : selector.sweep);
  SWITCHYARD_RETURN_IF_ERROR(connection.GetSweep(request, sweep));
  return false;
}

Status ReadRuns(Connection& connection, const std::string& sweep_id, const std::string& where,
                const std::vector<std::string>& series, std::vector<pb::Run>* runs) {
  pb::ListResultsRequest request;
  request.set_sweep(sweep_id);
  request.set_filter(where);
  request.set_page_size(kRunsPerPage);
  for (const std::string& name : series) request.add_series(name);
  while (true) {
    pb::ListResultsResponse page;
    SWITCHYARD_RETURN_IF_ERROR(connection.ListResults(request, &page));
    runs->insert(runs->end(), page.runs().begin(), page.runs().end());
    if (page.next_page_token().empty()) return OkStatus();
    request.set_page_token(page.next_page_token());
  }
}

Status ReadDetail(Connection& connection, const pb::Run& run, pb::RunDetail* detail) {
  pb::GetRunRequest request;
  request.set_run(run.id());
  SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(request, detail));
  pb::ListSeriesRequest series_request;
  series_request.set_run(run.id());
  pb::ListSeriesResponse series;
  SWITCHYARD_RETURN_IF_ERROR(connection.ListSeries(series_request, &series));
  *detail->mutable_run() = run;
  *detail->mutable_run()->mutable_summary() = series.series();
  return OkStatus();
}

Status ReadCurve(Connection& connection, const std::string& run_id, const std::string& series,
                 uint32_t points_max,
                 const std::function<Status(const pb::GetCurveResponse&)>& visit) {
  pb::GetCurveRequest request;
  request.set_run(run_id);
  request.set_series(series);
  request.set_page_size(kPointsPerPage);
  request.set_max_points(points_max);
  while (true) {
    pb::GetCurveResponse page;
    const Status status = connection.GetCurve(request, &page);
    if (status.code() == Code::kNotFound) return OkStatus();
    SWITCHYARD_RETURN_IF_ERROR(status);
    if (page.points_size() > 0) SWITCHYARD_RETURN_IF_ERROR(visit(page));
    if (page.next_page_token().empty()) return OkStatus();
    request.set_page_token(page.next_page_token());
  }
}

}  // namespace switchyard::client
