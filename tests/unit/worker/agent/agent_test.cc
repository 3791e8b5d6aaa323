// The real agent and real processes against a small coordinator in this process.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/strings.h"
#include "common/events/batch.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/worker_service.grpc.pb.h"
#include "worker/agent/attempt_dir.h"

extern char** environ;

namespace switchyard::agent {
namespace {

namespace pb = ::switchyard::v1;
namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The top 16 bits of the epochs here.
constexpr uint32_t kGeneration = 0;

// What the agent may expect of a coordinator, and no more.
class FakeCoordinator final : public pb::WorkerService::Service {
 public:
  struct Stream {
    uint64_t acked = 0;
    uint64_t points = 0;
    std::vector<std::string> types;
    std::map<int, std::string> logs;
    uint64_t gaps = 0;
    uint64_t calls = 0;
  };

  void Start(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    {
      const std::lock_guard lock(mutex_);
      stopping_ = false;
      ++boot_;
      nonce_.clear();
    }
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  void Stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  ~FakeCoordinator() override { Stop(); }

  void Want(uint64_t epoch, uint32_t slot, uint32_t grace_ms = 5000,
            const pb::TelemetrySpec& telemetry = {}) {
    pb::WantedAttempt want;
    want.set_run_id(StrCat("run-", epoch));
    want.set_ordinal(1);
    want.set_epoch(epoch);
    pb::RunSpec spec;
    spec.set_seed(epoch);
    want.set_run_spec(spec.SerializeAsString());
    want.mutable_attempt()->add_slots(slot);
    *want.mutable_attempt()->mutable_telemetry() = telemetry;
    want.set_intent(pb::INTENT_RUN);
    want.set_grace_ms(grace_ms);
    want.set_lease_ms(600'000);
    {
      const std::lock_guard lock(mutex_);
      want_[epoch] = want;
      ++rev_;
    }
    changed_.notify_all();
  }
  void SetIntent(uint64_t epoch, pb::Intent intent, uint32_t grace_ms) {
    {
      const std::lock_guard lock(mutex_);
      want_[epoch].set_intent(intent);
      want_[epoch].set_grace_ms(grace_ms);
      ++rev_;
    }
    changed_.notify_all();
  }
  // Of every hundred batches so many are stored, and their answer is lost.
  void LoseReplies(int percent) {
    const std::lock_guard lock(mutex_);
    lost_percent_ = percent;
  }
  // Batches wait until this is taken back.
  void HoldAppends(bool held) {
    {
      const std::lock_guard lock(mutex_);
      hold_appends_ = held;
    }
    changed_.notify_all();
  }
  void SetCredits(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    credit_bytes_ = bytes;
  }
  void DeleteCheckpoint(const std::string& run, uint64_t epoch, uint64_t step,
                        const std::string& store) {
    {
      const std::lock_guard lock(mutex_);
      pb::CheckpointRef ref;
      ref.set_run_id(run);
      ref.set_epoch(epoch);
      ref.set_step(step);
      ref.set_store(store);
      deletions_.push_back(ref);
      ++rev_;
    }
    changed_.notify_all();
  }
  pb::HostReport host() {
    const std::lock_guard lock(mutex_);
    return host_;
  }
  uint64_t heartbeats() {
    const std::lock_guard lock(mutex_);
    return heartbeats_;
  }
  void HoldGc(bool held) {
    const std::lock_guard lock(mutex_);
    hold_gc_ = held;
  }

  // Waits for the last report of an attempt in a state; fails the test after 20 s.
  pb::MemberReport WaitFor(uint64_t epoch, pb::MemberState state) {
    std::unique_lock lock(mutex_);
    const bool seen = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      const auto it = reports_.find(epoch);
      return it != reports_.end() && it->second.state() == state;
    });
    EXPECT_TRUE(seen) << "attempt " << epoch << " was not seen in state " << state;
    return reports_[epoch];
  }
  bool WaitUntil(const std::function<bool()>& condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), condition);
  }
  bool WaitForLines(uint64_t epoch, uint64_t acked) {
    return WaitUntil([&] { return streams_[epoch].acked >= acked; });
  }
  bool WaitForGone(uint64_t epoch) {
    return WaitUntil([&] { return gone_.contains(epoch); });
  }
  Stream GetStream(uint64_t epoch) {
    const std::lock_guard lock(mutex_);
    return streams_[epoch];
  }
  uint64_t registrations() {
    const std::lock_guard lock(mutex_);
    return registrations_;
  }
  pb::RegisterRequest registration() {
    const std::lock_guard lock(mutex_);
    return registration_;
  }

