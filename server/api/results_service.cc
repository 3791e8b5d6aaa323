#include "server/api/results_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <utility>

#include "common/base/strings.h"
#include "server/api/call.h"
#include "server/api/compare.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "server/results/order_cache.h"
#include "server/results/query.h"
#include "server/results/thin.h"
#include "switchyard/v1/results_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr int kSeriesMax = 64;
constexpr size_t kCurvePageMax = 100'000;
constexpr size_t kThinnedPointsMax = 10'000'000;

Status List(store::ReadStore& store, results::OrderCache* cache,
            const pb::ListResultsRequest& request, pb::ListResultsResponse* response) {
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.filter(), "filter"));
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.order_by(), "order_by"));
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/false));
  SWITCHYARD_ASSIGN_OR_RETURN(
      const store::RunPage page,
      results::ListRuns(store, sweep,
                        {.series = {request.series().begin(), request.series().end()},
                         .filter = request.filter(),
                         .order_by = request.order_by(),
                         .descending = request.descending(),
                         .page = request.page_token(),
                         .limit = PageSize(request.page_size(), 100, 1000),
                         .cache = cache}));
  for (const store::RunInfo& run : page.runs) ToProto(run, response->add_runs());
  response->set_next_page_token(page.next);
  response->set_total(page.total);
  return OkStatus();
}

std::optional<results::Pick> PickOf(pb::ObjectiveValue value) {
  switch (value) {
    case pb::OBJECTIVE_VALUE_BEST:
      return results::Pick::kBest;
    case pb::OBJECTIVE_VALUE_LAST:
      return results::Pick::kLast;
    default:
      return std::nullopt;
  }
}

Status GroupThem(store::ReadStore& store, const pb::GroupResultsRequest& request,
                 pb::GroupResultsResponse* response) {
  SWITCHYARD_RETURN_IF_ERROR(CheckText(request.filter(), "filter"));
  for (const std::string& name : request.by()) SWITCHYARD_RETURN_IF_ERROR(CheckText(name, "by"));
  SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo sweep,
                              store.FindSweep(request.sweep(), /*with_spec=*/false));
  SWITCHYARD_ASSIGN_OR_RETURN(
      const results::GroupResult result,
      results::GroupRuns(store, sweep,
                         {.filter = request.filter(),
                          .by = {request.by().begin(), request.by().end()},
                          .series = {request.series().begin(), request.series().end()},
                          .pick = PickOf(request.value())}));
  response->set_runs(result.runs);
  for (const results::Group& group : result.groups) {
    pb::ResultGroup* out = response->add_groups();
    for (int i = 0; i < request.by_size(); ++i) {
      pb::AxisValue* key = out->add_key();
      key->set_axis(request.by(i));
      key->set_value(group.key[static_cast<size_t>(i)]);
    }
    out->set_runs(group.runs);
    out->set_succeeded(group.succeeded);
    for (int i = 0; i < request.series_size(); ++i) {
      const results::GroupValue& value = group.values[static_cast<size_t>(i)];
      pb::GroupValue* one = out->add_values();
      one->set_series(request.series(i));
      one->set_n(value.n);
      one->set_non_finite(value.non_finite);
      one->set_mean(value.mean);
      one->set_sd(value.sd);
      one->set_best(value.best);
      one->set_best_run(value.best_run);
    }
  }
  return OkStatus();
}

void FillCurve(const store::CurvePage& page, pb::GetCurveResponse* response) {
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
}

