#include "server/api/worker_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/events/batch.h"
#include "server/api/batch.h"
#include "server/api/call.h"
#include "server/api/convert.h"
#include "server/api/core.h"
#include "switchyard/v1/worker_service.grpc.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kLogBytesMax = 1 << 20;
// A trainer's watermark is refused so long when the inbox is full.
constexpr uint32_t kRetryAfterMs = 500;

class WorkerService final : public pb::WorkerService::CallbackService {
 public:
  explicit WorkerService(const ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Register(grpc::CallbackServerContext* context,
                                     const pb::RegisterRequest* request,
                                     pb::RegisterResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context,
                                      const pb::HeartbeatRequest* request,
                                      pb::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Append(grpc::CallbackServerContext* context,
                                   const pb::AppendRequest* request,
                                   pb::AppendResponse* response) override;
  grpc::ServerUnaryReactor* AppendLog(grpc::CallbackServerContext* context,
                                      const pb::AppendLogRequest* request,
                                      pb::AppendLogResponse* response) override;

 private:
  const ServiceContext context_;
};

grpc::ServerUnaryReactor* WorkerService::Register(grpc::CallbackServerContext* context,
                                                  const pb::RegisterRequest* request,
                                                  pb::RegisterResponse* response) {
  CallPtr call = context_.Start(context, Method::kRegister);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  Result<scheduler::Register> event = FromProto(*request);
  if (!event.ok()) {
    call->Finish(event.status());
    return reactor;
  }
  context_.core->Register(*std::move(event), [call, response](const Result<RegisterReply>& reply) {
    if (reply.ok()) {
      response->set_proto(1);
      response->set_generation(reply->generation);
      response->set_boot(reply->boot);
      response->set_nonce(reply->nonce);
      response->set_heartbeat_ms(reply->heartbeat_ms);
      response->set_cluster_id(reply->cluster_id);
    }
    call->Finish(reply.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Heartbeat(grpc::CallbackServerContext* context,
                                                   const pb::HeartbeatRequest* request,
                                                   pb::HeartbeatResponse* response) {
  CallPtr call = context_.Start(context, Method::kHeartbeat);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  Result<scheduler::Heartbeat> event = FromProto(*request);
  if (!event.ok()) {
    call->Finish(event.status());
    return reactor;
  }
  context_.core->Heartbeat(*std::move(event), [call, response](const Result<Desired>& desired) {
    if (desired.ok()) {
      ToProto(*desired, response);
      response->set_sent_unix_ms(UnixMilliseconds());
    }
    call->Finish(desired.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::Append(grpc::CallbackServerContext* context,
                                                const pb::AppendRequest* request,
                                                pb::AppendResponse* response) {
  CallPtr call = context_.Start(context, Method::kAppend);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  const auto refuse = [&](const Status& status) {
    call->Finish(status);
    return reactor;
  };
  AppendInput input;
  Result<scheduler::Append> event = FromProto(*request);
  if (!event.ok()) return refuse(event.status());
  Result<events::DecodedBatch> decoded =
      events::DecodeBatch(request->blob(), request->codec() == pb::BATCH_CODEC_ZSTD,
                          request->crc32c(), request->first_seq(), request->n());
  if (!decoded.ok()) return refuse(decoded.status());
  Result<std::shared_ptr<const PreparedBatch>> batch =
      PrepareBatch(std::make_shared<events::DecodedBatch>(*std::move(decoded)), event->epoch,
                   event->rank, /*skip_through=*/0);
  if (!batch.ok()) return refuse(batch.status());
  input.event = *std::move(event);
  input.batch = *std::move(batch);
  input.event.lines = input.batch->facts;
  for (const SeriesDelta& delta : input.batch->deltas) {
    input.event.last_step = std::max(input.event.last_step, delta.last_step);
  }
  input.bytes = request->blob().size();
  input.oldest_age_ms = request->oldest_age_ms();
  context_.core->Append(std::move(input), [call, response](const Result<AppendReply>& reply) {
    if (reply.ok()) {
      response->set_committed(reply->committed);
      response->set_durable(reply->durable);
      response->set_expect(reply->expect);
      response->set_credit_bytes(reply->credit_bytes);
      response->set_retry_after_ms(reply->retry_after_ms);
    } else if (reply.status().code() == Code::kUnavailable) {
      response->set_retry_after_ms(kRetryAfterMs);
    }
    call->Finish(reply.status());
  });
  return reactor;
}

grpc::ServerUnaryReactor* WorkerService::AppendLog(grpc::CallbackServerContext* context,
                                                   const pb::AppendLogRequest* request,
                                                   pb::AppendLogResponse* response) {
  CallPtr call = context_.Start(context, Method::kAppendLog);
  grpc::ServerUnaryReactor* reactor = call->reactor();
  Result<scheduler::AppendLog> event = FromProto(*request);
  if (event.ok() && request->data().size() > kLogBytesMax) {
    event = InvalidArgument(StrCat("data has ", request->data().size(), " bytes, at most ",
                                   kLogBytesMax, " are taken"));
  }
  if (!event.ok()) {
    call->Finish(event.status());
    return reactor;
  }
  context_.core->AppendLog(*std::move(event), request->data(),
                           [call, response](const Result<uint64_t>& committed) {
                             if (committed.ok()) response->set_committed(*committed);
                             call->Finish(committed.status());
                           });
  return reactor;
}

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerService(const ServiceContext& context) {
  return std::make_unique<WorkerService>(context);
}

}  // namespace switchyard::api