  grpc::Status Register(grpc::ServerContext*, const pb::RegisterRequest* request,
                        pb::RegisterResponse* response) override {
    const std::lock_guard lock(mutex_);
    registration_ = *request;
    nonce_ = StrCat("nonce-", ++registrations_);
    response->set_proto(1);
    response->set_generation(kGeneration);
    response->set_boot(boot_);
    response->set_nonce(nonce_);
    response->set_heartbeat_ms(500);
    changed_.notify_all();
    return grpc::Status::OK;
  }

  grpc::Status Heartbeat(grpc::ServerContext*, const pb::HeartbeatRequest* request,
                         pb::HeartbeatResponse* response) override {
    std::unique_lock lock(mutex_);
    if (request->nonce() != nonce_) {
      return {grpc::StatusCode::FAILED_PRECONDITION, "the nonce is not the newest"};
    }
    const std::pair<uint64_t, uint64_t> order{request->incarnation(), request->hb_seq()};
    if (order <= newest_) return {grpc::StatusCode::ABORTED, "a newer heartbeat came first"};
    newest_ = order;
    host_ = request->host();
    const uint64_t serial = ++heartbeats_;
    changed_.notify_all();
    bool has_news = false;
    std::set<uint64_t> observed;
    for (const pb::MemberReport& report : request->observed()) {
      observed.insert(report.epoch());
      reports_[report.epoch()] = report;
      const bool ended =
          report.state() == pb::MEMBER_STATE_EXITED || report.state() == pb::MEMBER_STATE_REFUSED;
      if (ended && !hold_gc_ && streams_[report.epoch()].acked >= report.last_seq()) {
        has_news |= want_.erase(report.epoch()) > 0;
        pb::AttemptRef* gc = response->add_gc();
        gc->set_epoch(report.epoch());
        gc->set_rank(report.rank());
        reported_gc_.insert(report.epoch());
        has_news = true;
      } else if (report.state() != pb::MEMBER_STATE_UNSPECIFIED) {
        const auto it = want_.find(report.epoch());
        if (it != want_.end()) it->second.clear_run_spec();
      }
    }
    for (const uint64_t epoch : reported_gc_) {
      if (!observed.contains(epoch)) gone_.insert(epoch);
    }
    if (has_news) ++rev_;
    changed_.notify_all();
    const pb::Rev& applied = request->applied_rev();
    changed_.wait_for(lock, std::chrono::milliseconds(400), [&] {
      return stopping_ || has_news || heartbeats_ != serial || applied.boot() != boot_ ||
             applied.n() != rev_;
    });
    response->mutable_rev()->set_generation(kGeneration);
    response->mutable_rev()->set_boot(boot_);
    response->mutable_rev()->set_n(rev_);
    response->set_echo_incarnation(request->incarnation());
    response->set_echo_hb_seq(request->hb_seq());
    response->set_echo_sent_boottime_ns(request->sent_boottime_ns());
    for (const auto& [epoch, want] : want_) *response->add_want() = want;
    for (const pb::CheckpointRef& ref : deletions_) *response->add_delete_checkpoints() = ref;
    response->set_heartbeat_ms(500);
    response->set_workers(1);
    response->set_sent_unix_ms(UnixMilliseconds());
    return grpc::Status::OK;
  }

