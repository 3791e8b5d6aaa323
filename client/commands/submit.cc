#include "client/commands/commands.h"
#include "client/commands/sweep_file.h"
#include "client/exit_code.h"
#include "client/output/message_value.h"
#include "client/output/number.h"
#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// From the coordinator, or, when none can be reached, worked out here.
Status MakePlan(const Context& context, const pb::SweepSpec& spec, uint32_t cells_max,
                pb::PlanSweepResponse* plan) {
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  Status status = connected.status();
  if (connected.ok()) {
    pb::PlanSweepRequest request;
    *request.mutable_spec() = spec;
    // The wire's 0 means 100.
    request.set_max_cells(cells_max == 0 ? UINT32_MAX : cells_max);
    status = (*connected)->PlanSweep(request, plan);
    if (status.ok()) return status;
  }
  // A coordinator that was named but does not answer is an error; none at all is a plan offline.
  const bool is_named = !context.server.empty();
  if (status.code() != Code::kUnavailable || is_named) return status;
  context.Note(StrCat("planned without a coordinator, so without reused runs and cost (",
                      status.message(), ")"));
  *plan = PlanOffline(spec, cells_max);
  return OkStatus();
}

void ShowPlan(const Context& context, const pb::SweepSpec& spec,
              const pb::PlanSweepResponse& plan) {
  if (context.format == Format::kJson) {
    Value::Members document = *FromMessage(plan).members();
    document.insert(document.begin(), Member{"name", spec.name()});
    context.Print(RenderDocument(document, context.format));
    return;
  }
  if (!context.is_for_people()) {
    context.Show(PlanListing(plan));
    return;
  }
  context.Print(StrCat(EscapeForTerminal(PlanSummary(spec, plan)), "\n"));
  context.Show(PlanListing(plan));
  const auto listed = static_cast<uint64_t>(plan.plan_size());
  if (listed < plan.cells()) {
    context.Print(StrCat("… and ", plan.cells() - listed, " more cells (plan --cells 0)\n"));
  }
  for (const std::string& notice : plan.notices()) {
    context.Print(StrCat("note: ", EscapeForTerminal(notice), "\n"));
  }
}

void ShowSubmitted(const Context& context, const pb::SubmitSweepResponse& response) {
  const pb::Sweep& sweep = response.sweep();
  switch (context.format) {
    case Format::kTable:
      if (response.existed()) {
        context.Print(
            "the same document was submitted before: it is the same sweep, nothing "
            "changed\n");
      } else if (response.reused_runs() > 0) {
        context.Print(StrCat(response.reused_runs(), " of ", sweep.runs(),
                             " runs are reused (--rerun makes new ones)\n"));
      }
      context.Print(EscapeForTerminal(sweep.name()) + "\n");
      return;
    case Format::kQuiet:
      context.Print(EscapeForTerminal(sweep.name()) + "\n");
      return;
    case Format::kJson:
    case Format::kJsonLines:
    case Format::kCsv:
      context.Print(RenderDocument(Value::Members{{"name", sweep.name()},
                                                  {"id", sweep.id()},
                                                  {"existed", response.existed()},
                                                  {"cells", sweep.cells()},
                                                  {"runs", sweep.runs()},
                                                  {"reused_runs", response.reused_runs()},
                                                  {"spec_hash", sweep.spec_hash()}},
                                   context.format));
      return;
  }
}

}  // namespace

int RunPlan(const Context& context, const PlanOptions& options) {
  pb::SweepSpec spec;
  if (const Status status = ReadSweepFile(context, options.file, options.overrides, &spec);
      !status.ok()) {
    return context.Fail(status);
  }
  pb::PlanSweepResponse plan;
  if (const Status status = MakePlan(context, spec, options.cells_max, &plan); !status.ok()) {
    return context.Fail(status);
  }
  ShowPlan(context, spec, plan);
  return kExitOk;
}

int RunSubmit(const Context& context, const SubmitOptions& options) {
  if (options.is_dry_run) {
    return RunPlan(context, {.file = options.file, .overrides = options.overrides});
  }
  pb::SubmitSweepRequest request;
  if (const Status status =
          ReadSweepFile(context, options.file, options.overrides, request.mutable_spec());
      !status.ok()) {
    return context.Fail(status);
  }
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  if (context.is_for_people()) {
    pb::PlanSweepRequest plan_request;
    *plan_request.mutable_spec() = request.spec();
    plan_request.set_max_cells(1);
    pb::PlanSweepResponse plan;
    if (const Status status = connection.PlanSweep(plan_request, &plan); !status.ok()) {
      return context.Fail(status);
    }
    context.Print(StrCat(EscapeForTerminal(PlanSummary(request.spec(), plan)), "\n"));
    for (const std::string& notice : plan.notices()) {
      context.Print(StrCat("note: ", EscapeForTerminal(notice), "\n"));
    }
  }
  request.set_rerun(options.is_rerun);
  pb::SubmitSweepResponse response;
  if (const Status status = connection.SubmitSweep(request, &response); !status.ok()) {
    return context.Fail(status);
  }
  ShowSubmitted(context, response);
  const std::string& name = response.sweep().id();
  if (options.follows) {
    if (const int code = RunWatch(context, {.id = name}); code != kExitOk) return code;
  }
  if (options.waits || options.follows) return RunWait(context, {.selectors = {name}});
  return kExitOk;
}

}  // namespace switchyard::client
