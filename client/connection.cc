#include "client/connection.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <sys/un.h>

#include <grpcpp/grpcpp.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/keepalive.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "switchyard/v1/admin_service.grpc.pb.h"
#include "switchyard/v1/results_service.grpc.pb.h"
#include "switchyard/v1/run_service.grpc.pb.h"
#include "switchyard/v1/sweep_service.grpc.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// A page of a curve with vectors is larger than gRPC's default of 4 MiB.
constexpr int kReceiveBytesMax = 64 << 20;
// A call without an end is none: ten days.
constexpr double kTimeoutMaxSeconds = 864'000;

Status FromGrpc(const grpc::Status& status, const ServerChoice& server) {
  if (status.ok()) return OkStatus();
  const grpc::StatusCode code = status.error_code();
  if (code == grpc::StatusCode::UNAVAILABLE) {
    return Unavailable(StrCat("cannot reach the coordinator at ", server.address, ": ",
                              status.error_message(), "; tried: ", StrJoin(server.tried, ", ")));
  }
  if (code == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return DeadlineExceeded(
        StrCat("the coordinator at ", server.address, " did not answer in time (--timeout)"));
  }
  if (code == grpc::StatusCode::UNAUTHENTICATED) return PermissionDenied(status.error_message());
  return {static_cast<Code>(code), status.error_message()};
}

// Whether a status says what became of a change. After the others it may have been made.
bool IsAnswer(Code code) {
  switch (code) {
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kCancelled:
    case Code::kAborted:
    case Code::kUnknown:
    case Code::kInternal:
      return false;
    default:
      return true;
  }
}

Result<ServerChoice> FromText(const std::string& text, std::vector<std::string> tried) {
  std::string path;
  if (!text.empty() && text[0] == '/') path = text;
  if (text.rfind("unix:", 0) == 0) {
    path = text.substr(5);
    if (path.rfind("//", 0) == 0) path.erase(0, 2);
  }
  if (path.empty()) return ServerChoice{.address = text, .tried = std::move(tried)};
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return InvalidArgument(StrCat("socket path ", path, " has ", path.size(),
                                  " bytes, the system allows ", sizeof(sockaddr_un::sun_path) - 1));
  }
  return ServerChoice{.address = "unix:" + path, .tried = std::move(tried)};
}

}  // namespace

Result<ServerChoice> ChooseServer(const std::string& flag,
                                  const std::function<const char*(const char*)>& getenv) {
  if (!flag.empty()) return FromText(flag, {StrCat("--server ", flag)});
  const auto variable = [&](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::vector<std::string> tried{"--server (not given)"};
  if (const std::string server = variable("SWITCHYARD_SERVER"); !server.empty()) {
    return FromText(server, {StrCat("$SWITCHYARD_SERVER ", server)});
  }
  tried.emplace_back("$SWITCHYARD_SERVER (not set)");
  std::string state = variable("XDG_STATE_HOME");
  if (state.empty() && !variable("HOME").empty()) state = variable("HOME") + "/.local/state";
  std::vector<std::string> sockets;
  if (!state.empty()) sockets.push_back(state + "/switchyard/coordinator/switchyard.sock");
  sockets.emplace_back("/run/switchyard/switchyard.sock");
  for (const std::string& socket : sockets) {
    tried.push_back(socket);
    if (FileExists(socket)) return FromText(socket, {socket});
  }
  return Unavailable(StrCat("no coordinator found; tried: ", StrJoin(tried, ", "),
                            " (start one with: switchyard-coordinator serve)"));
}

struct Connection::Impl {
  Impl(ServerChoice choice, double timeout_seconds, Outbox changes,
       std::function<void()> repeat_hook)
      : server(std::move(choice)),
        outbox(std::move(changes)),
        on_repeat(std::move(repeat_hook)),
        timeout_ms(
            static_cast<int64_t>(std::clamp(timeout_seconds, 1e-3, kTimeoutMaxSeconds) * 1000)) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kReceiveBytesMax);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
    // Waits of a restarting coordinator are ours to pace, not gRPC's growing back-off.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    arguments.SetUserAgentPrefix(StrCat("switchyard/", kVersion));
    channel =
        grpc::CreateCustomChannel(server.address, grpc::InsecureChannelCredentials(), arguments);
    sweeps = pb::SweepService::NewStub(channel);
    runs = pb::RunService::NewStub(channel);
    results = pb::ResultsService::NewStub(channel);
    admin = pb::AdminService::NewStub(channel);
  }

  template <typename Stub, typename Request, typename Response>
  Status Call(Stub* stub,
              grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
              const Request& request, Response* response) {
    const int64_t silent_since = MonotonicNow().ms;
    for (int pause_ms = 100;; pause_ms = std::min(pause_ms * 2, 1000)) {
      const int64_t left_ms = timeout_ms - (MonotonicNow().ms - silent_since);
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(left_ms));
      const grpc::Status status = (stub->*method)(&context, request, response);
      const bool is_down = status.error_code() == grpc::StatusCode::UNAVAILABLE;
      if (!is_down || patience == Patience::kNone || left_ms <= pause_ms) {
        return FromGrpc(status, server);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
  }

  template <typename Stub, typename Request, typename Response>
  Status Change(const char* name, Stub* stub,
                grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                Request request, Response* response) {
    request.clear_request_id();
    const Outbox::Ticket ticket =
        outbox.Begin(StrCat(name, "\n", server.address, "\n", request.SerializeAsString()));
    if (ticket.is_repeated && on_repeat) on_repeat();
    request.set_request_id(ticket.request_id);
    Status status = Call(stub, method, request, response);
    if (IsAnswer(status.code())) outbox.Close(ticket);
    return status;
  }

  ServerChoice server;
  Outbox outbox;
  std::function<void()> on_repeat;
  int64_t timeout_ms;
  Patience patience = Patience::kNone;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::SweepService::Stub> sweeps;
  std::unique_ptr<pb::RunService::Stub> runs;
  std::unique_ptr<pb::ResultsService::Stub> results;
  std::unique_ptr<pb::AdminService::Stub> admin;
};