  grpc::Status Append(grpc::ServerContext*, const pb::AppendRequest* request,
                      pb::AppendResponse* response) override {
    const auto batch =
        events::DecodeBatch(request->blob(), request->codec() == pb::BATCH_CODEC_ZSTD,
                            request->crc32c(), request->first_seq(), request->n());
    if (!batch.ok()) return {grpc::StatusCode::INVALID_ARGUMENT, batch.status().message()};
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !hold_appends_ || stopping_; });
    Stream& stream = streams_[request->epoch()];
    response->set_credit_bytes(credit_bytes_);
    ++stream.calls;
    if (request->first_seq() > stream.acked + 1) {
      response->set_expect(stream.acked + 1);
      response->set_committed(stream.acked);
      return grpc::Status::OK;
    }
    for (const events::DecodedColumn& column : batch->columns) {
      for (const uint64_t seq : column.seqs) stream.points += seq > stream.acked ? 1 : 0;
    }
    for (const events::DecodedLine& line : batch->lines) {
      if (line.seq > stream.acked) stream.types.push_back(line.type);
    }
    stream.acked = std::max(stream.acked, request->first_seq() + request->n() - 1);
    response->set_committed(stream.acked);
    changed_.notify_all();
    lost_sum_ += lost_percent_;
    if (lost_sum_ >= 100) {
      lost_sum_ -= 100;
      return {grpc::StatusCode::UNAVAILABLE, "the answer is lost"};
    }
    return grpc::Status::OK;
  }

  grpc::Status AppendLog(grpc::ServerContext*, const pb::AppendLogRequest* request,
                         pb::AppendLogResponse* response) override {
    const std::lock_guard lock(mutex_);
    std::string& log = streams_[request->epoch()].logs[request->stream()];
    if (request->offset() <= log.size() &&
        request->offset() + request->data().size() > log.size()) {
      log += request->data().substr(log.size() - request->offset());
    }
    response->set_committed(log.size());
    changed_.notify_all();
    return grpc::Status::OK;
  }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  bool hold_gc_ = false;
  bool hold_appends_ = false;
  int lost_percent_ = 0;
  int lost_sum_ = 0;
  uint64_t credit_bytes_ = 64 << 20;
  std::vector<pb::CheckpointRef> deletions_;
  pb::HostReport host_;
  uint32_t boot_ = 0;
  uint64_t rev_ = 1;
  uint64_t registrations_ = 0;
  uint64_t heartbeats_ = 0;
  std::pair<uint64_t, uint64_t> newest_;  // incarnation and hb_seq
  std::string nonce_;
  pb::RegisterRequest registration_;
  std::map<uint64_t, pb::WantedAttempt> want_;
  std::map<uint64_t, pb::MemberReport> reports_;
  std::map<uint64_t, Stream> streams_;
  std::set<uint64_t> reported_gc_;
  std::set<uint64_t> gone_;
};

