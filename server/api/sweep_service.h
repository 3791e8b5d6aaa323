#pragma once

#include "server/api/call.h"
#include "switchyard/v1/sweep_service.grpc.pb.h"

namespace switchyard::api {

// Submits, plans, lists and cancels sweeps. Thread-safe.
class SweepService final : public v1::SweepService::CallbackService {
 public:
  explicit SweepService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* SubmitSweep(grpc::CallbackServerContext* context,
                                        const v1::SubmitSweepRequest* request,
                                        v1::SubmitSweepResponse* response) override;
  grpc::ServerUnaryReactor* PlanSweep(grpc::CallbackServerContext* context,
                                      const v1::PlanSweepRequest* request,
                                      v1::PlanSweepResponse* response) override;
  grpc::ServerUnaryReactor* ListSweeps(grpc::CallbackServerContext* context,
                                       const v1::ListSweepsRequest* request,
                                       v1::ListSweepsResponse* response) override;
  grpc::ServerUnaryReactor* GetSweep(grpc::CallbackServerContext* context,
                                     const v1::GetSweepRequest* request,
                                     v1::Sweep* response) override;
  grpc::ServerUnaryReactor* CancelSweep(grpc::CallbackServerContext* context,
                                        const v1::CancelSweepRequest* request,
                                        v1::CancelSweepResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace switchyard::api
