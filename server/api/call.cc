#include "server/api/call.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/base/strings.h"
#include "server/api/core.h"

namespace switchyard::api {
namespace {

constexpr size_t kMessageMax = 1024;
constexpr size_t kPeersMax = 4096;
constexpr std::chrono::minutes kSeenLately{5};

}  // namespace

std::vector<std::string> MethodNames() {
  return {"SubmitSweep", "PlanSweep",   "ListSweeps",   "GetSweep",      "ControlSweep",
          "RetryRuns",   "ExtendSweep", "ForkRun",      "Ask",           "Tell",
          "ListRuns",    "GetRun",      "ControlRun",   "PinCheckpoint", "ExplainRun",
          "ReadLog",     "ListResults", "GroupResults", "Compare",       "EstimatePower",
          "GetCurve",    "ListSeries",  "GetStatus",    "ListWorkers",   "ControlWorker",
          "Register",    "Heartbeat",   "Append",       "AppendLog"};
}

void ClientTracker::Seen(const std::string& peer) {
  const std::lock_guard lock(mu_);
  if (last_.size() < kPeersMax || last_.contains(peer)) {
    last_[peer] = std::chrono::steady_clock::now();
  }
}

size_t ClientTracker::Count() {
  const std::lock_guard lock(mu_);
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(last_, [&](const auto& entry) { return now - entry.second > kSeenLately; });
  return last_.size();
}

grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message = status.message();
  if (message.size() > kMessageMax) {
    size_t cut = kMessageMax - 4;
    // Not inside a character.
    while (cut > 0 && (static_cast<unsigned char>(message[cut]) & 0xc0) == 0x80) --cut;
    message = StrCat(message.substr(0, cut), " ...");
  }
  return {static_cast<grpc::StatusCode>(status.code()), message};
}

Call::Call(grpc::CallbackServerContext* context, server_metrics::RpcFamilies* families,
           Method method)
    : context_(context),
      reactor_(context->DefaultReactor()),
      families_(families),
      method_(method),
      start_(std::chrono::steady_clock::now()) {
  families_->Started();
}

bool Call::is_cancelled() const { return context_->IsCancelled(); }

void Call::Finish(const Status& status) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start_;
  families_->Finished(static_cast<size_t>(method_), static_cast<int>(status.code()), took.count());
  reactor_->Finish(ToGrpc(status));
}

CallPtr ServiceContext::Start(grpc::CallbackServerContext* context, Method method) const {
  if (method < Method::kRegister) clients->Seen(context->peer());
  return std::make_shared<Call>(context, families, method);
}

grpc::ServerUnaryReactor* ServiceContext::LookUp(
    grpc::CallbackServerContext* context, Method method, const Status& valid,
    std::function<void(const CallPtr&, store::ReadStore&)> work) const {
  CallPtr call = Start(context, method);
  // Taken first: the call may end on the query thread before this function returns.
  grpc::ServerUnaryReactor* reactor = call->reactor();
  if (!valid.ok()) {
    call->Finish(valid);
    return reactor;
  }
  readers->Post([call, work = std::move(work)](Result<store::ReadStore*> store) {
    if (!store.ok()) return call->Finish(store.status());
    work(call, **store);
  });
  return reactor;
}

grpc::ServerUnaryReactor* ServiceContext::Read(
    grpc::CallbackServerContext* context, Method method,
    std::function<Status(store::ReadStore&)> read) const {
  return LookUp(context, method, OkStatus(),
                [read = std::move(read)](const CallPtr& call, store::ReadStore& store) {
                  call->Finish(read(store));
                });
}

}  // namespace switchyard::api
