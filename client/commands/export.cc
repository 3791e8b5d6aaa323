#include <algorithm>
#include <csignal>
#include <memory>
#include <set>

#include "client/commands/commands.h"
#include "client/commands/runs.h"
#include "client/commands/sweep_reader.h"
#include "client/exit_code.h"
#include "client/export/export_writer.h"
#include "client/export/staged_folder.h"
#include "client/output/json.h"
#include "client/output/message_value.h"
#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "switchyard/v1/results_service.pb.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

volatile std::sig_atomic_t g_interrupt = 0;
extern "C" void NoticeInterrupt(int signal_number) { g_interrupt = signal_number; }

// While it lives, SIGINT and SIGTERM only leave a note, so that what is half done is taken away;
// behind it they do what they always do.
class InterruptNote {
 public:
  InterruptNote() {
    g_interrupt = 0;
    struct sigaction action {};
    action.sa_handler = NoticeInterrupt;
    sigaction(SIGINT, &action, &interrupt_);
    sigaction(SIGTERM, &action, &terminate_);
  }
  ~InterruptNote() {
    sigaction(SIGINT, &interrupt_, nullptr);
    sigaction(SIGTERM, &terminate_, nullptr);
    if (g_interrupt != 0) std::raise(g_interrupt);
  }
  InterruptNote(const InterruptNote&) = delete;
  InterruptNote& operator=(const InterruptNote&) = delete;

  static Status Check() {
    return g_interrupt == 0 ? OkStatus() : Status(Code::kCancelled, "interrupted");
  }

 private:
  struct sigaction interrupt_ {};
  struct sigaction terminate_ {};
};

// CLI11 has checked the word.
std::unique_ptr<ExportWriter> MakeWriter(const std::string& format, const StagedFolder& folder) {
  if (format == "jsonl") return MakeJsonLinesWriter(folder.path());
  if (format == "tensorboard") return MakeTensorBoardWriter(folder.path());
  if (format == "mlflow") return MakeMlflowWriter(folder.path(), folder.target());
  return MakeCsvWriter(folder.path());
}

struct Written {
  uint64_t runs = 0;
  uint64_t points = 0;
};

// Where the files come from, in every format.
Status WriteProvenance(const pb::Sweep& sweep, const ExportOptions& options,
                       const std::string& folder) {
  const Value document = Value::Members{{"switchyard_version", kVersion},
                                        {"exported_ms", UnixMilliseconds()},
                                        {"where", options.where},
                                        {"sweep", FromMessage(sweep)}};
  return WriteNewFile(folder + "/sweep.json", ToJson(document, JsonStyle::kIndented) + "\n");
}

Status WriteRun(Connection& connection, const ExportOptions& options, const pb::Run& run,
                ExportWriter& writer, std::set<std::string>* missing, Written* written) {
  pb::RunDetail detail;
  SWITCHYARD_RETURN_IF_ERROR(ReadDetail(connection, run, &detail));
  SWITCHYARD_RETURN_IF_ERROR(writer.BeginRun(detail));
  for (const pb::SeriesSummary& series : detail.run().summary()) {
    missing->erase(series.name());
    const bool is_wanted = options.series.empty() ||
                           std::ranges::find(options.series, series.name()) != options.series.end();
    if (!is_wanted) continue;
    SWITCHYARD_RETURN_IF_ERROR(ReadCurve(
        connection, run.id(), series.name(), 0, [&](const pb::GetCurveResponse& page) -> Status {
          SWITCHYARD_RETURN_IF_ERROR(InterruptNote::Check());
          written->points += static_cast<uint64_t>(page.points_size());
          return writer.AddPage(series.name(), page);
        }));
  }
  ++written->runs;
  return writer.EndRun();
}

Status Export(const Context& context, const ExportOptions& options, pb::Sweep* sweep,
              Written* written) {
  SWITCHYARD_ASSIGN_OR_RETURN(StagedFolder folder, StagedFolder::Make(options.out));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, context.Connect());
  SWITCHYARD_RETURN_IF_ERROR(ReadSweep(*connection, options.sweep, sweep));
  std::vector<pb::Run> runs;
  SWITCHYARD_RETURN_IF_ERROR(ReadRuns(*connection, sweep->id(), options.where, {}, &runs));
  SWITCHYARD_RETURN_IF_ERROR(WriteProvenance(*sweep, options, folder.path()));
  const std::unique_ptr<ExportWriter> writer = MakeWriter(options.format, folder);
  SWITCHYARD_RETURN_IF_ERROR(writer->Begin(*sweep));
  std::set<std::string> missing(options.series.begin(), options.series.end());
  for (const pb::Run& run : runs) {
    SWITCHYARD_RETURN_IF_ERROR(InterruptNote::Check());
    SWITCHYARD_RETURN_IF_ERROR(WriteRun(*connection, options, run, *writer, &missing, written));
  }
  if (!missing.empty()) {
    return NotFound(StrCat("--series ", *missing.begin(), ": no exported run of ", sweep->name(),
                           " has it; `switchyard metrics RUN` lists a run's series"));
  }
  SWITCHYARD_RETURN_IF_ERROR(writer->Finish());
  return folder.Publish();
}

}  // namespace

int RunExport(const Context& context, const ExportOptions& options) {
  const InterruptNote note;
  pb::Sweep sweep;
  Written written;
  const Status status = Export(context, options, &sweep, &written);
  if (!status.ok()) return context.Fail(status);
  if (!IsTerminal(sweep.state())) {
    context.Note(StrCat(sweep.name(), " is ", StateText(sweep.state()),
                        ": exported is what was recorded so far"));
  }
  const Value said = Value::Members{{"sweep", sweep.name()},
                                    {"folder", options.out},
                                    {"runs", written.runs},
                                    {"points", written.points}};
  if (context.is_for_people()) {
    context.Print(StrCat(EscapeForTerminal(sweep.name()), ": ", written.runs, " runs, ",
                         written.points, " points in ", EscapeForTerminal(options.out), "\n"));
  } else if (context.format == Format::kQuiet) {
    context.Print(EscapeForTerminal(options.out) + "\n");
  } else {
    context.Print(RenderDocument(said, context.format));
  }
  return kExitOk;
}

}  // namespace switchyard::client
