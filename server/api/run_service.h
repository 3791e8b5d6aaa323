#pragma once

#include "server/api/call.h"
#include "switchyard/v1/run_service.grpc.pb.h"

namespace switchyard::api {

// Lists, explains and cancels runs, and reads their output. Thread-safe.
class RunService final : public v1::RunService::CallbackService {
 public:
  explicit RunService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* ListRuns(grpc::CallbackServerContext* context,
                                     const v1::ListRunsRequest* request,
                                     v1::ListRunsResponse* response) override;
  grpc::ServerUnaryReactor* GetRun(grpc::CallbackServerContext* context,
                                   const v1::GetRunRequest* request,
                                   v1::RunDetail* response) override;
  grpc::ServerUnaryReactor* CancelRun(grpc::CallbackServerContext* context,
                                      const v1::CancelRunRequest* request,
                                      v1::CancelRunResponse* response) override;
  grpc::ServerUnaryReactor* ExplainRun(grpc::CallbackServerContext* context,
                                       const v1::ExplainRunRequest* request,
                                       v1::ExplainRunResponse* response) override;
  grpc::ServerUnaryReactor* ReadLog(grpc::CallbackServerContext* context,
                                    const v1::ReadLogRequest* request,
                                    v1::ReadLogResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace switchyard::api
