#include "tests/integration/forked_training.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <google/protobuf/text_format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "common/base/check.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/events/line.h"
#include "common/spec/canonical.h"
#include "worker/model/model.h"
#include "worker/train/checkpoint.h"
#include "worker/train/event_sink.h"
#include "worker/train/loop.h"

namespace switchyard {
namespace {

constexpr int kKilled = 137;
constexpr int kStopped = 75;
constexpr int kBroken = 70;

// Ends the process at the n-th passing of one point, without a destructor or a flush.
class Fuse {
 public:
  Fuse(KillPoint point, uint64_t count) : point_(point), left_(count) {}
  void Pass(KillPoint point) {
    if (point == point_ && left_.fetch_sub(1) == 1) _exit(kKilled);
  }

 private:
  const KillPoint point_;
  std::atomic<uint64_t> left_;
};

// Passes kWindow at every second micro-batch of training: the window is then half done.
class FusedModel final : public model::LanguageModel {
 public:
  FusedModel(std::unique_ptr<model::LanguageModel> model, Fuse& fuse)
      : model_(std::move(model)), fuse_(fuse) {}

  model::ForwardResult Forward(const at::Tensor& tokens, const at::Tensor& targets,
                               const model::ForwardContext& context, model::Memory* memory,
                               uint32_t memory_len) override {
    if (context.is_training && context.first_sequence > 0) fuse_.Pass(KillPoint::kWindow);
    return model_->Forward(tokens, targets, context, memory, memory_len);
  }
  void EndUpdate(bool is_applied) override { model_->EndUpdate(is_applied); }
  at::Tensor Logits(const at::Tensor& tokens, const model::ForwardContext& context,
                    model::Memory* memory, uint32_t memory_len) override {
    return model_->Logits(tokens, context, memory, memory_len);
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const override {
    return model_->NamedParameters();
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedBuffers() const override {
    return model_->NamedBuffers();
  }

 private:
  std::unique_ptr<model::LanguageModel> model_;
  Fuse& fuse_;
};

// Lines in the form of the event file, each written before the call returns. One descriptor for
// them, one to say that the first step is done.
class LineSink final : public train::EventSink, public train::StopSource {
 public:
  LineSink(int fd, int ready_fd, Fuse& fuse, double stop_below_bits)
      : fd_(fd), ready_fd_(ready_fd), fuse_(fuse), stop_below_bits_(stop_below_bits) {}

  void Scalars(uint64_t step, std::vector<std::pair<std::string, double>> values) override {
    std::string line;
    events::AppendScalarLine(++seq_, step, 0, values, &line);
    Write(line);
    bool is_evaluation = false;
    for (const auto& [name, value] : values) {
      is_evaluation = is_evaluation || name.starts_with("valid/");
      if (name == "valid/bits_per_token" && value < stop_below_bits_) is_stopping_ = true;
      if (name == "train/lr" && !std::exchange(is_ready_, true)) {
        SWITCHYARD_CHECK(write(ready_fd_, "x", 1) == 1) << "the test is gone";
      }
    }
    if (is_evaluation) fuse_.Pass(KillPoint::kAfterEvaluation);
  }
  void Vector(uint64_t step, std::string name, std::vector<uint32_t> shape,
              std::vector<float> values) override {
    std::string line;
    events::AppendVectorLine(++seq_, step, 0, name, shape, values, &line);
    Write(line);
  }
  void Line(std::string type, std::string members) override {
    std::string line;
    events::AppendOtherLine(++seq_, type, members, &line);
    Write(line);
  }
  void Phase(std::string) override {}
  void Log(std::string text) override { LogErr(text); }
  Status health() const override { return OkStatus(); }

  train::StopIntent Poll() override {
    return is_stopping_ ? train::StopIntent::kStop : train::StopIntent::kNone;
  }
  // Called by the checkpoint's thread behind its last sync.
  void ExitIfPast() override { fuse_.Pass(KillPoint::kPublish); }

 private:
  void Write(const std::string& line) {
    SWITCHYARD_CHECK(WriteAll(fd_, line, "lines").ok()) << "lines cannot be written";
  }
  static void LogErr(const std::string& text) {
    const std::string line = text + "\n";
    SWITCHYARD_CHECK(WriteAll(STDERR_FILENO, line, "log").ok()) << "the log cannot be written";
  }

  const int fd_;
  const int ready_fd_;
  Fuse& fuse_;
  const double stop_below_bits_;
  std::atomic<uint64_t> seq_{0};  // ckpt lines come from another thread
  bool is_ready_ = false;
  bool is_stopping_ = false;
};

// In the child.
int Train(const AttemptPlan& plan, int line_fd, int ready_fd) {
  at::set_num_threads(1);
  at::set_num_interop_threads(1);
  v1::AttemptSpec attempt;
  attempt.set_run_key(spec::RunKey(plan.run));
  attempt.set_epoch(plan.epoch);
  attempt.mutable_telemetry()->set_every_steps(5);
  attempt.set_checkpoint_dir(plan.checkpoint_dir);
  attempt.mutable_checkpoint()->set_every_ms(plan.checkpoint_every_ms);
  attempt.set_resume_checkpoint(NewestCheckpoint(plan.checkpoint_dir, plan.run));
  Fuse fuse(plan.kill, plan.count);
  LineSink sink(line_fd, ready_fd, fuse, plan.stop_below_bits);
  FusedModel model(model::MakeModel(plan.run, {.vocab_size = plan.corpus->vocab_size,
                                               .token_frequency = plan.corpus->train_frequency}),
                   fuse);
  const at::Device device(at::kCPU);
  const train::Ending ending = train::RunTraining({.run = plan.run,
                                                   .attempt = attempt,
                                                   .corpus = *plan.corpus,
                                                   .model = model,
                                                   .device = device,
                                                   .events = sink,
                                                   .stop = sink,
                                                   .model_facts = {{"model/facts", 1}}});
  return static_cast<int>(ending.code);
}

[[noreturn]] void RunChild(const AttemptPlan& plan, const std::string& lines,
                           const std::string& log, int ready_fd) {
  int code = kBroken;
  const int line_fd = open(lines.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const int log_fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (line_fd >= 0 && log_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0) {
    try {
      code = Train(plan, line_fd, ready_fd);
    } catch (const std::exception& error) {
      const std::string text = StrCat(error.what(), "\n");
      (void)WriteAll(STDERR_FILENO, text, "log");
    }
  }
  _exit(code);
}

}  // namespace

const char* KillPointName(KillPoint point) {
  switch (point) {
    case KillPoint::kNone:
      return "none";
    case KillPoint::kWindow:
      return "inside a window";
    case KillPoint::kAfterEvaluation:
      return "behind an evaluation";
    case KillPoint::kPublish:
      return "in a checkpoint's write";
    case KillPoint::kAnywhere:
      return "anywhere";
  }
  return "";
}

AttemptOutcome RunAttempt(const AttemptPlan& plan, client::ReportedCurves* curves) {
  SWITCHYARD_CHECK(MakeDirectories(plan.checkpoint_dir).ok()) << plan.checkpoint_dir;
  const std::string lines = plan.checkpoint_dir + "-lines", log = plan.checkpoint_dir + "-log";
  int ends[2];
  SWITCHYARD_CHECK(pipe2(ends, O_CLOEXEC) == 0) << "no pipe";
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t pid = fork();
  SWITCHYARD_CHECK(pid >= 0) << "no child";
  if (pid == 0) RunChild(plan, lines, log, writing.get());
  writing = UniqueFd();
  if (plan.kill == KillPoint::kAnywhere) {
    char byte = 0;
    // Nothing comes when it ended before its first step.
    if (read(reading.get(), &byte, 1) == 1) usleep(static_cast<useconds_t>(plan.after_us));
    kill(pid, SIGKILL);
  }
  int status = 0;
  SWITCHYARD_CHECK(waitpid(pid, &status, 0) == pid) << "the child is gone";
  AttemptOutcome out;
  out.was_killed = WIFSIGNALED(status) || WEXITSTATUS(status) == kKilled;
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  out.is_complete = WIFEXITED(status) && (out.exit_code == 0 || out.exit_code == kStopped);
  const auto said = ReadFile(log);
  out.log = said.ok() ? *said : said.status().message();
  const auto text = ReadFile(lines);
  SWITCHYARD_CHECK(text.ok()) << text.status().message();
  // A signal can cut the last line.
  const std::string whole = text->substr(0, text->rfind('\n') + 1);
  for (const std::string& line : StrSplit(whole, '\n')) {
    const Status status_of_line = curves->Add(line);
    SWITCHYARD_CHECK(status_of_line.ok()) << status_of_line.message();
  }
  return out;
}

std::string NewestCheckpoint(const std::string& folder, const v1::RunSpec& run) {
  const auto stored = train::ListCheckpoints(folder, spec::RunKey(run));
  return stored.empty() ? "" : stored.back().path;
}

v1::RunSpec RunFrom(const std::string& text) {
  v1::RunSpec run;
  SWITCHYARD_CHECK(google::protobuf::TextFormat::ParseFromString(text, &run)) << text;
  spec::FillDefaults(&run);
  run.mutable_model()->clear_vocab();
  return run;
}

bool IsLong() { return std::getenv("SWITCHYARD_LONG_TESTS") != nullptr; }

}  // namespace switchyard