// The whole curve, down-sampled.
Status ThinCurve(store::ReadStore& store, store::CurveQuery query, size_t max_points,
                 pb::GetCurveResponse* response) {
  if (max_points < results::kThinPointsMin) {
    return InvalidArgument(
        StrCat("max_points: ", max_points, ", at least ", results::kThinPointsMin, " are given"));
  }
  query.page.clear();
  query.limit = kCurvePageMax;
  store::CurvePage whole;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(store::CurvePage page, store.GetCurve(query));
    if (page.is_vector) {
      return InvalidArgument(StrCat("max_points: ", EscapeForTerminal(query.series),
                                    " has several values a point; only scalars are thinned"));
    }
    whole.points.insert(whole.points.end(), page.points.begin(), page.points.end());
    if (whole.points.size() > kThinnedPointsMax) {
      return ResourceExhausted(StrCat("max_points: the curve has more than ", kThinnedPointsMax,
                                      " points; ask from a later step"));
    }
    if (page.next.empty()) break;
    query.page = page.next;
  }
  whole.points = results::Thin(std::move(whole.points), max_points);
  FillCurve(whole, response);
  return OkStatus();
}

Status Curve(store::ReadStore& store, const pb::GetCurveRequest& request,
             pb::GetCurveResponse* response) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunInfo run, store.FindRun(request.run()));
  store::CurveQuery query{.run = run.row.id,
                          .series = request.series(),
                          .attempt = request.attempt(),
                          .from_step = request.from_step(),
                          .page = request.page_token(),
                          .limit = PageSize(request.page_size(), 10000, kCurvePageMax)};
  if (request.max_points() > 0) {
    return ThinCurve(store, std::move(query), request.max_points(), response);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const store::CurvePage page, store.GetCurve(query));
  FillCurve(page, response);
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
  grpc::ServerUnaryReactor* GroupResults(grpc::CallbackServerContext* context,
                                         const pb::GroupResultsRequest* request,
                                         pb::GroupResultsResponse* response) override;
  grpc::ServerUnaryReactor* Compare(grpc::CallbackServerContext* context,
                                    const pb::CompareRequest* request,
                                    pb::CompareResponse* response) override;
  grpc::ServerUnaryReactor* EstimatePower(grpc::CallbackServerContext* context,
                                          const pb::EstimatePowerRequest* request,
                                          pb::EstimatePowerResponse* response) override;
  grpc::ServerUnaryReactor* GetCurve(grpc::CallbackServerContext* context,
                                     const pb::GetCurveRequest* request,
                                     pb::GetCurveResponse* response) override;
  grpc::ServerUnaryReactor* ListSeries(grpc::CallbackServerContext* context,
                                       const pb::ListSeriesRequest* request,
                                       pb::ListSeriesResponse* response) override;

 private:
  const ServiceContext context_;
  results::OrderCache orders_;
};

grpc::ServerUnaryReactor* ResultsService::ListResults(grpc::CallbackServerContext* context,
                                                      const pb::ListResultsRequest* request,
                                                      pb::ListResultsResponse* response) {
  return context_.Read(
      context, Method::kListResults, [this, request, response](store::ReadStore& store) {
        if (request->series_size() > kSeriesMax) {
          return InvalidArgument(StrCat("at most ", kSeriesMax, " series are listed"));
        }
        return List(store, &orders_, *request, response);
      });
}

grpc::ServerUnaryReactor* ResultsService::GroupResults(grpc::CallbackServerContext* context,
                                                       const pb::GroupResultsRequest* request,
                                                       pb::GroupResultsResponse* response) {
  return context_.Read(context, Method::kGroupResults,
                       [request, response](store::ReadStore& store) {
                         return GroupThem(store, *request, response);
                       });
}

grpc::ServerUnaryReactor* ResultsService::Compare(grpc::CallbackServerContext* context,
                                                  const pb::CompareRequest* request,
                                                  pb::CompareResponse* response) {
  return context_.Read(context, Method::kCompare, [request, response](store::ReadStore& store) {
    return AnswerCompare(store, *request, response);
  });
}

grpc::ServerUnaryReactor* ResultsService::EstimatePower(grpc::CallbackServerContext* context,
                                                        const pb::EstimatePowerRequest* request,
                                                        pb::EstimatePowerResponse* response) {
  return context_.Read(context, Method::kEstimatePower,
                       [request, response](store::ReadStore& store) {
                         return AnswerPower(store, *request, response);
                       });
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
