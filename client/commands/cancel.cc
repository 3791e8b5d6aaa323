#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "common/base/ids.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

int RunCancel(const Context& context, const CancelOptions& options) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  Selection selection;
  if (const Status status = Resolve(connection, options.selectors, &selection); !status.ok()) {
    return context.Fail(status);
  }
  Listing listing;
  listing.columns = {{"name", "CANCELLED"}, {"runs", "RUNS", Align::kRight}, {"state", "STATE"}};
  listing.empty_note = "nothing to cancel";
  for (const pb::Sweep& sweep : selection.sweeps) {
    pb::CancelSweepRequest request;
    request.set_request_id(NewUuidV7().ToString());
    request.set_sweep(sweep.id());
    request.set_reason(options.reason);
    pb::CancelSweepResponse response;
    if (const Status status = connection.CancelSweep(request, &response); !status.ok()) {
      return context.Fail(status);
    }
    listing.rows.push_back({{sweep.name(), {}}, {response.runs_affected(), {}}, {Value(), "-"}});
  }
  for (const pb::Run& run : selection.runs) {
    pb::CancelRunRequest request;
    request.set_request_id(NewUuidV7().ToString());
    request.set_run(run.id());
    request.set_reason(options.reason);
    pb::CancelRunResponse response;
    if (const Status status = connection.CancelRun(request, &response); !status.ok()) {
      return context.Fail(status);
    }
    listing.rows.push_back(
        {{run.name(), {}}, {uint64_t{1}, {}}, {StateText(response.run().state()), {}}});
  }
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
