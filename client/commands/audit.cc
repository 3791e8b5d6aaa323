#include <algorithm>
#include <map>

#include "client/commands/commands.h"
#include "client/commands/poll_pause.h"
#include "client/exit_code.h"
#include "client/output/number.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr uint32_t kWindowMax = 128;
constexpr uint32_t kReportBytesMax = 1 << 20;

// The newest checkpoint that is still there.
const pb::Checkpoint* LastCheckpoint(const pb::RunDetail& detail) {
  const pb::Checkpoint* last = nullptr;
  for (const pb::Checkpoint& checkpoint : detail.checkpoints()) {
    if (checkpoint.state() != "published") continue;
    if (last == nullptr ||
        std::pair(checkpoint.step(), checkpoint.epoch()) > std::pair(last->step(), last->epoch())) {
      last = &checkpoint;
    }
  }
  return last;
}

// The document of an audit: the audited run's model and data, and its checkpoint by digest, so that
// the same checkpoint is audited once.
pb::SweepSpec AuditSweep(const pb::RunDetail& detail, const pb::Checkpoint& checkpoint) {
  const pb::RunSpec& audited = detail.spec();
  pb::SweepSpec sweep;
  // "sha256:" and hex digits.
  sweep.set_name(StrCat("audit-", checkpoint.digest().substr(7, 16)));
  sweep.set_project(detail.run().project());
  sweep.add_tags("audit");
  pb::RunSpec& run = *sweep.mutable_base();
  run.set_kind(pb::RUN_KIND_ANALYZE);
  *run.mutable_data() = audited.data();
  *run.mutable_model() = audited.model();
  if (audited.eval().allow_noncausal()) {
    *run.mutable_eval() = audited.eval();
    run.mutable_eval()->clear_every_steps();
    run.mutable_eval()->clear_final();
  }
  pb::InitSpec& init = *run.mutable_init();
  init.set_run(detail.run().id());
  init.set_checkpoint(std::to_string(checkpoint.step()));
  init.set_step(checkpoint.step());
  init.set_digest(checkpoint.digest());
  pb::JobSpec& job = *run.mutable_analyze()->add_jobs();
  job.set_id("audit");
  pb::ValueEntry& length = *job.add_options();
  length.set_key("length");
  length.mutable_value()->set_scalar(
      std::to_string(std::clamp<uint32_t>(audited.train().target_len(), 2, kWindowMax)));
  sweep.mutable_replicates()->add_seeds(detail.run().seed());
  return sweep;
}

// The audit's run, once it has ended.
Status WaitForRun(const Context& context, Connection& connection, const std::string& name,
                  pb::RunDetail* detail) {
  connection.set_patience(Patience::kWait);
  pb::GetRunRequest request;
  request.set_run(name);
  PollPause pause(context);
  while (true) {
    const Status status = connection.GetRun(request, detail);
    // A sweep is expanded after it was taken on.
    if (!status.ok() && status.code() != Code::kNotFound) return status;
    if (status.ok() && IsTerminal(detail->run().state())) return OkStatus();
    pause.Rest();
  }
}

Status ReadReport(const Context& context, Connection& connection, const std::string& run,
                  std::string* text) {
  pb::ReadLogRequest request;
  request.set_run(run);
  request.set_stream(pb::LOG_STREAM_STDOUT);
  request.set_max_bytes(kReportBytesMax);
  PollPause pause(context);
  while (text->size() < kReportBytesMax) {
    pb::ReadLogResponse response;
    SWITCHYARD_RETURN_IF_ERROR(connection.ReadLog(request, &response));
    *text += response.data();
    request.set_attempt(response.attempt());
    request.set_offset(response.next_offset());
    if (!response.data().empty()) continue;
    if (response.at_end()) return OkStatus();
    pause.Rest();
  }
  return OkStatus();
}

// Last values of the audit's series by name.
Status ReadVerdict(Connection& connection, const std::string& run,
                   std::map<std::string, double>* values) {
  pb::ListSeriesRequest request;
  request.set_run(run);
  pb::ListSeriesResponse response;
  SWITCHYARD_RETURN_IF_ERROR(connection.ListSeries(request, &response));
  for (const pb::SeriesSummary& series : response.series()) {
    if (series.name().starts_with("audit/")) (*values)[series.name()] = series.last();
  }
  if (values->contains("audit/undeclared")) return OkStatus();
  return Internal("the audit ended without a verdict");
}

void ShowVerdict(const Context& context, const pb::RunDetail& audited,
                 const pb::Checkpoint& checkpoint, const pb::RunDetail& audit,
                 const std::map<std::string, double>& values, const std::string& report) {
  if (context.is_for_people()) {
    context.Print(StrCat("audit of ", EscapeForTerminal(audited.run().name()), " after step ",
                         checkpoint.step(), "\n"));
    for (const std::string& line : StrSplit(report, '\n')) {
      if (!line.empty()) context.Print(EscapeForTerminal(line) + "\n");
    }
    return;
  }
  Value::Members document = {{"run", audited.run().name()},
                             {"step", checkpoint.step()},
                             {"digest", checkpoint.digest()},
                             {"audit", audit.run().name()}};
  for (const auto& [name, value] : values) document.push_back({name, value});
  document.push_back({"report", report});
  if (context.format == Format::kQuiet) document = {{"name", audit.run().name()}};
  context.Print(RenderDocument(document, context.format));
}

}  // namespace

int RunAudit(const Context& context, const std::string& id) {
  const Result<std::string> single = SingleRun(id);
  if (!single.ok()) return context.Fail(single.status());
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  pb::GetRunRequest get;
  get.set_run(*single);
  pb::RunDetail audited;
  if (const Status status = connection.GetRun(get, &audited); !status.ok()) {
    return context.Fail(status);
  }
  if (!spec::IsTrained(audited.spec().kind()) || audited.spec().init().has_hf()) {
    return context.Fail(
        InvalidArgument(StrCat(audited.run().name(),
                               " has no model of its own in its spec: an audit is for runs "
                               "that train one from their seed")));
  }
  const pb::Checkpoint* checkpoint = LastCheckpoint(audited);
  if (checkpoint == nullptr || checkpoint->digest().size() != 71) {
    return context.Fail(FailedPrecondition(
        StrCat(audited.run().name(), " has no checkpoint that could be audited")));
  }
  pb::SubmitSweepRequest submit;
  *submit.mutable_spec() = AuditSweep(audited, *checkpoint);
  pb::SubmitSweepResponse submitted;
  if (const Status status = connection.SubmitSweep(submit, &submitted); !status.ok()) {
    return context.Fail(status);
  }
  pb::RunDetail audit;
  if (const Status status =
          WaitForRun(context, connection, StrCat(submitted.sweep().name(), "/1"), &audit);
      !status.ok()) {
    return context.Fail(status);
  }
  if (audit.run().state() != pb::RUN_STATE_SUCCEEDED) {
    context.Note(StrCat("the audit ", audit.run().name(), " ", StateText(audit.run().state()), ": ",
                        audit.run().reason()));
    return kExitRunFailed;
  }
  std::string report;
  std::map<std::string, double> values;
  Status status = ReadReport(context, connection, audit.run().id(), &report);
  if (status.ok()) status = ReadVerdict(connection, audit.run().id(), &values);
  if (!status.ok()) return context.Fail(status);
  ShowVerdict(context, audited, *checkpoint, audit, values, report);
  return values["audit/undeclared"] == 0 ? kExitOk : kExitRunFailed;
}

}  // namespace switchyard::client
