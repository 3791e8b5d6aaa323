#pragma once

#include "server/api/call.h"
#include "switchyard/v1/admin_service.grpc.pb.h"

namespace switchyard::api {

// State of the coordinator and its workers. Thread-safe.
class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace switchyard::api
