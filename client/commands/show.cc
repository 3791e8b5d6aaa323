#include "client/commands/commands.h"
#include "client/commands/sweep_reader.h"
#include "client/exit_code.h"
#include "client/output/message_value.h"
#include "client/output/number.h"
#include "client/output/yaml.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

std::string TimeText(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  char buffer[32];
  return FormatUnixMilliseconds(unix_ms, buffer);
}

void AppendLine(std::string* out, std::string_view name, const std::string& value) {
  if (value.empty()) return;
  *out += StrCat(PadToWidth(name, 12, Align::kLeft), EscapeForTerminal(value), "\n");
}

std::string AttemptsTable(const pb::RunDetail& detail) {
  Listing listing;
  listing.columns = {{"ordinal", "#", Align::kRight},
                     {"state", "STATE"},
                     {"worker", "WORKER"},
                     {"slots", "SLOTS"},
                     {"end_class", "END"},
                     {"step", "STEP", Align::kRight},
                     {"lines", "LINES", Align::kRight},
                     {"time", "TOOK", Align::kRight},
                     {"reason", "REASON"}};
  for (const pb::Attempt& attempt : detail.attempts()) {
    std::string slots;
    for (const uint32_t slot : attempt.slots()) slots += StrCat(slots.empty() ? "" : ",", slot);
    const int64_t end = attempt.ended_ms() != 0 ? attempt.ended_ms() : UnixMilliseconds();
    listing.rows.push_back({{attempt.ordinal(), AttemptText(detail, attempt)},
                            {StateText(attempt.state()), {}},
                            {attempt.worker(), {}},
                            {slots, {}},
                            {attempt.end_class(), {}},
                            {attempt.final_step(), {}},
                            {attempt.acked_seq(), {}},
                            {Value(), AgeText(attempt.created_ms(), end)},
                            {attempt.reason(), {}}});
  }
  return RenderTable(listing, 0);
}

std::string RunText(const pb::RunDetail& detail) {
  const pb::Run& run = detail.run();
  std::string out;
  AppendLine(&out, "run", run.name());
  AppendLine(&out, "id", run.id());
  AppendLine(&out, "key", run.run_key());
  AppendLine(&out, "project", run.project());
  AppendLine(&out, "state", StateText(run.state()));
  AppendLine(&out, "reason", run.reason());
  AppendLine(&out, "router", run.router());
  AppendLine(&out, "audit", AuditText(run));
  AppendLine(&out, "worker", run.worker());
  AppendLine(&out, "seed", std::to_string(run.seed()));
  // Runs without training (analyze, eval) have no last step.
  AppendLine(
      &out, "step",
      run.steps_total() > 0 ? StrCat(run.step(), "/", run.steps_total()) : StrCat(run.step()));
  AppendLine(&out, "created", TimeText(run.created_ms()));
  AppendLine(&out, "started", TimeText(run.started_ms()));
  AppendLine(&out, "ended", TimeText(run.ended_ms()));
  for (const pb::AxisValue& column : run.columns()) {
    out += StrCat("  ", EscapeForTerminal(column.axis()), " = ", EscapeForTerminal(column.value()),
                  "\n");
  }
  if (detail.attempts_size() > 0) out += StrCat("\nattempts\n", AttemptsTable(detail));
  if (detail.checkpoints_size() > 0) {
    Listing listing;
    listing.columns = {{"step", "STEP", Align::kRight},
                       {"state", "STATE"},
                       {"size", "SIZE", Align::kRight},
                       {"digest", "DIGEST"},
                       {"path", "PATH"}};
    for (const pb::Checkpoint& checkpoint : detail.checkpoints()) {
      listing.rows.push_back({{checkpoint.step(), {}},
                              {checkpoint.state(), {}},
                              {checkpoint.size_bytes(), FormatBytes(checkpoint.size_bytes())},
                              {checkpoint.digest(), {}},
                              {checkpoint.path(), {}}});
    }
    out += StrCat("\ncheckpoints\n", RenderTable(listing, 0));
  }
  if (detail.history_size() > 0) {
    out += "\nhistory\n";
    for (const std::string& line : detail.history()) {
      out += StrCat("  ", EscapeForTerminal(line), "\n");
    }
  }
  if (detail.has_spec()) out += StrCat("\nspec\n", ToYaml(FromMessage(detail.spec()), 2));
  return out;
}

std::string SweepText(const pb::Sweep& sweep) {
  const pb::RunCounts& counts = sweep.counts();
  std::string out;
  AppendLine(&out, "sweep", sweep.name());
  AppendLine(&out, "id", sweep.id());
  AppendLine(&out, "hash", sweep.spec_hash());
  AppendLine(&out, "project", sweep.project());
  AppendLine(&out, "state", StateText(sweep.state()));
  AppendLine(&out, "created", TimeText(sweep.created_ms()));
  AppendLine(&out, "size", StrCat(sweep.cells(), " cells, ", sweep.runs(), " runs"));
  AppendLine(&out, "runs",
             StrCat(counts.waiting() + counts.queued(), " queued, ", counts.active(), " active, ",
                    counts.succeeded(), " succeeded, ", counts.failed(), " failed, ",
                    counts.cancelled(), " cancelled, ", counts.other(), " other"));
  AppendLine(&out, "objective",
             StrCat(sweep.objective().metric(), sweep.objective().goal() == pb::GOAL_MAXIMIZE
                                                    ? " (higher is better)"
                                                    : " (lower is better)"));
  for (const std::string& axis : sweep.axes()) {
    out += StrCat("  axis ", EscapeForTerminal(axis), "\n");
  }
  if (sweep.has_spec()) out += StrCat("\nspec\n", ToYaml(FromMessage(sweep.spec()), 2));
  return out;
}

}  // namespace

int RunShow(const Context& context, const std::string& id) {
  const Result<Selector> selector = ParseSelector(id);
  if (!selector.ok()) return context.Fail(selector.status());
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::RunDetail detail;
  pb::Sweep sweep;
  const Result<bool> is_run = ReadRunOrSweep(**connected, *selector, id, &detail, &sweep);
  if (!is_run.ok()) return context.Fail(is_run.status());
  if (context.is_for_people()) {
    context.Print(*is_run ? RunText(detail) : SweepText(sweep));
    return kExitOk;
  }
  Value document = *is_run ? FromMessage(detail) : FromMessage(sweep);
  if (context.format == Format::kQuiet) {
    document = Value::Members{{"name", *is_run ? detail.run().name() : sweep.name()}};
  }
  context.Print(RenderDocument(document, context.format));
  return kExitOk;
}

int RunExplain(const Context& context, const std::string& id) {
  const Result<std::string> run = SingleRun(id);
  if (!run.ok()) return context.Fail(run.status());
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::ExplainRunRequest request;
  request.set_run(*run);
  pb::ExplainRunResponse response;
  if (const Status status = (*connected)->ExplainRun(request, &response); !status.ok()) {
    return context.Fail(status);
  }
  Listing listing;
  listing.columns = {{"line", "EXPLANATION"}};
  for (const std::string& line : response.lines()) listing.rows.push_back({{line, {}}});
  if (context.is_for_people()) {
    for (const std::string& line : response.lines()) context.Print(EscapeForTerminal(line) + "\n");
  } else {
    context.Show(listing);
  }
  return kExitOk;
}

}  // namespace switchyard::client
