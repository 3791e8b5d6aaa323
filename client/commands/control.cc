// Verbs that act on runs, sweeps and workers.
#include <map>

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "common/base/ids.h"
#include "common/base/strings.h"
#include "switchyard/v1/admin_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

int RunControl(const Context& context, const ControlOptions& options) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  Selection selection;
  if (const Status status = Resolve(connection, options.selectors, &selection); !status.ok()) {
    return context.Fail(status);
  }
  const auto action = static_cast<pb::Action>(options.action);
  Listing listing;
  listing.columns = {{"name", "NAME"}, {"runs", "RUNS", Align::kRight}, {"state", "STATE"}};
  listing.empty_note = "nothing is selected";
  for (const pb::Sweep& sweep : selection.sweeps) {
    pb::ControlSweepRequest request;
    request.set_request_id(NewUuidV7().ToString());
    request.set_sweep(sweep.id());
    request.set_action(action);
    request.set_reason(options.reason);
    request.set_priority(options.priority);
    pb::ControlSweepResponse response;
    if (const Status status = connection.ControlSweep(request, &response); !status.ok()) {
      return context.Fail(status);
    }
    listing.rows.push_back({{sweep.name(), {}}, {response.runs_affected(), {}}, {Value(), "-"}});
  }
  for (const pb::Run& run : selection.runs) {
    pb::ControlRunRequest request;
    request.set_request_id(NewUuidV7().ToString());
    request.set_run(run.id());
    request.set_action(action);
    request.set_reason(options.reason);
    request.set_priority(options.priority);
    pb::ControlRunResponse response;
    if (const Status status = connection.ControlRun(request, &response); !status.ok()) {
      return context.Fail(status);
    }
    listing.rows.push_back(
        {{run.name(), {}}, {uint64_t{1}, {}}, {StateText(response.run().state()), {}}});
  }
  context.Show(listing);
  return kExitOk;
}

int RunRetry(const Context& context, const std::vector<std::string>& selectors) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  Selection selection;
  if (const Status status = Resolve(connection, selectors, &selection); !status.ok()) {
    return context.Fail(status);
  }
  // One call per sweep; without numbers the coordinator takes what has failed.
  std::map<std::string, std::vector<uint64_t>> wanted;
  for (const pb::Sweep& sweep : selection.sweeps) wanted[sweep.id()];
  for (const pb::Run& run : selection.runs) wanted[run.sweep_id()].push_back(run.number());
  Listing listing;
  listing.columns = {{"name", "SWEEP"}, {"runs", "NEW RUNS", Align::kRight}};
  listing.empty_note = "nothing is selected";
  for (const auto& [sweep, numbers] : wanted) {
    pb::RetryRunsRequest request;
    request.set_sweep(sweep);
    for (const uint64_t number : numbers) request.add_numbers(number);
    pb::RetryRunsResponse response;
    if (const Status status = connection.RetryRuns(request, &response); !status.ok()) {
      return context.Fail(status);
    }
    listing.rows.push_back({{response.sweep().name(), {}}, {response.runs_made(), {}}});
  }
  context.Show(listing);
  return kExitOk;
}

int RunControlWorker(const Context& context, const ControlWorkerOptions& options) {
  const auto action = static_cast<pb::WorkerAction>(options.action);
  if (action == pb::WORKER_ACTION_FENCE && !options.confirms_death) {
    return context.Fail(InvalidArgument(
        "fence replaces the worker's attempts at once: say --confirm-dead when you know that all "
        "its processes are gone"));
  }
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Listing listing;
  listing.columns = {{"name", "WORKER"}, {"runs", "RUNS STOPPED", Align::kRight}};
  for (const std::string& worker : options.workers) {
    pb::ControlWorkerRequest request;
    request.set_request_id(NewUuidV7().ToString());
    request.set_worker(worker);
    request.set_action(action);
    request.set_reason(options.reason);
    if (options.deadline_seconds.has_value()) {
      request.set_deadline_ms(static_cast<uint32_t>(*options.deadline_seconds) * 1000);
    }
    pb::ControlWorkerResponse response;
    if (const Status status = (*connected)->ControlWorker(request, &response); !status.ok()) {
      return context.Fail(status);
    }
    listing.rows.push_back({{worker, {}}, {response.runs_affected(), {}}});
  }
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
