#include <fcntl.h>
#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/base/strings.h"
#include "common/events/exit_record.h"
#include "common/events/lease_page.h"
#include "common/events/line.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"

extern char** environ;

namespace switchyard {
namespace {

using testing::HasSubstr;

constexpr uint64_t kSecond = 1'000'000'000;

std::string TrainerPath() { return StrCat(SWITCHYARD_BINARY_DIR, "/bin/switchyard-trainer"); }

using Curve = std::map<uint64_t, double>;

// Reads a stream, checking that its numbers have no gap.
struct Stream {
  std::vector<events::ParsedLine> lines;

  explicit Stream(const std::string& text) {
    for (const std::string& line : StrSplit(text, '\n')) {
      if (line.empty()) continue;
      auto parsed = events::ParseLine(line);
      EXPECT_TRUE(parsed.ok()) << parsed.status().ToString() << ": " << line;
      if (!parsed.ok()) continue;
      EXPECT_EQ(parsed->seq, lines.size() + 1);
      lines.push_back(*std::move(parsed));
    }
  }
  Curve Series(std::string_view name) const {
    Curve curve;
    for (const auto& line : lines) {
      for (const auto& [series, value] : line.scalars) {
        if (series == name) curve[line.step] = value;
      }
    }
    return curve;
  }
  std::string Json(std::string_view type) const {
    for (const auto& line : lines) {
      if (line.type == type) return line.json;
    }
    return "";
  }
};

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    std::string pattern = StrCat(testing::TempDir(), "/trainer-XXXXXX");
    folder_ = mkdtemp(pattern.data());
    std::string text;
    for (int i = 0; i < 600; ++i) {
      text += StrCat("line ", RandomBelow({3}, static_cast<uint64_t>(i), 977), " of the text\n");
    }
    EXPECT_TRUE(MakeDirectories(folder_ + "/text").ok());
    for (int i = 0; i < 8; ++i) {
      EXPECT_TRUE(WriteFileAtomically(StrCat(folder_, "/text/", i, ".txt"),
                                      text.substr(static_cast<size_t>(i) * 900, 3000))
                      .ok());
    }
    run_ = SmallRun();
  }
  ~TrainerTest() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  // Transformer-XL with memory and dropout, two routed layers.
  v1::RunSpec SmallRun() const {
    v1::RunSpec run;
    const std::string json = StrCat(R"({
      "kind": "RUN_KIND_TRAIN", "seed": "5",
      "data": {"files": {"domains": [{"id": "text", "globs": [")",
                                    folder_, R"(/text/*.txt"]}]}},
      "model": {
        "transformerXl": {"layers": 2, "dModel": 16, "heads": 2, "dHead": 8, "dInner": 32},
        "moe": {"layers": [0, 1], "experts": 4, "topK": 2, "router": {"smoe": {}},
                "losses": [{"id": "megatron_aux", "coef": 0.01}]}},
      "train": {"steps": "40", "batch": 4, "microBatch": 2, "targetLen": 16, "memoryLen": 16,
                "optimizer": {"adam": {"lr": 0.003}}, "warmupSteps": "5",
                "schedule": "SCHEDULE_COSINE", "clipNorm": 0.25},
      "eval": {"everySteps": "15"}
    })");
    const auto status = google::protobuf::util::JsonStringToMessage(json, &run);
    EXPECT_TRUE(status.ok()) << status.ToString();
    spec::FillDefaults(&run);
    return run;
  }

  static std::string ToJson(const google::protobuf::Message& message) {
    std::string json;
    EXPECT_TRUE(google::protobuf::util::MessageToJsonString(message, &json).ok());
    return json;
  }

  // An attempt directory of `epoch` whose lease lasts `lease_ns` from now.
  std::string MakeAttempt(uint64_t epoch, uint64_t lease_ns = 300 * kSecond) {
    const std::string dir = StrCat(folder_, "/attempt-", epoch);
    EXPECT_TRUE(MakeDirectories(dir).ok());
    attempt_.set_run_id("0197aaaa-0000-7000-8000-000000000001");
    if (attempt_.run_key().empty()) attempt_.set_run_key(spec::RunKey(run_));
    attempt_.set_epoch(epoch);
    attempt_.set_threads(1);
    attempt_.set_checkpoint_dir(folder_ + "/checkpoints");
    if (attempt_.device().empty()) attempt_.set_device("cpu");
    EXPECT_TRUE(WriteFileAtomically(dir + "/run.json", ToJson(run_)).ok());
    EXPECT_TRUE(WriteFileAtomically(dir + "/attempt.json", ToJson(attempt_)).ok());
    auto lease =
        events::LeaseWriter::Create(dir + "/lease.page", epoch, BoottimeNanoseconds() + lease_ns);
    EXPECT_TRUE(lease.ok());
    lease_.emplace(*std::move(lease));
    return dir;
  }

  void Start(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), TrainerPath());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (const auto& [fd, path] : {std::pair(1, Out()), std::pair(2, Err())}) {
      posix_spawn_file_actions_addopen(&actions, fd, path.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0644);
    }
    ASSERT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  int Run(std::vector<std::string> arguments) {
    Start(std::move(arguments));
    return Wait();
  }
  std::string Out() const { return folder_ + "/stdout"; }
  std::string Err() const { return folder_ + "/stderr"; }

  // Until the stream of `dir` has a metric of `step`, or the trainer has ended.
  void WaitForStep(const std::string& dir, uint64_t step) {
    for (int i = 0; i < 12000; ++i) {
      const auto text = ReadFile(dir + "/events.jsonl");
      if (text.ok() && text->find(StrCat("\"step\":", step, ",")) != std::string::npos) return;
      siginfo_t ended{};
      if (waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          ended.si_pid != 0) {
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::string folder_;
  v1::RunSpec run_;
  v1::AttemptSpec attempt_;
  std::optional<events::LeaseWriter> lease_;
  pid_t pid_ = 0;
};

// A run from its files to its exit record: the stream is whole, the record says complete and where
// the stream ends, the checkpoint that it names is there.
TEST_F(TrainerTest, RunsAnAttemptToItsEnd) {
  const std::string dir = MakeAttempt(7);
  ASSERT_EQ(Run({"--attempt-dir", dir}), 0) << *ReadFile(Err());
  const Stream stream(*ReadFile(dir + "/events.jsonl"));
  EXPECT_EQ(stream.lines.front().type, "hello");
  EXPECT_EQ(stream.lines.back().type, "end");
  EXPECT_EQ(stream.Series("train/nats_per_token").size(), 40u);
  EXPECT_EQ(stream.Series("valid/bits_per_byte").size(), 3u);  // 15, 30, 40
  EXPECT_EQ(stream.Series("model/params_total").size(), 1u);
  EXPECT_LT(stream.Series("train/nats_per_token")[40], stream.Series("train/nats_per_token")[1]);

  const auto record = events::ReadExitRecord(dir + "/exit.json", 7, 0);
  ASSERT_TRUE(record.ok()) << record.status().ToString();
  EXPECT_EQ(record->code, 0);
  EXPECT_TRUE(record->complete);
  EXPECT_EQ(record->final_step, 40u);
  EXPECT_EQ(record->last_seq, stream.lines.back().seq);
  EXPECT_THAT(record->objective_json, HasSubstr("valid/bits_per_byte"));
  EXPECT_THAT(stream.Json("ckpt"), HasSubstr("\"step\":40"));
  EXPECT_TRUE(FileExists(folder_ + "/checkpoints/7-40/manifest.json"));
}

// The same run on one thread gives the same bits, and stopping it on the way changes none of them.
TEST_F(TrainerTest, ASecondRunAndAStoppedRunGiveTheSameBits) {
  const std::string whole = MakeAttempt(1);
  ASSERT_EQ(Run({"--attempt-dir", whole}), 0) << *ReadFile(Err());
  const Stream expected(*ReadFile(whole + "/events.jsonl"));
  std::filesystem::remove_all(folder_ + "/checkpoints");

  const std::string stopped = MakeAttempt(2);
  Start({"--attempt-dir", stopped});
  WaitForStep(stopped, 4);
  ASSERT_TRUE(
      lease_->SetStop(events::LeaseIntent::kDrain, BoottimeNanoseconds() + 60 * kSecond).ok());
  const int code = Wait();
  const Stream first(*ReadFile(stopped + "/events.jsonl"));
  const auto record = events::ReadExitRecord(stopped + "/exit.json", 2, 0);
  ASSERT_TRUE(record.ok());
  if (code == 0) GTEST_SKIP() << "the run was over before it could be stopped";
  EXPECT_EQ(code, 75);
  EXPECT_FALSE(record->complete);

  attempt_.set_resume_checkpoint(StrCat(folder_, "/checkpoints/2-", record->final_step));
  const std::string resumed = MakeAttempt(3);
  ASSERT_EQ(Run({"--attempt-dir", resumed}), 0) << *ReadFile(Err());
  const Stream second(*ReadFile(resumed + "/events.jsonl"));
  EXPECT_THAT(second.Json("resume"), HasSubstr("\"from\":\"2\"")) << second.Json("log");
  for (const char* name : {"train/nats_per_token", "train/grad_norm", "train/lr", "train/tokens",
                           "valid/nats_per_token"}) {
    Curve joined = first.Series(name);
    joined.merge(second.Series(name));
    EXPECT_EQ(joined, expected.Series(name)) << name;
  }
}

// By hand the same lines go to standard output, and a folder is all that a later call needs.
TEST_F(TrainerTest, RunsByHandAndResumesFromItsFolder) {
  run_.mutable_train()->clear_warmup_steps();
  const std::string spec = folder_ + "/spec.json";
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(run_)).ok());
  ASSERT_EQ(Run({"--spec", spec}), 0) << *ReadFile(Err());
  const Stream once(*ReadFile(Out()));
  ASSERT_EQ(Run({"--spec", spec, "--dir", folder_ + "/by-hand"}), 0);
  const Stream twice(*ReadFile(Out()));
  EXPECT_EQ(once.Series("train/nats_per_token"), twice.Series("train/nats_per_token"));
  EXPECT_TRUE(FileExists(folder_ + "/by-hand/1-40"));
  ASSERT_EQ(Run({"--spec", spec, "--dir", folder_ + "/by-hand"}), 0);
  EXPECT_THAT(Stream(*ReadFile(Out())).Json("resume"), HasSubstr("\"step\":40"));
}