class AgentProcess : public ::testing::Test {
 protected:
  AgentProcess() {
    const char* root = getenv("TMPDIR");
    directory_ = StrCat(root == nullptr ? "/tmp" : root, "/switchyard-agent-XXXXXX");
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    fs::create_directory(directory_ + "/plans");
    setenv("TOY_PLANS", (directory_ + "/plans").c_str(), 1);
    coordinator_.Start(socket());
  }
  ~AgentProcess() override {
    Stop(SIGKILL);
    // Trainers outlive their agent by design.
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(state_dir() + "/attempts", error)) {
      const Result<PidFile> file = ReadPidFile(entry.path().string());
      if (file.ok()) KillSession(file->pid);
    }
    coordinator_.Stop();
    fs::remove_all(directory_, error);
  }

  std::string socket() const { return directory_ + "/s.sock"; }
  std::string state_dir() const { return directory_ + "/worker"; }
  static std::string Tool(const std::string& name) {
    return StrCat(SWITCHYARD_BINARY_DIR, "/bin/", name);
  }
  std::string AttemptDir(uint64_t epoch) const {
    return StrCat(state_dir(), "/attempts/", epoch, "-0");
  }

  void Plan(uint64_t epoch, const std::string& text) const {
    std::ofstream(StrCat(directory_, "/plans/run-", epoch)) << text;
  }

  void StartAgent(const std::string& trainer = Tool("switchyard_toytrainer_tool"), int slots = 2,
                  const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {Tool("switchyard-worker"),
                                          "run",
                                          "--server",
                                          "unix:" + socket(),
                                          "--state-dir",
                                          state_dir(),
                                          "--slots",
                                          std::to_string(slots),
                                          "--cores-per-slot",
                                          "1",
                                          "--metrics",
                                          "127.0.0.1:0",
                                          "--trainer",
                                          trainer,
                                          "--labels",
                                          "a,b"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ASSERT_EQ(posix_spawn(&pid_, argv[0], nullptr, nullptr, argv.data(), environ), 0);
  }
  // Exit status, or -1 when there was no process or a signal ended it.
  int Stop(int number) {
    if (pid_ <= 0) return -1;
    kill(pid_, number);
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string directory_;
  FakeCoordinator coordinator_;
  pid_t pid_ = 0;
};

// The whole life of an attempt: files, events, logs, end, and nothing left on disk.
TEST_F(AgentProcess, RunsAnAttemptFromEndToEnd) {
  Plan(1, "TOY_STEPS=100\nTOY_PRINT=3\n");
  coordinator_.HoldGc(true);
  StartAgent();
  coordinator_.Want(1, 0);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "ok");
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(report.last_seq(), 102u);
  EXPECT_EQ(report.final_step(), 100u);
  EXPECT_EQ(report.evidence(), "exit.json");
  ASSERT_TRUE(coordinator_.WaitForLines(1, 102));
  const FakeCoordinator::Stream stream = coordinator_.GetStream(1);
  EXPECT_EQ(stream.points, 200u);
  EXPECT_THAT(stream.types, ::testing::ElementsAre("hello", "end"));
  EXPECT_EQ(stream.logs.at(pb::LOG_STREAM_STDOUT), "line 0\nline 1\nline 2\n");

  const std::string attempt = *ReadFile(AttemptDir(1) + "/attempt.json");
  EXPECT_THAT(attempt, HasSubstr("\"run_id\":\"run-1\""));
  EXPECT_THAT(attempt, HasSubstr("\"threads\":1"));
  EXPECT_THAT(attempt, HasSubstr("/checkpoints/run-1"));
  EXPECT_THAT(*ReadFile(AttemptDir(1) + "/run.json"), HasSubstr("\"seed\""));
  EXPECT_EQ(coordinator_.registration().slots_size(), 2);
  EXPECT_EQ(coordinator_.registration().labels_size(), 2);

  coordinator_.HoldGc(false);
  ASSERT_TRUE(coordinator_.WaitForGone(1));
  for (int i = 0; i < 200 && FileExists(AttemptDir(1)); ++i) usleep(20'000);
  EXPECT_FALSE(FileExists(AttemptDir(1)));
  EXPECT_EQ(Stop(SIGTERM), 0);
  EXPECT_FALSE(FileExists(state_dir() + "/ready.json"));
}

// A cancel reaches the trainer through the lease page: it ends by itself with 75.
TEST_F(AgentProcess, CancelsThroughTheLeasePage) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=10\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  coordinator_.SetIntent(1, pb::INTENT_CANCEL, 10'000);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "stopped");
  EXPECT_EQ(report.exit_code(), 75);
  EXPECT_TRUE(coordinator_.WaitForGone(1));
}

// A trainer that takes no notice is killed at the deadline.
TEST_F(AgentProcess, KillsAtTheDeadline) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=10\nTOY_IGNORE=1\n");
  StartAgent();
  coordinator_.Want(1, 0);
  coordinator_.WaitFor(1, pb::MEMBER_STATE_RUNNING);
  coordinator_.SetIntent(1, pb::INTENT_CANCEL, 300);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  // Its own check of the stop deadline may come first.
  EXPECT_THAT(report.end_class(), ::testing::AnyOf("stopped", "fenced"));
  EXPECT_FALSE(report.complete());
}

// A crash is reported with its signal, and the lines before it are stored.
TEST_F(AgentProcess, ReportsACrash) {
  Plan(1, "TOY_STEPS=5\nTOY_SIGNAL=11\n");
  StartAgent();
  coordinator_.Want(1, 0);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "unknown");
  EXPECT_EQ(report.signal(), 11);
  EXPECT_EQ(report.last_seq(), 6u);
  EXPECT_TRUE(coordinator_.WaitForLines(1, 6));
}

// Exit status 0 without exit.json, and a torn last line.
TEST_F(AgentProcess, DoesNotTakeSilenceForSuccess) {
  Plan(1, "TOY_STEPS=2\nTOY_NO_RECORD=1\nTOY_TORN=1\n");
  StartAgent();
  coordinator_.Want(1, 0);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "unknown");
  EXPECT_EQ(report.last_seq(), 4u);
  EXPECT_TRUE(coordinator_.WaitForLines(1, 4));
}

// Children that a trainer leaves behind are killed before its end is reported.
TEST_F(AgentProcess, KillsLeftovers) {
  Plan(1, "TOY_STEPS=1\nTOY_CHILD=1\n");
  coordinator_.HoldGc(true);
  StartAgent();
  coordinator_.Want(1, 0);
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).end_class(), "ok");
  // The child had inherited the lock.
  bool is_free = false;
  for (int i = 0; i < 100 && !is_free; ++i) {
    is_free = LockFile(AttemptDir(1) + "/attempt.lock").ok();
    if (!is_free) usleep(10'000);
  }
  EXPECT_TRUE(is_free);
}

