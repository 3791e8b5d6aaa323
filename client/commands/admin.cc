#include <algorithm>

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output/number.h"
#include "client/output/yaml.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/admin_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

int RunWorkerList(const Context& context) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::ListWorkersResponse response;
  if (const Status status = (*connected)->ListWorkers({}, &response); !status.ok()) {
    return context.Fail(status);
  }
  Listing listing;
  listing.columns = {{"host", "HOST"},
                     {"state", "STATE"},
                     {"pool", "POOL"},
                     {"slots", "SLOTS", Align::kRight},
                     {"slots_busy", "BUSY", Align::kRight},
                     {"kind", "KIND"},
                     {"last_contact_ms_ago", "SEEN", Align::kRight},
                     {"version", "VERSION"},
                     {"metrics_address", "METRICS"},
                     {"runs", "RUNS"},
                     {"id", "ID"}};
  listing.quiet_column = listing.columns.size() - 1;
  listing.empty_note = "no workers (start one with: switchyard-worker run)";
  for (const pb::Worker& worker : response.workers()) {
    const bool has_gpu =
        std::any_of(worker.slots().begin(), worker.slots().end(),
                    [](const pb::Slot& slot) { return slot.kind() == pb::SLOT_KIND_GPU; });
    listing.rows.push_back(
        {{worker.host(), {}},
         {worker.state(), {}},
         {worker.pool(), {}},
         {static_cast<uint64_t>(worker.slots_size()), {}},
         {static_cast<uint64_t>(worker.slots_busy()), {}},
         {has_gpu ? "gpu" : "cpu", {}},
         {worker.last_contact_ms_ago(),
          StrCat(FormatDuration(static_cast<double>(worker.last_contact_ms_ago()) / 1000), " ago")},
         {worker.version(), {}},
         {worker.metrics_address(), {}},
         {Value::List(worker.runs().begin(), worker.runs().end()), {}},
         {worker.id(), {}}});
  }
  context.Show(listing);
  return kExitOk;
}

int RunStatus(const Context& context) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  pb::GetStatusResponse status;
  if (const Status result = connection.GetStatus({}, &status); !result.ok()) {
    return context.Fail(result);
  }
  pb::ListWorkersResponse workers;
  if (const Status result = connection.ListWorkers({}, &workers); !result.ok()) {
    return context.Fail(result);
  }
  std::vector<pb::Sweep> sweeps;
  if (const Status result = ListSweeps(connection, false, &sweeps); !result.ok()) {
    return context.Fail(result);
  }
  uint64_t slots = 0;
  uint64_t slots_busy = 0;
  for (const pb::Worker& worker : workers.workers()) {
    slots += static_cast<uint64_t>(worker.slots_size());
    slots_busy += worker.slots_busy();
  }
  uint64_t active = 0;
  uint64_t queued = 0;
  for (const pb::Sweep& sweep : sweeps) {
    active += sweep.counts().active();
    queued += sweep.counts().queued() + sweep.counts().waiting();
  }
  Value::Members document = {{"state", status.state()},
                             {"address", connection.address()},
                             {"version", status.version()},
                             {"cluster_id", status.cluster_id()},
                             {"generation", static_cast<uint64_t>(status.generation())},
                             {"boot", static_cast<uint64_t>(status.boot())},
                             {"metrics_address", status.metrics_address()},
                             {"database_bytes", status.database_bytes()},
                             {"wal_bytes", status.wal_bytes()},
                             {"workers", static_cast<uint64_t>(workers.workers_size())},
                             {"slots", slots},
                             {"slots_busy", slots_busy},
                             {"live_sweeps", static_cast<uint64_t>(sweeps.size())},
                             {"active_runs", active},
                             {"queued_runs", queued}};
  context.Print(RenderDocument(document, context.format));
  return kExitOk;
}

int RunVersion(const Context& context, bool with_dependencies) {
  Value::Members document = {{"version", kVersion},
                             {"commit", kCommit},
                             {"numerics_class", static_cast<uint64_t>(spec::kNumericsClass)}};
  if (with_dependencies) {
    document.push_back({"grpc", grpc::Version()});
    document.push_back(
        {"protobuf", google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION)});
    document.push_back({"compiler", __VERSION__});
  }
  if (context.is_for_people() && !with_dependencies) {
    context.Print(StrCat("switchyard ", kVersion, " (", kCommit, ")\n"));
  } else {
    context.Print(RenderDocument(document, context.format));
  }
  return kExitOk;
}

}  // namespace switchyard::client
