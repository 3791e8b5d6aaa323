#include <map>

#include "client/commands/commands.h"
#include "client/commands/poll_pause.h"
#include "client/exit_code.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// Asks until all of the selection is terminal, ever more slowly, and keeps it up to date.
Status PollToTheEnd(const Context& context, Connection& connection, Selection* selection) {
  PollPause pause(context);
  for (pb::Sweep& sweep : selection->sweeps) {
    pb::GetSweepRequest request;
    request.set_sweep(sweep.id());
    while (!IsTerminal(sweep.state())) {
      pause.Rest();
      SWITCHYARD_RETURN_IF_ERROR(connection.GetSweep(request, &sweep));
    }
    pause.Restart();
  }
  for (pb::Run& run : selection->runs) {
    pb::GetRunRequest request;
    request.set_run(run.id());
    while (!IsTerminal(run.state())) {
      pause.Rest();
      pb::RunDetail detail;
      SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(request, &detail));
      run = detail.run();
    }
    pause.Restart();
  }
  return OkStatus();
}

// Ended by what lies outside the run: its last attempt was lost or ended by the infrastructure.
Result<bool> IsInfrastructureFailure(Connection& connection, const pb::Run& run) {
  pb::GetRunRequest request;
  request.set_run(run.id());
  pb::RunDetail detail;
  SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(request, &detail));
  if (detail.attempts_size() == 0) return false;
  const pb::Attempt& last = detail.attempts(detail.attempts_size() - 1);
  return last.state() == pb::ATTEMPT_STATE_LOST || last.end_class() == "infra" ||
         last.end_class() == "fenced";
}

}  // namespace

int RunWait(const Context& context, const WaitOptions& options) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  Selection selection;
  if (const Status status = Resolve(connection, options.selectors, &selection); !status.ok()) {
    return context.Fail(status);
  }
  // From here on a restart of the coordinator is waited out.
  connection.set_patience(Patience::kWait);
  if (const Status status = PollToTheEnd(context, connection, &selection); !status.ok()) {
    return context.Fail(status);
  }

  std::map<std::string, uint64_t> ended;
  std::vector<pb::Run> failures;
  const auto count = [&](const pb::Run& run) {
    if (IsFailure(run.state())) failures.push_back(run);
  };
  for (const pb::Sweep& sweep : selection.sweeps) {
    const pb::RunCounts& counts = sweep.counts();
    ended["succeeded"] += counts.succeeded();
    ended["failed"] += counts.failed();
    ended["cancelled"] += counts.cancelled();
    ended["other"] += counts.other();
    pb::ListRunsRequest request;
    request.set_sweep(sweep.id());
    request.add_states(pb::RUN_STATE_FAILED);
    request.add_states(pb::RUN_STATE_QUARANTINED);
    if (const Status status = ForEachRun(connection, request, count); !status.ok()) {
      return context.Fail(status);
    }
  }
  for (const pb::Run& run : selection.runs) {
    ++ended[StateText(run.state())];
    count(run);
  }

  bool has_failed = false;
  for (const pb::Run& run : failures) {
    context.Note(StrCat(run.name(), " ", StateText(run.state()), ": ", run.reason()));
    if (options.fail_on == FailOn::kAny) has_failed = true;
    if (options.fail_on == FailOn::kInfra) {
      const Result<bool> is_infra = IsInfrastructureFailure(connection, run);
      if (!is_infra.ok()) return context.Fail(is_infra.status());
      has_failed = has_failed || *is_infra;
    }
  }
  Listing listing;
  listing.columns = {{"state", "STATE"}, {"runs", "RUNS", Align::kRight}};
  listing.empty_note = "nothing to wait for";
  for (const auto& [state, runs] : ended) {
    if (runs > 0) listing.rows.push_back({{state, {}}, {runs, {}}});
  }
  if (context.format != Format::kQuiet) context.Show(listing);
  return has_failed ? kExitRunFailed : kExitOk;
}

}  // namespace switchyard::client