// A program that cannot be executed is an infrastructure end, not a wait.
TEST_F(AgentProcess, ReportsALaunchThatFails) {
  StartAgent("/nonexistent/trainer");
  coordinator_.Want(1, 0);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "infra");
  EXPECT_THAT(report.reason(), HasSubstr("never executed"));
  EXPECT_TRUE(coordinator_.WaitForGone(1));
}

// The agent is killed in the middle: its trainer goes on and is adopted, lines are stored once.
TEST_F(AgentProcess, AdoptsATrainerAfterItsOwnDeath) {
  Plan(1, "TOY_STEPS=60\nTOY_STEP_MS=25\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const pid_t trainer = ReadPidFile(AttemptDir(1))->pid;
  Stop(SIGKILL);
  EXPECT_EQ(kill(trainer, 0), 0);
  StartAgent();
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "ok");
  EXPECT_TRUE(report.complete());
  ASSERT_TRUE(coordinator_.WaitForLines(1, 62));
  EXPECT_EQ(coordinator_.GetStream(1).points, 120u);
  EXPECT_TRUE(coordinator_.WaitForGone(1));
}

// Agent and trainer die: the next agent reports the end and never launches the attempt again.
TEST_F(AgentProcess, NeverRelaunches) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=25\n");
  coordinator_.HoldGc(true);
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const pid_t trainer = ReadPidFile(AttemptDir(1))->pid;
  Stop(SIGKILL);
  kill(trainer, SIGKILL);
  StartAgent();
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "unknown");
  EXPECT_EQ(ReadPidFile(AttemptDir(1))->pid, trainer);
}

// The host crashes before anything of the attempt's directory is synced, but for the record of its
// launch: the next agents report the end, and the coordinator's wish launches nothing.
TEST_F(AgentProcess, NeverRelaunchesWhatLostItsDirectory) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=25\n");
  coordinator_.HoldGc(true);
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const pid_t trainer = ReadPidFile(AttemptDir(1))->pid;
  Stop(SIGKILL);
  KillSession(trainer);
  fs::remove_all(AttemptDir(1));
  for (int start = 0; start < 2; ++start) {
    StartAgent();
    const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
    EXPECT_EQ(report.end_class(), "infra");
    EXPECT_THAT(report.reason(), HasSubstr("never executed"));
    EXPECT_EQ(ReadPidFile(AttemptDir(1)).status().code(), Code::kNotFound);
    Stop(SIGKILL);
  }
}

// SIGTERM ends the agent quickly and leaves the trainer running.
TEST_F(AgentProcess, LeavesTrainersRunningAtAStop) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=25\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const pid_t trainer = ReadPidFile(AttemptDir(1))->pid;
  EXPECT_EQ(Stop(SIGTERM), 0);
  EXPECT_EQ(kill(trainer, 0), 0);
}

// The coordinator goes away and comes back: the trainer trains on, nothing is lost or doubled.
TEST_F(AgentProcess, OutlivesTheCoordinator) {
  Plan(1, "TOY_STEPS=60\nTOY_STEP_MS=25\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  coordinator_.Stop();
  usleep(500'000);
  coordinator_.Start(socket());
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).end_class(), "ok");
  ASSERT_TRUE(coordinator_.WaitForLines(1, 62));
  EXPECT_EQ(coordinator_.GetStream(1).points, 120u);
  EXPECT_GE(coordinator_.registrations(), 2u);
}

// Two agents on one state directory: the second one does not start.
TEST_F(AgentProcess, RefusesASharedStateDirectory) {
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitUntil([&] { return FileExists(state_dir() + "/ready.json"); }));
  const pid_t first = pid_;
  StartAgent();
  int status = 0;
  waitpid(pid_, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 69);
  pid_ = first;
}

// The fork server dies: the agent begins again and keeps its trainers.
TEST_F(AgentProcess, SurvivesItsForkServer) {
  Plan(1, "TOY_STEPS=60\nTOY_STEP_MS=25\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const auto parts = StrSplit(*ReadFile(state_dir() + "/forkserver.lock"), ' ');
  kill(static_cast<pid_t>(*ParseInt64(parts[0])), SIGKILL);
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).end_class(), "ok");
  Plan(2, "TOY_STEPS=1\n");
  coordinator_.Want(2, 0);
  EXPECT_EQ(coordinator_.WaitFor(2, pb::MEMBER_STATE_EXITED).end_class(), "ok");
}