Connection::Connection(ServerChoice server, double timeout_seconds, Outbox outbox,
                       std::function<void()> on_repeat)
    : impl_(std::make_unique<Impl>(std::move(server), timeout_seconds, std::move(outbox),
                                   std::move(on_repeat))) {}
Connection::~Connection() = default;

void Connection::set_patience(Patience patience) { impl_->patience = patience; }
const std::string& Connection::address() const { return impl_->server.address; }

#define SWITCHYARD_CLIENT_CALL(service, stub, name, Request, Response)                  \
  Status Connection::name(const pb::Request& request, pb::Response* response) {         \
    return impl_->Call(impl_->stub.get(), &pb::service::Stub::name, request, response); \
  }
SWITCHYARD_CLIENT_CALL(SweepService, sweeps, PlanSweep, PlanSweepRequest, PlanSweepResponse)
SWITCHYARD_CLIENT_CALL(SweepService, sweeps, ListSweeps, ListSweepsRequest, ListSweepsResponse)
SWITCHYARD_CLIENT_CALL(SweepService, sweeps, GetSweep, GetSweepRequest, Sweep)
SWITCHYARD_CLIENT_CALL(SweepService, sweeps, ControlSweep, ControlSweepRequest,
                       ControlSweepResponse)
SWITCHYARD_CLIENT_CALL(RunService, runs, ListRuns, ListRunsRequest, ListRunsResponse)
SWITCHYARD_CLIENT_CALL(RunService, runs, GetRun, GetRunRequest, RunDetail)
SWITCHYARD_CLIENT_CALL(RunService, runs, ControlRun, ControlRunRequest, ControlRunResponse)
SWITCHYARD_CLIENT_CALL(RunService, runs, ExplainRun, ExplainRunRequest, ExplainRunResponse)
SWITCHYARD_CLIENT_CALL(RunService, runs, ReadLog, ReadLogRequest, ReadLogResponse)
SWITCHYARD_CLIENT_CALL(ResultsService, results, ListResults, ListResultsRequest,
                       ListResultsResponse)
SWITCHYARD_CLIENT_CALL(ResultsService, results, GroupResults, GroupResultsRequest,
                       GroupResultsResponse)
SWITCHYARD_CLIENT_CALL(ResultsService, results, Compare, CompareRequest, CompareResponse)
SWITCHYARD_CLIENT_CALL(ResultsService, results, EstimatePower, EstimatePowerRequest,
                       EstimatePowerResponse)
SWITCHYARD_CLIENT_CALL(ResultsService, results, GetCurve, GetCurveRequest, GetCurveResponse)
SWITCHYARD_CLIENT_CALL(ResultsService, results, ListSeries, ListSeriesRequest, ListSeriesResponse)
SWITCHYARD_CLIENT_CALL(AdminService, admin, GetStatus, GetStatusRequest, GetStatusResponse)
SWITCHYARD_CLIENT_CALL(AdminService, admin, ListWorkers, ListWorkersRequest, ListWorkersResponse)
SWITCHYARD_CLIENT_CALL(AdminService, admin, ControlWorker, ControlWorkerRequest,
                       ControlWorkerResponse)
#undef SWITCHYARD_CLIENT_CALL

#define SWITCHYARD_CLIENT_CHANGE(service, stub, name, Request, Response)                         \
  Status Connection::name(const pb::Request& request, pb::Response* response) {                  \
    return impl_->Change(#name, impl_->stub.get(), &pb::service::Stub::name, request, response); \
  }
SWITCHYARD_CLIENT_CHANGE(SweepService, sweeps, SubmitSweep, SubmitSweepRequest, SubmitSweepResponse)
SWITCHYARD_CLIENT_CHANGE(SweepService, sweeps, RetryRuns, RetryRunsRequest, RetryRunsResponse)
SWITCHYARD_CLIENT_CHANGE(SweepService, sweeps, ExtendSweep, ExtendSweepRequest, ExtendSweepResponse)
SWITCHYARD_CLIENT_CHANGE(SweepService, sweeps, ForkRun, ForkRunRequest, SubmitSweepResponse)
#undef SWITCHYARD_CLIENT_CHANGE

}  // namespace switchyard::client
