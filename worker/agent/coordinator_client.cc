#include "worker/agent/coordinator_client.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>

#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>

#include "common/base/keepalive.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/worker_service.grpc.pb.h"
#include "switchyard/v1/worker_service.pb.h"

namespace switchyard::agent {
namespace pb = ::switchyard::v1;
namespace {

constexpr uint32_t kProtocol = 1;
constexpr uint32_t kRegisterDeadlineMs = 10'000;
constexpr uint32_t kAppendDeadlineMs = 30'000;
// What gRPC calls the least time between two attempts to connect is also the least time that one
// may take: with less than a round trip no connection is ever made. One that is refused is tried
// again after the back-off alone.
constexpr int kConnectMs = 5'000;
constexpr int kReceiveBytesMax = 64 << 20;

Status FromGrpc(const grpc::Status& status) {
  return {static_cast<Code>(status.error_code()), EscapeForTerminal(status.error_message())};
}

pb::MemberState StateToProto(RecordState state) {
  switch (state) {
    case RecordState::kNone:
      return pb::MEMBER_STATE_UNSPECIFIED;
    case RecordState::kLaunching:
      return pb::MEMBER_STATE_LAUNCHING;
    case RecordState::kRunning:
      return pb::MEMBER_STATE_RUNNING;
    case RecordState::kExited:
      return pb::MEMBER_STATE_EXITED;
    case RecordState::kRefused:
      return pb::MEMBER_STATE_REFUSED;
  }
  return pb::MEMBER_STATE_UNSPECIFIED;
}

// What a wanted attempt holds that this release does not understand; empty: nothing.
std::string FindUnknown(const pb::WantedAttempt& want) {
  if (!pb::Intent_IsValid(want.intent()) || want.intent() == pb::INTENT_UNSPECIFIED) {
    return StrCat("intent ", static_cast<int>(want.intent()));
  }
  pb::RunSpec run;
  if (!run.ParseFromString(want.run_spec())) return "run_spec is not a RunSpec";
  return "";
}

// An intent that this release does not know cannot be guessed: a running attempt is drained.
Intent IntentFromProto(pb::Intent intent) {
  switch (intent) {
    case pb::INTENT_RUN:
      return Intent::kRun;
    case pb::INTENT_CANCEL:
      return Intent::kCancel;
    case pb::INTENT_KILL:
      return Intent::kKill;
    case pb::INTENT_DRAIN:
    case pb::INTENT_UNSPECIFIED:
    default:
      return Intent::kDrain;
  }
}

// A heartbeat is not to outgrow what the coordinator takes (4 MiB), however many trainers have
// ended with much to say: their texts share it.
constexpr size_t kReasonBytesInAll = 1 << 20;
constexpr size_t kOutputTailBytesInAll = 1 << 20;

struct TextLimits {
  size_t reason_bytes = kReasonBytesMax;
  size_t output_tail_bytes = kOutputTailBytesMax;
};

TextLimits LimitsFor(const std::vector<Record>& observed) {
  size_t reasons = 0;
  size_t tails = 0;
  for (const Record& record : observed) {
    if (!record.end.reason.empty()) ++reasons;
    if (!record.end.output_tail.empty()) ++tails;
  }
  TextLimits limits;
  if (reasons > 0) {
    limits.reason_bytes = std::min(limits.reason_bytes, kReasonBytesInAll / reasons);
  }
  if (tails > 0) {
    limits.output_tail_bytes = std::min(limits.output_tail_bytes, kOutputTailBytesInAll / tails);
  }
  return limits;
}

void ToProto(const Record& record, const TextLimits& limits, pb::MemberReport* out) {
  out->set_run_id(record.run_id);
  out->set_ordinal(record.ordinal);
  out->set_epoch(record.key.epoch);
  out->set_rank(record.key.rank);
  out->set_state(record.wedged ? pb::MEMBER_STATE_WEDGED : StateToProto(record.state));
  if (record.is_live()) return;
  out->set_exit_code(record.end.exit_code);
  out->set_signal(record.end.signal);
  out->set_end_class(record.end.end_class);
  out->set_complete(record.end.complete);
  out->set_evidence(record.end.evidence);
  out->set_last_seq(record.end.last_seq);
  out->set_reason(CutText(record.end.reason, limits.reason_bytes));
  out->set_final_step(record.end.final_step);
  const std::string& tail = record.end.output_tail;
  out->set_output_tail(tail.substr(tail.size() - std::min(tail.size(), limits.output_tail_bytes)));
}

HeartbeatIn FromProto(pb::HeartbeatResponse& response) {
  HeartbeatIn in{.heartbeat_ms = response.heartbeat_ms(),
                 .workers = response.workers(),
                 .sent_unix_ms = response.sent_unix_ms()};
  in.desired.rev = {response.rev().generation(), response.rev().boot(), response.rev().n()};
  in.desired.echo_incarnation = response.echo_incarnation();
  in.desired.echo_sent_boottime_ns = response.echo_sent_boottime_ns();
  in.desired.want.reserve(static_cast<size_t>(response.want_size()));
  for (pb::WantedAttempt& want : *response.mutable_want()) {
    const AttemptKey key{want.epoch(), want.rank()};
    in.desired.want.push_back(
        {.key = key,
         .run_id = want.run_id(),
         .ordinal = want.ordinal(),
         .slots = {want.attempt().slots().begin(), want.attempt().slots().end()},
         .intent = IntentFromProto(want.intent()),
         .grace_ms = want.grace_ms(),
         .lease_ms = want.lease_ms(),
         .has_spec = !want.run_spec().empty(),
         .unknown = FindUnknown(want)});
    if (want.run_spec().empty()) continue;
    in.docs.push_back({.key = key,
                       .run_spec = std::move(*want.mutable_run_spec()),
                       .attempt = want.attempt().SerializeAsString()});
  }
  for (const pb::CheckpointRef& ref : response.delete_checkpoints()) {
    in.delete_checkpoints.push_back(
        {.run_id = ref.run_id(), .epoch = ref.epoch(), .step = ref.step(), .store = ref.store()});
  }
  for (const pb::AttemptRef& ref : response.gc()) {
    in.desired.gc.push_back({ref.epoch(), ref.rank()});
  }
  return in;
}

class GrpcClient final : public CoordinatorClient {
 public:
  GrpcClient(const std::string& address, Post post) : post_(std::move(post)) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
    // Otherwise gRPC gives both channels one connection.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto credentials = grpc::InsecureChannelCredentials();
    control_ =
        pb::WorkerService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
    bulk_ = pb::WorkerService::NewStub(grpc::CreateCustomChannel(address, credentials, arguments));
  }
  ~GrpcClient() override { Stop(); }

