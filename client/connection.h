#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/outbox.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class CompareRequest;
class CompareResponse;
class ControlRunRequest;
class ControlRunResponse;
class ControlSweepRequest;
class ControlSweepResponse;
class ControlWorkerRequest;
class ControlWorkerResponse;
class EstimatePowerRequest;
class EstimatePowerResponse;
class ExplainRunRequest;
class ExplainRunResponse;
class ExtendSweepRequest;
class ExtendSweepResponse;
class ForkRunRequest;
class GetCurveRequest;
class GetCurveResponse;
class GetRunRequest;
class GetStatusRequest;
class GetStatusResponse;
class GetSweepRequest;
class GroupResultsRequest;
class GroupResultsResponse;
class ListResultsRequest;
class ListResultsResponse;
class ListRunsRequest;
class ListRunsResponse;
class ListSeriesRequest;
class ListSeriesResponse;
class ListSweepsRequest;
class ListSweepsResponse;
class ListWorkersRequest;
class ListWorkersResponse;
class PlanSweepRequest;
class PlanSweepResponse;
class ReadLogRequest;
class ReadLogResponse;
class RetryRunsRequest;
class RetryRunsResponse;
class RunDetail;
class SubmitSweepRequest;
class SubmitSweepResponse;
class Sweep;
}  // namespace switchyard::v1

namespace switchyard::client {

struct ServerChoice {
  std::string address;             // "unix:/path" or "host:port"
  std::vector<std::string> tried;  // for messages, in order
};

// `flag` (may be empty), then $SWITCHYARD_SERVER, the socket of the default data directory
// (${XDG_STATE_HOME:-~/.local/state}/switchyard/coordinator), /run/switchyard/switchyard.sock: the
// first that is given or exists. A path stands for a unix socket. kUnavailable, with all that was
// tried, when there is none; kInvalidArgument for a socket path over 107 bytes.
Result<ServerChoice> ChooseServer(const std::string& flag,
                                  const std::function<const char*(const char*)>& getenv);

enum class Patience {
  kNone,  // an unreachable coordinator is an error at once
  kWait,  // it is asked again until `timeout_seconds` have passed without an answer
};

// One channel to the coordinator and a method per call. A call ends after `timeout_seconds` at the
// latest. Statuses are the coordinator's; kUnavailable and kDeadlineExceeded name the address.
// A request may be sent twice, which is safe: changes carry a request id. Those that would have
// another effect when made again (SubmitSweep, RetryRuns, ExtendSweep, ForkRun) get it here, from
// the outbox. One thread only.
class Connection {
 public:
  // `on_repeat` is told when an id comes from an earlier request whose answer was lost.
  Connection(ServerChoice server, double timeout_seconds, Outbox outbox = Outbox(""),
             std::function<void()> on_repeat = {});
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void set_patience(Patience patience);
  const std::string& address() const;

  Status SubmitSweep(const v1::SubmitSweepRequest& request, v1::SubmitSweepResponse* response);
  Status PlanSweep(const v1::PlanSweepRequest& request, v1::PlanSweepResponse* response);
  Status ListSweeps(const v1::ListSweepsRequest& request, v1::ListSweepsResponse* response);
  Status GetSweep(const v1::GetSweepRequest& request, v1::Sweep* response);
  Status ControlSweep(const v1::ControlSweepRequest& request, v1::ControlSweepResponse* response);
  Status RetryRuns(const v1::RetryRunsRequest& request, v1::RetryRunsResponse* response);
  Status ExtendSweep(const v1::ExtendSweepRequest& request, v1::ExtendSweepResponse* response);
  Status ForkRun(const v1::ForkRunRequest& request, v1::SubmitSweepResponse* response);
  Status ListRuns(const v1::ListRunsRequest& request, v1::ListRunsResponse* response);
  Status GetRun(const v1::GetRunRequest& request, v1::RunDetail* response);
  Status ControlRun(const v1::ControlRunRequest& request, v1::ControlRunResponse* response);
  Status ExplainRun(const v1::ExplainRunRequest& request, v1::ExplainRunResponse* response);
  Status ReadLog(const v1::ReadLogRequest& request, v1::ReadLogResponse* response);
  Status ListResults(const v1::ListResultsRequest& request, v1::ListResultsResponse* response);
  Status GroupResults(const v1::GroupResultsRequest& request, v1::GroupResultsResponse* response);
  Status Compare(const v1::CompareRequest& request, v1::CompareResponse* response);
  Status EstimatePower(const v1::EstimatePowerRequest& request,
                       v1::EstimatePowerResponse* response);
  Status GetCurve(const v1::GetCurveRequest& request, v1::GetCurveResponse* response);
  Status ListSeries(const v1::ListSeriesRequest& request, v1::ListSeriesResponse* response);
  Status GetStatus(const v1::GetStatusRequest& request, v1::GetStatusResponse* response);
  Status ListWorkers(const v1::ListWorkersRequest& request, v1::ListWorkersResponse* response);
  Status ControlWorker(const v1::ControlWorkerRequest& request,
                       v1::ControlWorkerResponse* response);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::client