// A trained decoder leaves in the form of Hugging Face and starts another run there: the first
// evaluation of that run is the last one of the first.
TEST_F(TrainerTest, AnExportedModelStartsAnotherRun) {
  const std::string json = R"({"decoder": {"layers": 2, "dModel": 16, "heads": 2, "dInner": 24},
      "moe": {"layers": [0, 1], "experts": 4, "router": {"mixtral": {}}}})";
  run_.clear_model();
  run_.clear_eval();
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, run_.mutable_model()).ok());
  run_.mutable_train()->clear_memory_len();
  run_.mutable_train()->set_steps(10);
  const std::string spec = folder_ + "/spec.json", exported = folder_ + "/exported";
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(run_)).ok());
  ASSERT_EQ(Run({"--spec", spec, "--dir", folder_ + "/by-hand"}), 0) << *ReadFile(Err());
  const Curve trained = Stream(*ReadFile(Out())).Series("valid/nats_per_token");
  const std::vector<std::string> to_export = {
      "--spec", spec, "--checkpoint", folder_ + "/by-hand/1-10", "--export", exported};
  ASSERT_EQ(Run(to_export), 0) << *ReadFile(Err());
  EXPECT_EQ(Run(to_export), 65) << "over an old one";
  EXPECT_THAT(*ReadFile(Err()), HasSubstr("choose a new folder"));

  v1::RunSpec next = run_;
  next.clear_model();
  next.set_kind(v1::RUN_KIND_FINETUNE);
  next.mutable_init()->mutable_hf()->set_path(exported);
  next.mutable_train()->set_steps(1);
  next.mutable_train()->clear_warmup_steps();
  next.mutable_train()->mutable_optimizer()->mutable_adam()->set_lr(1e-12);
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(next)).ok());
  ASSERT_EQ(Run({"--spec", spec}), 0) << *ReadFile(Err());
  const Curve started = Stream(*ReadFile(Out())).Series("valid/nats_per_token");
  EXPECT_NEAR(started.at(1), trained.at(10), 1e-5);

  // Only what keeps every tensor can be changed on top.
  next.mutable_model()->mutable_moe()->set_top_k(1);
  next.mutable_model()->mutable_moe()->set_allow_constant_gate(true);
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(next)).ok());
  ASSERT_EQ(Run({"--spec", spec}), 0) << *ReadFile(Err());
  EXPECT_NE(Stream(*ReadFile(Out())).Series("valid/nats_per_token").at(1), started.at(1));
  next.mutable_model()->mutable_moe()->set_experts(8);
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(next)).ok());
  EXPECT_EQ(Run({"--spec", spec}), 64);
  EXPECT_THAT(*ReadFile(Err()), HasSubstr("moe.experts"));
  next.clear_model();
  next.mutable_init()->mutable_hf()->set_path(folder_ + "/nowhere");
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(next)).ok());
  EXPECT_EQ(Run({"--spec", spec}), 65);
  EXPECT_THAT(*ReadFile(Err()), HasSubstr("nowhere/config.json"));
}

