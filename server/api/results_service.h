#pragma once

#include "server/api/call.h"
#include "switchyard/v1/results_service.grpc.pb.h"

namespace switchyard::api {

// Summaries and curves. Reads only. Thread-safe.
class ResultsService final : public v1::ResultsService::CallbackService {
 public:
  explicit ResultsService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListResults(grpc::CallbackServerContext* context,
                                        const v1::ListResultsRequest* request,
                                        v1::ListResultsResponse* response) override;
  grpc::ServerUnaryReactor* GetCurve(grpc::CallbackServerContext* context,
                                     const v1::GetCurveRequest* request,
                                     v1::GetCurveResponse* response) override;
  grpc::ServerUnaryReactor* ListSeries(grpc::CallbackServerContext* context,
                                       const v1::ListSeriesRequest* request,
                                       v1::ListSeriesResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace switchyard::api
