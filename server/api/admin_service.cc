#include "server/api/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>

#include "common/base/strings.h"
#include "common/base/version.h"
#include "server/api/call.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "switchyard/v1/admin_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

// `selector`: an id, or the name of a host with one worker.
Result<WorkerId> FindWorker(const std::vector<WorkerInfo>& workers, const std::string& selector) {
  std::vector<WorkerId> found;
  for (const WorkerInfo& worker : workers) {
    if (worker.row.id.value.ToString() == selector) return worker.row.id;
    if (worker.row.host == selector) found.push_back(worker.row.id);
  }
  if (found.size() == 1) return found[0];
  const std::string shown = EscapeForTerminal(selector.substr(0, 256));
  if (found.empty()) return NotFound(StrCat("no worker '", shown, "'"));
  return InvalidArgument(StrCat(found.size(), " workers are on '", shown, "': give an id"));
}

class AdminService final : public pb::AdminService::CallbackService {
 public:
  explicit AdminService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const pb::GetStatusRequest* request,
                                      pb::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* ListWorkers(grpc::CallbackServerContext* context,
                                        const pb::ListWorkersRequest* request,
                                        pb::ListWorkersResponse* response) override;
  grpc::ServerUnaryReactor* ControlWorker(grpc::CallbackServerContext* context,
                                          const pb::ControlWorkerRequest* request,
                                          pb::ControlWorkerResponse* response) override;

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

grpc::ServerUnaryReactor* AdminService::ControlWorker(grpc::CallbackServerContext* context,
                                                      const pb::ControlWorkerRequest* request,
                                                      pb::ControlWorkerResponse* response) {
  CallPtr call = context_.Start(context, Method::kControlWorker);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  Status valid = CheckRequestId(request->request_id());
  if (valid.ok()) valid = CheckText(request->reason(), "reason");
  if (valid.ok() && (request->action() < pb::WORKER_ACTION_DRAIN ||
                     request->action() > pb::WORKER_ACTION_FENCE)) {
    valid =
        InvalidArgument(StrCat("action ", static_cast<int>(request->action()), " is not known"));
  }
  if (!valid.ok()) {
    call->Finish(valid);
    return reactor;
  }
  Core* core = context_.core;
  core->ListWorkers([=](const Result<std::vector<WorkerInfo>>& workers) {
    if (!workers.ok()) return call->Finish(workers.status());
    const Result<WorkerId> worker = FindWorker(*workers, request->worker());
    if (!worker.ok()) return call->Finish(worker.status());
    SteerInput input;
    input.worker = *worker;
    input.worker_verb = static_cast<scheduler::WorkerVerb>(request->action());
    input.reason = request->reason();
    input.request_id = request->request_id();
    if (request->has_deadline_ms()) input.deadline_ms = request->deadline_ms();
    core->Steer(std::move(input), [call, response](const Result<uint64_t>& affected) {
      if (affected.ok()) response->set_runs_affected(*affected);
      call->Finish(affected.status());
    });
  });
  return reactor;
}

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(const ServiceContext& context) {
  return std::make_unique<AdminService>(context);
}

}  // namespace switchyard::api