// A worker cut off from its coordinator lets the lease run out; no exit record may claim an end.
TEST_F(TrainerTest, EndsWithoutARecordWhenTheLeaseRunsOut) {
  run_.mutable_train()->set_steps(1'000'000);
  const std::string dir = MakeAttempt(4, 2 * kSecond);
  EXPECT_EQ(Run({"--attempt-dir", dir}), 76);
  EXPECT_FALSE(FileExists(dir + "/exit.json"));
}

// The document is not the run that the attempt names: nothing may be recorded under that name.
TEST_F(TrainerTest, RefusesARunOfAnotherIdentity) {
  attempt_.set_run_key(std::string(64, '0'));
  const std::string dir = MakeAttempt(5);
  EXPECT_EQ(Run({"--attempt-dir", dir}), 64);
  const auto record = events::ReadExitRecord(dir + "/exit.json", 5, 0);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->end_class, "spec");
  EXPECT_THAT(record->reason, HasSubstr("identity"));
}

// A host without a GPU: the attempt ends at once with a status of its own, and the reason reaches
// the record.
TEST_F(TrainerTest, WithoutAGpuSaysWhy) {
  if (FileExists("/dev/nvidiactl")) GTEST_SKIP() << "this host has a GPU";
  const std::string spec = folder_ + "/spec.json";
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(run_)).ok());
  EXPECT_EQ(Run({"--spec", spec, "--device", "gpu"}), 69);
  EXPECT_THAT(*ReadFile(Err()), HasSubstr("the attempt wants a GPU: "));

  attempt_.set_device("gpu");
  const std::string dir = MakeAttempt(6);
  EXPECT_EQ(Run({"--attempt-dir", dir}), 69);
  const auto record = events::ReadExitRecord(dir + "/exit.json", 6, 0);
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(record->end_class, "infra");
  EXPECT_THAT(record->reason, HasSubstr("GPU"));
}

// Each cause has its own exit status and says what is wrong.
TEST_F(TrainerTest, ErrorsHaveTheirStatusAndReason) {
  const std::string spec = folder_ + "/spec.json";
  v1::RunSpec broken = run_;
  broken.mutable_model()->mutable_moe()->set_top_k(9);
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(broken)).ok());
  EXPECT_EQ(Run({"--spec", spec}), 64);
  EXPECT_THAT(*ReadFile(Err()), HasSubstr("top_k"));

  broken = run_;
  broken.mutable_data()->mutable_files()->mutable_domains(0)->set_globs(0, folder_ + "/no/*");
  ASSERT_TRUE(WriteFileAtomically(spec, ToJson(broken)).ok());
  EXPECT_EQ(Run({"--spec", spec}), 65);
  EXPECT_THAT(*ReadFile(Err()), HasSubstr("/no/*"));

  EXPECT_EQ(Run({"--spec", folder_ + "/none.json"}), 64);
  EXPECT_EQ(Run({"--nonsense"}), 64);
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(*ReadFile(Out()), HasSubstr("Exit status"));
}

}  // namespace
}  // namespace switchyard