// The end-of-trainer table: what exit.json, exit status and signal come to (protocol 13.2, 13.3).
TEST_F(AgentProcess, JudgesEveryKindOfEnd) {
  struct Case {
    const char* plan;
    const char* end_class;
    int signal;
    bool complete;
    const char* evidence;
  };
  const std::vector<Case> cases = {
      {"TOY_FAULT=segv\nTOY_AT=2", "unknown", 11, false, "signal 11"},
      {"TOY_FAULT=abort\nTOY_AT=2", "unknown", 6, false, "signal 6"},
      {"TOY_FAULT=exit0\nTOY_AT=2", "unknown", 0, false, "exit status 0"},
      {"TOY_FAULT=exit1\nTOY_AT=2", "user", 0, false, "exit status 1"},
      {"TOY_FAULT=exit70\nTOY_AT=2", "internal", 0, false, "exit status 70"},
      {"TOY_RECORD=absent", "unknown", 0, false, "exit status 0"},
      {"TOY_RECORD=torn", "unknown", 0, false, "exit.json is not valid"},
      {"TOY_RECORD=corrupt", "unknown", 0, false, "exit.json is not valid"},
      {"TOY_RECORD=foreign", "unknown", 0, false, "exit.json is not valid"},
      {"TOY_RECORD=oversize", "unknown", 0, false, "exit.json is not valid"},
      {"TOY_AFTER=segv", "ok", 11, true, "exit_mismatch: signal 11"},
      {"TOY_AFTER=exit1", "ok", 0, true, "exit_mismatch: exit status 1"},
      {"TOY_CODE=64", "spec", 0, false, "exit.json"},
  };
  StartAgent();
  for (uint64_t i = 0; i < cases.size(); ++i) {
    Plan(i + 1, cases[i].plan);
    coordinator_.Want(i + 1, i % 2);
    const pb::MemberReport report = coordinator_.WaitFor(i + 1, pb::MEMBER_STATE_EXITED);
    EXPECT_EQ(report.end_class(), cases[i].end_class) << cases[i].plan;
    EXPECT_EQ(report.signal(), cases[i].signal) << cases[i].plan;
    EXPECT_EQ(report.complete(), cases[i].complete) << cases[i].plan;
    EXPECT_THAT(report.evidence(), HasSubstr(cases[i].evidence)) << cases[i].plan;
  }
}

// ME6: answers are lost, batches are sent again; every line is stored once.
TEST_F(AgentProcess, StoresEachLineOnceWhenAnswersAreLost) {
  Plan(1, "TOY_STEPS=400\nTOY_STEP_MS=5\n");
  coordinator_.LoseReplies(50);
  StartAgent();
  coordinator_.Want(1, 0);
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).last_seq(), 402u);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 402));
  EXPECT_EQ(coordinator_.GetStream(1).points, 800u);
}

// ME5: the trainer ends at once behind its last report, the coordinator is busy: nothing is lost,
// and the payload stays until the last line is stored.
TEST_F(AgentProcess, KeepsTheLastReportOfATrainerThatIsGone) {
  Plan(1, "TOY_STEPS=13\n");
  coordinator_.HoldAppends(true);
  StartAgent();
  coordinator_.Want(1, 0);
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).last_seq(), 15u);
  EXPECT_EQ(coordinator_.GetStream(1).acked, 0u);
  EXPECT_TRUE(FileExists(AttemptDir(1)));
  coordinator_.HoldAppends(false);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 15));
  EXPECT_EQ(coordinator_.GetStream(1).points, 26u);
  EXPECT_TRUE(coordinator_.WaitForGone(1));
}

// GR1: calls with data that hang delay neither heartbeats nor the trainer.
TEST_F(AgentProcess, HeartbeatsGoOnWhileAppendsHang) {
  Plan(1, "TOY_STEPS=200\nTOY_STEP_MS=10\n");
  coordinator_.HoldAppends(true);
  StartAgent();
  coordinator_.Want(1, 0);
  coordinator_.WaitFor(1, pb::MEMBER_STATE_RUNNING);
  const uint64_t before = coordinator_.heartbeats();
  EXPECT_TRUE(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).complete());
  EXPECT_GT(coordinator_.heartbeats(), before + 1);
  EXPECT_EQ(coordinator_.registrations(), 1u);
  coordinator_.HoldAppends(false);
  EXPECT_TRUE(coordinator_.WaitForLines(1, 202));
}

