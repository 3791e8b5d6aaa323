#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/metrics/families.h"

namespace grpc {
class CallbackServerContext;
class ServerUnaryReactor;
class Status;
}  // namespace grpc

namespace switchyard::store {
class ReadStore;
}

namespace switchyard::api {

// Every method, in the order of its metrics.
enum class Method : uint8_t {
  kSubmitSweep,
  kPlanSweep,
  kListSweeps,
  kGetSweep,
  kControlSweep,
  kRetryRuns,
  kExtendSweep,
  kForkRun,
  kAsk,
  kTell,
  kListRuns,
  kGetRun,
  kControlRun,
  kPinCheckpoint,
  kExplainRun,
  kReadLog,
  kListResults,
  kGroupResults,
  kCompare,
  kEstimatePower,
  kGetCurve,
  kListSeries,
  kGetStatus,
  kListWorkers,
  kControlWorker,
  kRegister,
  kHeartbeat,
  kAppend,
  kAppendLog,
};
std::vector<std::string> MethodNames();

// Clients by peer, for the gauge of those seen lately. Thread-safe, bounded.
class ClientTracker {
 public:
  void Seen(const std::string& peer);
  // Peers of the last 5 minutes.
  size_t Count();

 private:
  std::mutex mu_;
  std::map<std::string, std::chrono::steady_clock::time_point> last_;  // guarded by mu_
};

// The one place where a Status becomes gRPC's: same code, the message cut to 1 KiB (it travels in a
// trailer).
grpc::Status ToGrpc(const Status& status);

// One call in progress: counted, timed and finished exactly once.
class Call {
 public:
  Call(grpc::CallbackServerContext* context, server_metrics::RpcFamilies* families, Method method);

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  bool is_cancelled() const;
  void Finish(const Status& status);

 private:
  grpc::CallbackServerContext* context_;
  grpc::ServerUnaryReactor* reactor_;
  server_metrics::RpcFamilies* families_;
  const Method method_;
  const std::chrono::steady_clock::time_point start_;
};
using CallPtr = std::shared_ptr<Call>;

// What every service is made with; outlives them all.
class Core;
class Readers;
struct ServiceContext {
  Core* core = nullptr;
  Readers* readers = nullptr;
  server_metrics::RpcFamilies* families = nullptr;
  ClientTracker* clients = nullptr;

  CallPtr Start(grpc::CallbackServerContext* context, Method method) const;
  // A call that looks something up before it acts: it ends at once where its request is not
  // `valid`; else `work` runs on a query thread and ends it, itself or in a callback of the core.
  grpc::ServerUnaryReactor* LookUp(
      grpc::CallbackServerContext* context, Method method, const Status& valid,
      std::function<void(const CallPtr&, store::ReadStore&)> work) const;
  // A call that only reads: `read` runs on a query thread and its outcome ends the call.
  grpc::ServerUnaryReactor* Read(grpc::CallbackServerContext* context, Method method,
                                 std::function<Status(store::ReadStore&)> read) const;
};

}  // namespace switchyard::api
