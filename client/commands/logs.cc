#include <algorithm>

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "common/base/strings.h"
#include "switchyard/v1/run_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr uint32_t kChunkBytes = 1 << 20;
constexpr int kFollowPauseMs = 500;
// Follow: so many pauses without output, and an attempt that has ended is left for the next one.
constexpr int kQuietPausesMax = 20;
// A line without an end is shown in pieces of this size.
constexpr size_t kHeldBytesMax = 64 << 10;

constexpr std::string_view kRestIsMissing =
    "[the rest of the output has not come from the worker yet]";

// Writes log bytes: as they are, or line by line with everything escaped that could act on a
// terminal. A line is held back until it is whole, so that no character is cut in two.
class LogWriter {
 public:
  LogWriter(const Context& context, bool is_raw) : context_(context), is_raw_(is_raw) {}

  void Write(const std::string& data) {
    if (is_raw_) {
      context_.Print(data);
      return;
    }
    held_ += data;
    std::string out;
    size_t begin = 0;
    for (size_t end = held_.find('\n'); end != std::string::npos; end = held_.find('\n', begin)) {
      out += EscapeLine(WithoutReturn(std::string_view(held_).substr(begin, end - begin)));
      out += '\n';
      begin = end + 1;
    }
    held_.erase(0, begin);
    if (held_.size() > kHeldBytesMax) {
      out += EscapeLine(held_);
      held_.clear();
    }
    context_.Print(out);
  }

  void Finish() {
    if (!held_.empty()) context_.Print(EscapeLine(WithoutReturn(held_)) + "\n");
    held_.clear();
  }

 private:
  static std::string_view WithoutReturn(std::string_view line) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line;
  }

  const Context& context_;
  bool is_raw_;
  std::string held_;
};

// The state of reading one run's output over its attempts.
struct Reading {
  pb::ReadLogRequest request;
  bool goes_on = false;      // follow, and no attempt was asked for: later attempts too
  bool is_run_over = false;  // when the reading began
  int quiet_pauses = 0;
  bool is_ended = false;
};

// One call; writes what came.
Status ReadOnce(const Context& context, Connection& connection, bool follows, LogWriter* writer,
                Reading* reading) {
  pb::ReadLogResponse response;
  const Status status = connection.ReadLog(reading->request, &response);
  // A run that has not started has no output yet.
  const bool may_come =
      reading->goes_on && reading->request.attempt() == 0 &&
      (status.code() == Code::kNotFound || status.code() == Code::kFailedPrecondition);
  if (!status.ok() && !may_come) return status;
  if (status.ok()) {
    if (response.skipped() > 0) {
      context.Note(StrCat("[", response.skipped(), " bytes in the middle were not kept]"));
    }
    writer->Write(response.data());
    reading->request.set_attempt(response.attempt());
    reading->request.set_offset(response.next_offset());
    if (!response.data().empty() || response.skipped() > 0) {
      reading->quiet_pauses = 0;
      return OkStatus();
    }
    const bool is_last = response.at_end() && !reading->goes_on;
    if (!follows || is_last) {
      if (!response.at_end() && reading->is_run_over) context.Note(kRestIsMissing);
      reading->is_ended = true;
      return OkStatus();
    }
  }
  // Nothing more for now: the attempt still writes, another one follows, or the run is over.
  if (status.ok() && !response.at_end() && ++reading->quiet_pauses < kQuietPausesMax) {
    context.console.sleep(kFollowPauseMs);
    return OkStatus();
  }
  reading->quiet_pauses = 0;
  pb::GetRunRequest run_request;
  run_request.set_run(reading->request.run());
  pb::RunDetail detail;
  SWITCHYARD_RETURN_IF_ERROR(connection.GetRun(run_request, &detail));
  const bool has_next = status.ok() && detail.run().attempts() > reading->request.attempt();
  if (status.ok() && !response.at_end() && (has_next || IsTerminal(detail.run().state()))) {
    // Its worker is out of contact, say.
    context.Note(kRestIsMissing);
  }
  if (has_next && reading->goes_on) {
    writer->Finish();
    reading->request.set_attempt(reading->request.attempt() + 1);
    reading->request.set_offset(0);
    context.Note(StrCat("[attempt ", reading->request.attempt(), "]"));
  } else if (has_next || IsTerminal(detail.run().state())) {
    reading->is_ended = true;
  } else {
    context.console.sleep(kFollowPauseMs);
  }
  return OkStatus();
}

}  // namespace

int RunLogs(const Context& context, const LogsOptions& options) {
  const Result<std::string> run = SingleRun(options.run);
  if (!run.ok()) return context.Fail(run.status());
  bool is_raw = options.is_raw;
  if (is_raw && context.console.out_is_terminal) {
    context.Note("--raw is for files and pipes: escaping, since the output is a terminal");
    is_raw = false;
  }
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  Connection& connection = **connected;
  // A bare number means a run of the last sweep, which may be another one by the next call.
  pb::GetRunRequest run_request;
  run_request.set_run(*run);
  pb::RunDetail detail;
  if (const Status status = connection.GetRun(run_request, &detail); !status.ok()) {
    return context.Fail(status);
  }
  if (options.follows) connection.set_patience(Patience::kWait);

  LogWriter writer(context, is_raw);
  Reading reading;
  reading.goes_on = options.follows && options.attempt == 0;
  reading.is_run_over = IsTerminal(detail.run().state());
  reading.request.set_run(detail.run().id());
  reading.request.set_stream(options.is_stderr ? pb::LOG_STREAM_STDERR : pb::LOG_STREAM_STDOUT);
  reading.request.set_attempt(options.attempt);
  reading.request.set_max_bytes(kChunkBytes);
  while (!reading.is_ended) {
    if (const Status status = ReadOnce(context, connection, options.follows, &writer, &reading);
        !status.ok()) {
      writer.Finish();
      return context.Fail(status);
    }
  }
  writer.Finish();
  return kExitOk;
}

}  // namespace switchyard::client