// Without credits one small batch at a time goes out, and with them everything does.
TEST_F(AgentProcess, SendsOnWithoutCredits) {
  Plan(1, "TOY_STEPS=20000\n");
  coordinator_.SetCredits(0);
  StartAgent();
  coordinator_.Want(1, 0);
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).last_seq(), 20'002u);
  EXPECT_LT(coordinator_.GetStream(1).acked, 20'002u);
  coordinator_.SetCredits(64 << 20);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 20'002));
  EXPECT_EQ(coordinator_.GetStream(1).points, 40'000u);
}

// Kind 11: whatever a trainer has to say of its end, what is reported of it is short: a heartbeat
// that the coordinator refuses would cost the worker its contact.
TEST_F(AgentProcess, ReportsALongReasonCut) {
  Plan(1, "TOY_CODE=64\nTOY_REASON=50000\n");
  StartAgent();
  coordinator_.Want(1, 0);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.end_class(), "spec");
  EXPECT_EQ(report.reason().size(), 2000u);
  EXPECT_THAT(report.reason(), ::testing::EndsWith("rrr ..."));
}

// A step that goes back makes a curve that nobody can trust: a trainer that does not notice has not
// succeeded, whatever it says; `lenient_steps` lets it stand. All lines are stored either way.
TEST_F(AgentProcess, FailsARunWhoseStepsGoBack) {
  Plan(1, "TOY_STEPS=20\nTOY_BACK_AT=9\n");
  Plan(2, "TOY_STEPS=20\nTOY_BACK_AT=9\n");
  StartAgent();
  coordinator_.Want(1, 0);
  pb::TelemetrySpec telemetry;
  telemetry.set_lenient_steps(true);
  coordinator_.Want(2, 1, 5000, telemetry);
  const pb::MemberReport strict = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(strict.end_class(), "internal");
  EXPECT_FALSE(strict.complete());
  EXPECT_THAT(strict.reason(), HasSubstr("step 1 is recorded behind step 9"));
  const pb::MemberReport lenient = coordinator_.WaitFor(2, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(lenient.end_class(), "ok");
  EXPECT_TRUE(lenient.complete());
  for (const uint64_t epoch : {1, 2}) {
    ASSERT_TRUE(coordinator_.WaitForLines(epoch, 23));
    EXPECT_EQ(coordinator_.GetStream(epoch).points, 42u);
  }
}

// OR5: SIGTERM to the trainer from outside is a stop with status 75, never a completion.
TEST_F(AgentProcess, ReportsAPreemptedTrainerAsStopped) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=10\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  kill(ReadPidFile(AttemptDir(1))->pid, SIGTERM);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_EQ(report.exit_code(), 75);
  EXPECT_EQ(report.end_class(), "stopped");
  EXPECT_FALSE(report.complete());
}

// OR1: a trainer that is killed is reported with the next heartbeat, with a reason.
TEST_F(AgentProcess, ReportsAKilledTrainerAtOnce) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=10\n");
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const auto start = std::chrono::steady_clock::now();
  kill(ReadPidFile(AttemptDir(1))->pid, SIGKILL);
  const pb::MemberReport report = coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(report.signal(), 9);
  EXPECT_THAT(report.evidence(), HasSubstr("signal 9"));
}

// A drained worker stops its attempts with a checkpoint, says so, takes no new ones and ends.
TEST_F(AgentProcess, DrainsAtASignal) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=10\n");
  coordinator_.HoldGc(true);
  StartAgent();
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  kill(pid_, SIGUSR1);
  EXPECT_EQ(coordinator_.WaitFor(1, pb::MEMBER_STATE_EXITED).exit_code(), 75);
  EXPECT_TRUE(coordinator_.host().draining());
  EXPECT_EQ(coordinator_.host().drain_grace_ms(), 60'000u);
  coordinator_.Want(2, 1);
  EXPECT_EQ(coordinator_.WaitFor(2, pb::MEMBER_STATE_REFUSED).reason(), "draining");
  coordinator_.HoldGc(false);
  coordinator_.Want(3, 1);
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  pid_ = 0;
}

// With --drain-on TERM the platform's notice drains; an attempt that stays is killed at its end.
TEST_F(AgentProcess, DrainsAtSigtermWhereAsked) {
  Plan(1, "TOY_STEPS=100000\nTOY_STEP_MS=10\nTOY_IGNORE=1\n");
  StartAgent(Tool("switchyard_toytrainer_tool"), 2, {"--drain-on", "TERM", "--drain-grace", "1"});
  coordinator_.Want(1, 0);
  ASSERT_TRUE(coordinator_.WaitForLines(1, 1));
  const pid_t trainer = ReadPidFile(AttemptDir(1))->pid;
  EXPECT_EQ(Stop(SIGTERM), 0);
  EXPECT_NE(kill(trainer, 0), 0);
}