  void Register(const Registration& registration, Callback<Registered> done) override {
    auto* call = new Call<pb::RegisterRequest, pb::RegisterResponse>();
    pb::RegisterRequest& request = call->request;
    request.set_proto_min(kProtocol);
    request.set_proto_max(kProtocol);
    request.set_worker_id(registration.worker_id);
    request.set_incarnation(registration.incarnation);
    request.set_instance_id(registration.instance_id);
    request.set_seen_generation(registration.seen_generation);
    request.set_seen_boot(registration.seen_boot);
    request.set_pool(registration.pool);
    for (size_t i = 0; i < registration.slots.size(); ++i) {
      pb::Slot* slot = request.add_slots();
      slot->set_index(static_cast<uint32_t>(i));
      slot->set_kind(registration.slots[i].is_gpu ? pb::SLOT_KIND_GPU : pb::SLOT_KIND_CPU);
      slot->set_uuid(registration.slots[i].uuid);
    }
    request.set_threads_per_slot(registration.threads_per_slot);
    for (const std::string& label : registration.labels) request.add_labels(label);
    request.set_checkpoint_store(registration.checkpoint_store);
    request.set_metrics_address(registration.metrics_address);
    request.set_host(registration.host);
    request.set_version(kVersion);
    if (!Begin(call, kRegisterDeadlineMs)) return;
    control_->async()->Register(&call->context, &call->request, &call->response,
                                [this, call, done = std::move(done)](const grpc::Status& status) {
                                  Result<Registered> result = FromGrpcOr<Registered>(status, [&] {
                                    return Registered{
                                        .nonce = call->response.nonce(),
                                        .generation = call->response.generation(),
                                        .boot = call->response.boot(),
                                        .heartbeat_ms = call->response.heartbeat_ms()};
                                  });
                                  Finish(call, done, std::move(result));
                                });
  }

