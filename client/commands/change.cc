// More of a sweep, and a run that goes on from another's checkpoint.
#include "client/commands/commands.h"
#include "client/commands/sweep_file.h"
#include "client/exit_code.h"
#include "common/base/strings.h"
#include "common/spec/document.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

Status AddSet(const std::string& text, pb::ForkRunRequest* request) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return InvalidArgument(StrCat("--set ", text, ": expected PATH=VALUE"));
  }
  spec::Node value;
  std::vector<spec::Fault> faults;
  if (!spec::ParseDocument("--set", text.substr(equals + 1), &value, &faults)) {
    return InvalidArgument(StrCat("--set ", text, ": ", spec::ToString(faults)));
  }
  pb::SetEntry* entry = request->add_sets();
  entry->set_path(text.substr(0, equals));
  spec::NodeToValue(value, entry->mutable_value());
  return OkStatus();
}

}  // namespace

int RunExtend(const Context& context, const ExtendOptions& options) {
  pb::ExtendSweepRequest request;
  if (options.file.empty() == (options.replicates == 0)) {
    return context.Fail(InvalidArgument("extend takes either a FILE or --replicates +N"));
  }
  if (!options.file.empty()) {
    if (const Status status =
            ReadSweepFile(context, options.file, options.overrides, request.mutable_spec());
        !status.ok()) {
      return context.Fail(status);
    }
  }
  request.set_sweep(options.sweep);
  request.set_replicates(options.replicates);
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::ExtendSweepResponse response;
  if (const Status status = (*connected)->ExtendSweep(request, &response); !status.ok()) {
    return context.Fail(status);
  }
  if (context.is_for_people() && response.existed()) {
    context.Print("the sweep has all of that: nothing changed\n");
  }
  Listing listing;
  listing.columns = {{"name", "SWEEP"},
                     {"cells_added", "NEW CELLS", Align::kRight},
                     {"seeds_added", "NEW SEEDS", Align::kRight}};
  listing.rows.push_back(
      {{response.sweep().name(), {}}, {response.cells_added(), {}}, {response.seeds_added(), {}}});
  context.Show(listing);
  return kExitOk;
}

int RunFork(const Context& context, const ForkOptions& options) {
  pb::ForkRunRequest request;
  request.set_run(options.run);
  request.set_step(options.step);
  for (const std::string& set : options.overrides) {
    if (const Status status = AddSet(set, &request); !status.ok()) return context.Fail(status);
  }
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::SubmitSweepResponse response;
  if (const Status status = (*connected)->ForkRun(request, &response); !status.ok()) {
    return context.Fail(status);
  }
  if (context.is_for_people() && response.existed()) {
    context.Print("the same fork was made before: nothing changed\n");
  }
  Listing listing;
  listing.columns = {{"name", "SWEEP"}, {"existed", "EXISTED"}};
  listing.rows.push_back({{response.sweep().name(), {}}, {response.existed(), {}}});
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