// LT4: each trainer is told its number of threads, and bound to the cores of its slot when asked.
TEST_F(AgentProcess, GivesEachTrainerItsCores) {
  for (uint64_t epoch : {1, 2}) Plan(epoch, "TOY_STEPS=100000\nTOY_STEP_MS=10\n");
  cpu_set_t own;
  CPU_ZERO(&own);
  ASSERT_EQ(sched_getaffinity(0, sizeof(own), &own), 0);
  if (CPU_COUNT(&own) < 2) GTEST_SKIP() << "needs two cores";
  StartAgent(Tool("switchyard_toytrainer_tool"), 2, {"--pin-cores"});
  std::vector<cpu_set_t> sets;
  for (uint64_t epoch : {1, 2}) {
    coordinator_.Want(epoch, static_cast<uint32_t>(epoch - 1));
    ASSERT_TRUE(coordinator_.WaitForLines(epoch, 1));
    const pid_t trainer = ReadPidFile(AttemptDir(epoch))->pid;
    cpu_set_t set;
    CPU_ZERO(&set);
    ASSERT_EQ(sched_getaffinity(trainer, sizeof(set), &set), 0);
    EXPECT_EQ(CPU_COUNT(&set), 1);
    sets.push_back(set);
    const std::string environment = *ReadFile(StrCat("/proc/", trainer, "/environ"));
    EXPECT_THAT(environment, HasSubstr(std::string("OMP_NUM_THREADS=1") + '\0'));
  }
  EXPECT_FALSE(CPU_EQUAL(&sets[0], &sets[1]));
}

// Checkpoints that the coordinator names go; nothing outside the store is touched.
TEST_F(AgentProcess, DeletesNamedCheckpoints) {
  const std::string run = "01970000-0000-7000-8000-000000000001";
  const std::string folder = StrCat(state_dir(), "/checkpoints/", run);
  fs::create_directories(folder + "/5-10");
  fs::create_directories(folder + "/5-20");
  fs::create_directories(state_dir() + "/elsewhere/5-10");
  StartAgent();
  ASSERT_TRUE(coordinator_.WaitUntil([&] { return FileExists(state_dir() + "/ready.json"); }));
  const std::string store(StripWhitespace(*ReadFile(state_dir() + "/checkpoints/store.id")));
  EXPECT_EQ(coordinator_.registration().checkpoint_store(), store);
  coordinator_.DeleteCheckpoint("../elsewhere", 5, 10, store);
  coordinator_.DeleteCheckpoint(run, 5, 20, "01970000-0000-7000-8000-000000000009");
  coordinator_.DeleteCheckpoint(run, 5, 10, store);
  for (int i = 0; i < 500 && FileExists(folder + "/5-10"); ++i) usleep(20'000);
  EXPECT_FALSE(FileExists(folder + "/5-10"));
  EXPECT_TRUE(FileExists(folder + "/5-20"));
  EXPECT_TRUE(FileExists(state_dir() + "/elsewhere/5-10"));
}

// Short attempts follow each other without waits: the rate is printed.
TEST_F(AgentProcess, RunsManyShortAttempts) {
  constexpr uint64_t kAttempts = 300;
  constexpr uint32_t kSlots = 4;
  StartAgent(Tool("switchyard_nooptrainer_tool"), kSlots);
  ASSERT_TRUE(coordinator_.WaitUntil([&] { return FileExists(state_dir() + "/ready.json"); }));
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> lanes;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    lanes.emplace_back([&, slot] {
      for (uint64_t i = 0; i < kAttempts / kSlots; ++i) {
        const uint64_t epoch = 1 + i * kSlots + slot;
        coordinator_.Want(epoch, slot);
        EXPECT_EQ(coordinator_.WaitFor(epoch, pb::MEMBER_STATE_EXITED).end_class(), "ok");
      }
    });
  }
  for (std::thread& lane : lanes) lane.join();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%.0f attempts/s\n", kAttempts / seconds);
  for (uint64_t epoch = 1; epoch <= kAttempts; ++epoch) {
    EXPECT_TRUE(coordinator_.WaitForLines(epoch, 2)) << epoch;
  }
}

}  // namespace
}  // namespace switchyard::agent
