#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include <google/protobuf/util/json_util.h>

#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output/number.h"
#include "client/resume_comparison.h"
#include "client/trainer_process.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

constexpr int kTrainerStopped = 75;  // docs/attempt-directory.md
constexpr uint64_t kErrorBytesMax = 1 << 20;
constexpr size_t kErrorBytesShown = 2000;

// A folder that goes with its owner unless it is to be kept.
class Scratch {
 public:
  static Result<Scratch> Make() {
    std::error_code error;
    const std::filesystem::path base = std::filesystem::temp_directory_path(error);
    if (error) return Internal(StrCat("no folder for temporary files: ", error.message()));
    std::string pattern = (base / "switchyard-verify-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) return ErrnoStatus("create", pattern, errno);
    return Scratch(std::move(pattern));
  }
  Scratch(Scratch&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ~Scratch() {
    if (path_.empty() || is_kept_) return;
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  void Keep() { is_kept_ = true; }

 private:
  explicit Scratch(std::string path) : path_(std::move(path)) {}
  std::string path_;
  bool is_kept_ = false;
};

// How one interrupted training compares with the uninterrupted one.
struct Outcome {
  std::string how;    // "stopped", "killed"
  uint64_t step = 0;  // where
  uint64_t points = 0;
  TensorComparison tensors;
  std::string difference;  // the first one; empty: none
};

// Trains one spec in folders of the scratch, by processes of the trainer.
class Verifier {
 public:
  Verifier(const VerifyResumeOptions& options, std::string trainer, const std::string& scratch,
           uint64_t steps)
      : options_(options), trainer_(std::move(trainer)), scratch_(scratch), steps_(steps) {}

  // The one that the others are compared with.
  Status TrainWhole() { return Train("whole", steps_, 0, &whole_); }

  Result<Outcome> StopAndResume(uint64_t step) {
    Outcome outcome{.how = "stopped", .step = step};
    ReportedCurves curves;
    SWITCHYARD_RETURN_IF_ERROR(Train("stopped", step, 0, &curves));
    SWITCHYARD_RETURN_IF_ERROR(Train("stopped", steps_, 0, &curves));
    return Compare("stopped", curves, std::move(outcome));
  }

  Result<Outcome> KillAndResume(uint64_t step) {
    Outcome outcome{.how = "killed", .step = step};
    ReportedCurves curves;
    SWITCHYARD_RETURN_IF_ERROR(Train("killed", steps_, step, &curves));
    SWITCHYARD_RETURN_IF_ERROR(Train("killed", steps_, 0, &curves));
    return Compare("killed", curves, std::move(outcome));
  }

 private:
  // To `stop_at`; killed as soon as it has reported `kill_at` (0: not).
  Status Train(const std::string& folder, uint64_t stop_at, uint64_t kill_at,
               ReportedCurves* curves) {
    std::vector<std::string> arguments = {
        "--spec",    StrCat(scratch_, "/run.json"),    "--dir",     StrCat(scratch_, "/", folder),
        "--threads", std::to_string(options_.threads), "--stop-at", std::to_string(stop_at)};
    // As often as it can: a kill falls between and into checkpoints.
    if (kill_at > 0) arguments.insert(arguments.end(), {"--checkpoint-every", "1"});
    const std::string errors = StrCat(scratch_, "/stderr.txt");
    Status read;
    SWITCHYARD_ASSIGN_OR_RETURN(
        const TrainerEnd end,
        RunTrainerProcess(trainer_, arguments, errors, [&](std::string_view line) {
          if (read.ok()) read = curves->Add(line);
          return read.ok() && (kill_at == 0 || curves->last_step() < kill_at);
        }));
    SWITCHYARD_RETURN_IF_ERROR(read);
    if (end.signal != 0 && kill_at > 0) return RemoveUnannounced(folder, *curves);
    if (end.signal == 0 && (end.exit_code == 0 || end.exit_code == kTrainerStopped)) {
      return OkStatus();
    }
    const Result<std::string> said = ReadFile(errors, kErrorBytesMax);
    std::string text = said.ok() ? *said : said.status().message();
    if (text.size() > kErrorBytesShown) text.erase(0, text.size() - kErrorBytesShown);
    return FailedPrecondition(
        StrCat("the trainer ended with ",
               end.signal != 0 ? StrCat("signal ", end.signal) : StrCat("code ", end.exit_code),
               ": ", text));
  }

  // A run goes on from checkpoints that it has announced behind all points up to there; one that
  // was published but not announced before a kill is not among them.
  Status RemoveUnannounced(const std::string& folder, const ReportedCurves& curves) const {
    const std::string root = StrCat(scratch_, "/", folder);
    if (!FileExists(root)) return OkStatus();  // killed before its first checkpoint
    SWITCHYARD_ASSIGN_OR_RETURN(const auto names, ListDirectory(root));
    for (const std::string& name : names) {
      const auto step = ParseUint64(std::string_view(name).substr(name.find('-') + 1));
      if (!name.starts_with(".") && step && curves.checkpoints().contains(*step)) continue;
      SWITCHYARD_RETURN_IF_ERROR(RemoveTree(StrCat(root, "/", name)));
    }
    return OkStatus();
  }

  // The checkpoint of the last step, whichever attempt wrote it.
  Result<std::string> LastCheckpoint(const std::string& folder) const {
    SWITCHYARD_ASSIGN_OR_RETURN(const auto names, ListDirectory(StrCat(scratch_, "/", folder)));
    const std::string ending = StrCat("-", steps_);
    for (const std::string& name : names) {
      if (!name.starts_with(".") && name.ends_with(ending)) {
        return StrCat(scratch_, "/", folder, "/", name);
      }
    }
    return Internal(StrCat("the trainer left no checkpoint of step ", steps_, " in ", folder));
  }

  Result<Outcome> Compare(const std::string& folder, const ReportedCurves& curves,
                          Outcome outcome) const {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string left, LastCheckpoint("whole"));
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string right, LastCheckpoint(folder));
    SWITCHYARD_ASSIGN_OR_RETURN(outcome.tensors, CompareCheckpoints(left, right));
    outcome.points = curves.points();
    outcome.difference = outcome.tensors.first_difference;
    // A curve shows the step; it is the better clue.
    const std::string curve = whole_.FirstDifference(curves);
    if (!curve.empty()) outcome.difference = StrCat("curve: ", curve);
    if (!curves.contradiction().empty()) {
      outcome.difference = StrCat("curve: ", curves.contradiction());
    }
    return outcome;
  }

  const VerifyResumeOptions& options_;
  const std::string trainer_;
  const std::string scratch_;
  const uint64_t steps_;
  ReportedCurves whole_;
};

void ShowOutcomes(const Context& context, const std::string& run, uint64_t steps,
                  const std::vector<Outcome>& outcomes, bool is_equal) {
  if (context.format == Format::kQuiet) {
    context.Print(is_equal ? "equal\n" : "different\n");
    return;
  }
  if (!context.is_for_people()) {
    Value::List list;
    for (const Outcome& outcome : outcomes) {
      list.push_back(Value::Members{{"how", outcome.how},
                                    {"step", outcome.step},
                                    {"points", outcome.points},
                                    {"tensors", outcome.tensors.tensors},
                                    {"bytes", outcome.tensors.bytes},
                                    {"difference", outcome.difference}});
    }
    context.Print(RenderDocument(
        Value::Members{{"run", run}, {"steps", steps}, {"equal", is_equal}, {"resumed", list}},
        context.format));
    return;
  }
  for (const Outcome& outcome : outcomes) {
    const std::string what =
        outcome.difference.empty()
            ? StrCat(FormatCount(outcome.points), " points and ",
                     FormatCount(outcome.tensors.tensors), " tensors (",
                     FormatBytes(outcome.tensors.bytes), ") equal, bit for bit")
            : StrCat("DIFFERS: ", outcome.difference);
    context.Print(StrCat(outcome.how, " at step ", outcome.step,
                         " and resumed: ", EscapeForTerminal(what), "\n"));
  }
  context.Print(StrCat(is_equal ? "verified: " : "NOT verified: ", EscapeForTerminal(run), ", ",
                       steps, " steps\n"));
}

// Within the run's own length, from 1 to steps - 1.
uint64_t RandomStep(const VerifyResumeOptions& options, uint64_t steps, uint64_t which) {
  if (options.at > 0) return options.at;
  return 1 + RandomBelow(RandomKey::For(BoottimeNanoseconds(), "verify_resume"), which, steps - 1);
}

Status CheckOptions(const VerifyResumeOptions& options, const pb::RunDetail& detail,
                    uint64_t steps) {
  if (!spec::IsTrained(detail.spec().kind())) {
    return InvalidArgument(StrCat(detail.run().name(), " trains nothing, so it is not resumed"));
  }
  if (steps < 2) {
    return InvalidArgument(StrCat(detail.run().name(), " has ", steps,
                                  " steps; nothing lies between the first and the last one"));
  }
  if (options.at >= steps) {
    return InvalidArgument(
        StrCat("--at ", options.at, " is not before the last step compared, ", steps));
  }
  return OkStatus();
}

Result<std::vector<Outcome>> Verify(const Context& context, const VerifyResumeOptions& options,
                                    const pb::RunSpec& run, uint64_t steps,
                                    const std::string& scratch) {
  std::string trainer = options.trainer;
  if (trainer.empty()) {
    SWITCHYARD_ASSIGN_OR_RETURN(trainer, FindTrainer());
  }
  std::string json;
  const auto written = google::protobuf::util::MessageToJsonString(run, &json);
  if (!written.ok()) return Internal(std::string(written.message()));
  SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(StrCat(scratch, "/run.json"), json));
  Verifier verifier(options, std::move(trainer), scratch, steps);
  context.Note(StrCat(steps, " steps without interruption"));
  SWITCHYARD_RETURN_IF_ERROR(verifier.TrainWhole());
  std::vector<Outcome> outcomes;
  const uint64_t stop_at = RandomStep(options, steps, 0), kill_at = RandomStep(options, steps, 1);
  context.Note(StrCat("stopped at step ", stop_at, " and resumed"));
  SWITCHYARD_ASSIGN_OR_RETURN(Outcome stopped, verifier.StopAndResume(stop_at));
  outcomes.push_back(std::move(stopped));
  context.Note(StrCat("killed at step ", kill_at, " and resumed"));
  SWITCHYARD_ASSIGN_OR_RETURN(Outcome killed, verifier.KillAndResume(kill_at));
  outcomes.push_back(std::move(killed));
  return outcomes;
}

}  // namespace

