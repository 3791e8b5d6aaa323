#pragma once

#include "server/api/call.h"
#include "switchyard/v1/worker_service.grpc.pb.h"

namespace switchyard::api {

// What agents call. Batches are decoded on gRPC's threads, in parallel. Thread-safe.
class WorkerService final : public v1::WorkerService::CallbackService {
 public:
  explicit WorkerService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const v1::RegisterRequest* request,
                                     v1::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const v1::AppendRequest* request,
                                   v1::AppendResponse* response) override;
  grpc::ServerUnaryReactor* AppendLog(grpc::CallbackServerContext* context,
                                      const v1::AppendLogRequest* request,
                                      v1::AppendLogResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace switchyard::api
