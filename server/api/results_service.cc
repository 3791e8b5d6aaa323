#include "server/api/results_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "common/base/strings.h"
#include "server/api/call.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "switchyard/v1/results_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr int kSeriesMax = 64;

Status List(store::ReadStore& store, const pb::ListResultsRequest& request,
            pb::ListResultsResponse* response) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/false));
  store::RunFilter filter{.sweep = sweep.row.id,
                          .states = {},
                          .series = {request.series().begin(), request.series().end()}};
  SWITCHYARD_ASSIGN_OR_RETURN(
      const store::RunPage page,
      store.ListRuns(filter, request.page_token(), PageSize(request.page_size(), 100, 1000)));
  for (const store::RunInfo& run : page.runs) ToProto(run, response->add_runs());
  response->set_next_page_token(page.next);
  response->set_total(page.total);
  return OkStatus();
}

Status Curve(store::ReadStore& store, const pb::GetCurveRequest& request,
             pb::GetCurveResponse* response) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(request.run()));
  SWITCHYARD_ASSIGN_OR_RETURN(
      const store::CurvePage page,
      store.GetCurve({.run = run.row.id,
                      .series = request.series(),
                      .attempt = request.attempt(),
                      .from_step = request.from_step(),
                      .page = request.page_token(),
                      .limit = PageSize(request.page_size(), 10000, 100000)}));
  for (const store::CurvePoint& point : page.points) {
    pb::Point* one = response->add_points();
    one->set_step(point.step);
    one->set_ms(point.ms);
    one->set_value(point.value);
    one->set_attempt(point.attempt);
    if (page.is_vector) {
      one->mutable_values()->Add(point.values.begin(), point.values.end());
    }
  }
  for (const uint32_t size : page.shape) response->add_shape(size);
  response->set_next_page_token(page.next);
  return OkStatus();
}

Status Series(store::ReadStore& store, const pb::ListSeriesRequest& request,
              pb::ListSeriesResponse* response) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(request.run()));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::SummaryRow> rows,
                              store.ListSummaries(run.row.id));
  for (const scheduler::SummaryRow& row : rows) ToProto(row, response->add_series());
  return OkStatus();
}

class ResultsService final : public pb::ResultsService::CallbackService {
 public:
  explicit ResultsService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListResults(grpc::CallbackServerContext* context,
                                        const pb::ListResultsRequest* request,
                                        pb::ListResultsResponse* response) override;
  grpc::ServerUnaryReactor* GetCurve(grpc::CallbackServerContext* context,
                                     const pb::GetCurveRequest* request,
                                     pb::GetCurveResponse* response) override;
  grpc::ServerUnaryReactor* ListSeries(grpc::CallbackServerContext* context,
                                       const pb::ListSeriesRequest* request,
                                       pb::ListSeriesResponse* response) override;

 private:
  const ServiceContext context_;
};

grpc::ServerUnaryReactor* ResultsService::ListResults(grpc::CallbackServerContext* context,
                                                      const pb::ListResultsRequest* request,
                                                      pb::ListResultsResponse* response) {
  CallPtr call = context_.Start(context, Method::kListResults);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  if (request->series_size() > kSeriesMax) {
    call->Finish(InvalidArgument(StrCat("at most ", kSeriesMax, " series are listed")));
    return reactor;
  }
  context_.readers->Post([call, request, response](Result<store::ReadStore*> store) {
    call->Finish(store.ok() ? List(**store, *request, response) : store.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* ResultsService::GetCurve(grpc::CallbackServerContext* context,
                                                   const pb::GetCurveRequest* request,
                                                   pb::GetCurveResponse* response) {
  return context_.Read(context, Method::kGetCurve, [request, response](store::ReadStore& store) {
    return Curve(store, *request, response);
  });
}

grpc::ServerUnaryReactor* ResultsService::ListSeries(grpc::CallbackServerContext* context,
                                                     const pb::ListSeriesRequest* request,
                                                     pb::ListSeriesResponse* response) {
  return context_.Read(context, Method::kListSeries, [request, response](store::ReadStore& store) {
    return Series(store, *request, response);
  });
}

}  // namespace

std::unique_ptr<grpc::Service> MakeResultsService(const ServiceContext& context) {
  return std::make_unique<ResultsService>(context);
}

}  // namespace switchyard::api