int RunVerifyResume(const Context& context, const VerifyResumeOptions& options) {
  const Result<std::string> single = SingleRun(options.run);
  if (!single.ok()) return context.Fail(single.status());
  Result<std::unique_ptr<Connection>> connected = context.Connect();
  if (!connected.ok()) return context.Fail(connected.status());
  pb::GetRunRequest request;
  request.set_run(*single);
  pb::RunDetail detail;
  if (const Status status = (*connected)->GetRun(request, &detail); !status.ok()) {
    return context.Fail(status);
  }
  uint64_t steps = options.steps;
  if (detail.spec().train().steps() > 0) steps = std::min(steps, detail.spec().train().steps());
  if (const Status status = CheckOptions(options, detail, steps); !status.ok()) {
    return context.Fail(status);
  }
  Result<Scratch> scratch = Scratch::Make();
  if (!scratch.ok()) return context.Fail(scratch.status());
  const Result<std::vector<Outcome>> outcomes =
      Verify(context, options, detail.spec(), steps, scratch->path());
  if (!outcomes.ok()) return context.Fail(outcomes.status());
  const bool is_equal = std::ranges::all_of(
      *outcomes, [](const Outcome& outcome) { return outcome.difference.empty(); });
  if (options.is_kept || !is_equal) {
    scratch->Keep();
    context.Note(StrCat("checkpoints are kept in ", scratch->path()));
  }
  ShowOutcomes(context, detail.run().name(), steps, *outcomes, is_equal);
  return is_equal ? kExitOk : kExitRunFailed;
}

}  // namespace switchyard::client
