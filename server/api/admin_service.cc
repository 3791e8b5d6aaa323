#include "server/api/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "common/base/version.h"
#include "server/api/call.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "switchyard/v1/admin_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

class AdminService final : public pb::AdminService::CallbackService {
 public:
  explicit AdminService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const pb::GetStatusRequest* request,
                                      pb::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const pb::ListWorkersRequest* request,
                                        pb::ListWorkersResponse* response) override;

 private:
  const ServiceContext context_;
};

grpc::ServerUnaryReactor* AdminService::GetStatus(grpc::CallbackServerContext* context,
                                                  const pb::GetStatusRequest*,
                                                  pb::GetStatusResponse* response) {
  CallPtr call = context_.Start(context, Method::kGetStatus);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  context_.core->GetInfo([call, response](const Result<CoordinatorInfo>& info) {
    if (info.ok()) {
      response->set_version(kVersion);
      response->set_cluster_id(info->cluster_id);
      response->set_generation(info->generation);
      response->set_boot(info->boot);
      response->set_state(info->state);
      response->set_database_bytes(info->stats.database_bytes);
      response->set_wal_bytes(info->stats.wal_bytes);
      response->set_metrics_address(info->metrics_address);
    }
    call->Finish(info.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* AdminService::ListWorkers(grpc::CallbackServerContext* context,
                                                    const pb::ListWorkersRequest*,
                                                    pb::ListWorkersResponse* response) {
  CallPtr call = context_.Start(context, Method::kListWorkers);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  context_.core->ListWorkers([call, response](const Result<std::vector<WorkerInfo>>& workers) {
    if (workers.ok()) {
      for (const WorkerInfo& worker : *workers) ToProto(worker, response->add_workers());
    }
    call->Finish(workers.status());
  });
  return reactor;
}

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context) {
  return std::make_unique<AdminService>(context);
}

}  // namespace switchyard::api