  void Heartbeat(const HeartbeatOut& heartbeat, uint32_t deadline_ms,
                 Callback<HeartbeatIn> done) override {
    auto* call = new Call<pb::HeartbeatRequest, pb::HeartbeatResponse>();
    pb::HeartbeatRequest& request = call->request;
    request.set_worker_id(heartbeat.worker_id);
    request.set_nonce(heartbeat.nonce);
    request.set_incarnation(heartbeat.incarnation);
    request.set_hb_seq(heartbeat.hb_seq);
    request.set_sent_boottime_ns(heartbeat.sent_boottime_ns);
    pb::Rev* rev = request.mutable_applied_rev();
    rev->set_generation(heartbeat.applied.generation);
    rev->set_boot(heartbeat.applied.boot);
    rev->set_n(heartbeat.applied.n);
    const TextLimits limits = LimitsFor(heartbeat.observed);
    for (const Record& record : heartbeat.observed) {
      ToProto(record, limits, request.add_observed());
    }
    pb::HostReport* host = request.mutable_host();
    host->set_disk_free_bytes(heartbeat.disk_free_bytes);
    host->set_disk_size_bytes(heartbeat.disk_size_bytes);
    host->set_unacked_lines(heartbeat.unacked_lines);
    host->set_draining(heartbeat.draining);
    host->set_drain_grace_ms(heartbeat.drain_grace_ms);
    host->set_wall_clock_offset_seconds(heartbeat.clock_offset_seconds);
    if (!Begin(call, deadline_ms)) return;
    control_->async()->Heartbeat(&call->context, &call->request, &call->response,
                                 [this, call, done = std::move(done)](const grpc::Status& status) {
                                   Result<HeartbeatIn> result = FromGrpcOr<HeartbeatIn>(
                                       status, [&] { return FromProto(call->response); });
                                   Finish(call, done, std::move(result));
                                 });
  }

  void Append(const StreamId& stream, const events::BatchBuilder::Blob& blob,
              uint32_t oldest_age_ms, Callback<AppendReply> done) override {
    auto* call = new Call<pb::AppendRequest, pb::AppendResponse>();
    pb::AppendRequest& request = call->request;
    SetStream(stream, &request);
    request.set_first_seq(blob.first_seq);
    request.set_n(blob.n);
    request.set_codec(blob.is_zstd ? pb::BATCH_CODEC_ZSTD : pb::BATCH_CODEC_PLAIN);
    request.set_crc32c(blob.crc32c);
    request.set_blob(blob.bytes);
    request.set_oldest_age_ms(oldest_age_ms);
    if (!Begin(call, kAppendDeadlineMs)) return;
    bulk_->async()->Append(&call->context, &call->request, &call->response,
                           [this, call, done = std::move(done)](const grpc::Status& status) {
                             Result<AppendReply> result = FromGrpcOr<AppendReply>(status, [&] {
                               return AppendReply{
                                   .committed = call->response.committed(),
                                   .durable = call->response.durable(),
                                   .expect = call->response.expect(),
                                   .credit_bytes = call->response.credit_bytes(),
                                   .retry_after_ms = call->response.retry_after_ms()};
                             });
                             Finish(call, done, std::move(result));
                           });
  }

  void AppendLog(const StreamId& stream, bool is_stderr, uint64_t offset, const std::string& data,
                 Callback<AppendReply> done) override {
    auto* call = new Call<pb::AppendLogRequest, pb::AppendLogResponse>();
    pb::AppendLogRequest& request = call->request;
    SetStream(stream, &request);
    request.set_stream(is_stderr ? pb::LOG_STREAM_STDERR : pb::LOG_STREAM_STDOUT);
    request.set_offset(offset);
    request.set_data(data);
    if (!Begin(call, kAppendDeadlineMs)) return;
    bulk_->async()->AppendLog(&call->context, &call->request, &call->response,
                              [this, call, done = std::move(done)](const grpc::Status& status) {
                                Result<AppendReply> result = FromGrpcOr<AppendReply>(status, [&] {
                                  return AppendReply{
                                      .committed = call->response.committed(),
                                      .retry_after_ms = call->response.retry_after_ms()};
                                });
                                Finish(call, done, std::move(result));
                              });
  }

  void Stop() override {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    for (grpc::ClientContext* context : contexts_) context->TryCancel();
    idle_.wait(lock, [this] { return contexts_.empty(); });
  }

 private:
  template <typename Request, typename Response>
  struct Call {
    grpc::ClientContext context;
    Request request;
    Response response;
  };

  template <typename Request>
  static void SetStream(const StreamId& stream, Request* request) {
    request->set_worker_id(stream.worker_id);
    request->set_run_id(stream.run_id);
    request->set_ordinal(stream.ordinal);
    request->set_epoch(stream.key.epoch);
    request->set_rank(stream.key.rank);
  }

  template <typename T, typename Make>
  static Result<T> FromGrpcOr(const grpc::Status& status, Make make) {
    if (!status.ok()) return FromGrpc(status);
    return make();
  }

  // False: stopped, the call is gone and its callback is never made.
  template <typename AnyCall>
  bool Begin(AnyCall* call, uint32_t deadline_ms) {
    call->context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::milliseconds(deadline_ms));
    const std::lock_guard lock(mutex_);
    if (!stopped_) {
      contexts_.insert(&call->context);
      return true;
    }
    delete call;
    return false;
  }

  template <typename AnyCall, typename T>
  void Finish(AnyCall* call, const Callback<T>& done, Result<T> result) {
    auto shared = std::make_shared<Result<T>>(std::move(result));
    post_([done, shared] { done(std::move(*shared)); });
    const std::lock_guard lock(mutex_);
    contexts_.erase(&call->context);
    delete call;
    if (contexts_.empty()) idle_.notify_all();
  }

  const Post post_;
  std::unique_ptr<pb::WorkerService::Stub> control_;
  std::unique_ptr<pb::WorkerService::Stub> bulk_;
  std::mutex mutex_;
  std::condition_variable idle_;
  std::set<grpc::ClientContext*> contexts_;
  bool stopped_ = false;
};

google::protobuf::util::JsonPrintOptions JsonOptions() {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  return options;
}

}  // namespace

Result<std::string> RunJson(const std::string& run_spec) {
  pb::RunSpec run;
  if (!run.ParseFromString(run_spec)) return InvalidArgument("run_spec is not a RunSpec");
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(run, &json, JsonOptions());
  if (!status.ok())
    return InvalidArgument(StrCat("run_spec has no JSON form: ", status.ToString()));
  return json;
}

Result<std::string> AttemptJson(const AttemptDocs& docs, const std::string& run_id,
                                uint32_t ordinal, const LocalFacts& facts) {
  pb::AttemptSpec attempt;
  if (!attempt.ParseFromString(docs.attempt)) {
    return InvalidArgument("attempt is not an AttemptSpec");
  }
  attempt.set_run_id(run_id);
  attempt.set_ordinal(ordinal);
  attempt.set_epoch(docs.key.epoch);
  attempt.set_rank(docs.key.rank);
  attempt.set_threads(facts.threads);
  attempt.set_checkpoint_dir(facts.checkpoint_dir);
  attempt.set_device(facts.device);
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(attempt, &json, JsonOptions());
  if (!status.ok()) return InvalidArgument(StrCat("attempt has no JSON form: ", status.ToString()));
  return json;
}

std::unique_ptr<CoordinatorClient> MakeCoordinatorClient(const std::string& address,
                                                         CoordinatorClient::Post post) {
  return std::make_unique<GrpcClient>(address, std::move(post));
}

}  // namespace switchyard::agent
