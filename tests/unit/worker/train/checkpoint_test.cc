#include "worker/train/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <limits>
#include <thread>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "worker/data/safetensors.h"
#include "worker/train/checkpoint_writer.h"
#include "worker/train/event_sink.h"

namespace switchyard::train {
namespace {

using testing::HasSubstr;

CheckpointContent Content(uint64_t step, double objective = 2.0) {
  CheckpointContent content{.run_key = "key"};
  content.progress = {
      .step = step,
      .cursor = {.data_epoch = 1, .segment = step},
      .tokens = step * 10,
      .data_wait_seconds = 0.1,
      .nonfinite_steps = 2,
      .objective = {.best = 1.5, .best_step = 3, .last = objective, .last_step = step},
      .owes_evaluation = true};
  content.model = {{"w", at::arange(12, at::kFloat).view({3, 4})},
                   {"table", at::arange(5, at::kLong)}};
  content.state = {{"exp_avg.w", at::full({3, 4}, static_cast<double>(step), at::kFloat)}};
  content.memory = {{"memory.0", at::ones({2, 3}, at::kBFloat16)}};
  return content;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    std::string pattern = StrCat(testing::TempDir(), "/checkpoint-XXXXXX");
    root_ = mkdtemp(pattern.data());
  }
  ~CheckpointTest() override { std::filesystem::remove_all(root_); }

  std::string root_;
};

// What is read is what was written, tensors, counters and all.
TEST_F(CheckpointTest, ComesBackWhole) {
  const auto info = WriteCheckpoint(root_, 9, Content(50));
  ASSERT_TRUE(info.ok()) << info.status().ToString();
  EXPECT_EQ(std::filesystem::path(info->path).filename(), "9-50");
  const auto read = ReadCheckpoint(info->path, "key");
  ASSERT_TRUE(read.ok()) << read.status().ToString();
  EXPECT_EQ((*read)->info.digest, info->digest);
  EXPECT_EQ((*read)->progress.cursor.segment, 50u);
  EXPECT_EQ((*read)->progress.data_wait_seconds, 0.1);
  EXPECT_EQ((*read)->progress.objective.best, 1.5);
  EXPECT_TRUE((*read)->progress.owes_evaluation);

  const NamedTensors live = {{"w", at::zeros({3, 4})}, {"table", at::zeros({5}, at::kLong)}};
  ASSERT_TRUE(MatchTensors(*(*read)->model, live).ok());
  CopyTensors(*(*read)->model, live);
  EXPECT_TRUE(live[0].second.equal(Content(50).model[0].second));
  EXPECT_TRUE(live[1].second.equal(Content(50).model[1].second));
  ASSERT_TRUE(MatchTensors(*(*read)->state, {{"exp_avg.w", at::zeros({3, 4})}}, "memory.").ok());
  ASSERT_EQ(ReadMemory(*(*read)->state).size(), 1u);
  EXPECT_EQ(ReadMemory(*(*read)->state)[0].scalar_type(), at::kBFloat16);
}

// Weights never load by position: a gap, a surplus or another shape is named, nothing is copied.
TEST_F(CheckpointTest, RefusesTensorsThatDoNotMatchByNameAndShape) {
  const auto info = WriteCheckpoint(root_, 9, Content(50));
  const auto read = ReadCheckpoint(info->path, "key");
  const data::SafetensorsFile& file = *(*read)->model;
  const at::Tensor table = at::zeros({5}, at::kLong);
  const Status shape = MatchTensors(file, {{"w", at::zeros({4, 3})}, {"table", table}});
  EXPECT_THAT(shape.message(), HasSubstr("w is [3, 4], expected [4, 3]"));
  const Status gap =
      MatchTensors(file, {{"w", at::zeros({3, 4})}, {"table", table}, {"more", table}});
  EXPECT_THAT(gap.message(), HasSubstr("has no more, expected [5]"));
  const Status surplus = MatchTensors(file, {{"w", at::zeros({3, 4})}});
  EXPECT_THAT(surplus.message(), HasSubstr("holds table"));
  const Status dtype =
      MatchTensors(file, {{"w", at::zeros({3, 4}, at::kDouble)}, {"table", table}});
  EXPECT_EQ(dtype.code(), Code::kDataLoss);
}

// Another run's weights fit by shape and are still the wrong ones.
TEST_F(CheckpointTest, RefusesAnotherRunsCheckpoint) {
  const auto info = WriteCheckpoint(root_, 9, Content(50));
  EXPECT_EQ(ReadCheckpoint(info->path, "other").status().code(), Code::kFailedPrecondition);
}

// Any changed, missing or swapped part is found before anything is loaded.
TEST_F(CheckpointTest, FindsDamageInEveryPart) {
  const auto other = WriteCheckpoint(root_, 9, Content(40));
  for (const char* name : {"model.safetensors", "state.safetensors", "state.json"}) {
    const auto info = WriteCheckpoint(root_, 9, Content(50));
    const std::string path = StrCat(info->path, "/", name);
    std::string bytes = *ReadFile(path);
    bytes[bytes.size() - 3] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(path, bytes).ok());
    EXPECT_EQ(ReadCheckpoint(info->path, "key").status().code(), Code::kDataLoss) << name;
    std::filesystem::remove(path);
    EXPECT_EQ(ReadCheckpoint(info->path, "key").status().code(), Code::kDataLoss) << name;
    std::filesystem::remove_all(info->path);
  }
  // A part of another step.
  const auto info = WriteCheckpoint(root_, 9, Content(50));
  std::filesystem::copy_file(StrCat(other->path, "/state.safetensors"),
                             StrCat(info->path, "/state.safetensors"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(ReadCheckpoint(info->path, "key").status().code(), Code::kDataLoss);
}

// RE3: a process killed at any moment of saving leaves whole checkpoints only.
TEST_F(CheckpointTest, AKillWhileSavingLeavesWholeCheckpointsOnly) {
  ASSERT_TRUE(WriteCheckpoint(root_, 1, Content(1)).ok());
  for (int round = 0; round < 50; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      for (uint64_t step = 2;; ++step) {
        (void)WriteCheckpoint(root_, 2 + static_cast<uint64_t>(round), Content(step));
      }
    }
    usleep(static_cast<useconds_t>(1000 + 997 * round % 20000));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto stored = ListCheckpoints(root_, "key");
    ASSERT_FALSE(stored.empty());
    for (const StoredCheckpoint& checkpoint : stored) {
      const auto read = ReadCheckpoint(checkpoint.path, "key");
      ASSERT_TRUE(read.ok()) << read.status().ToString();
      EXPECT_EQ((*read)->progress.step, checkpoint.step);
      if (checkpoint.epoch > 1) std::filesystem::remove_all(checkpoint.path);
    }
  }
}

// No room: a clear error, nothing half-written under a name that is read, the old one intact.
TEST_F(CheckpointTest, ADiskWithoutRoomLeavesThePreviousOne) {
  ASSERT_TRUE(WriteCheckpoint(root_, 1, Content(1)).ok());
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 64;
  setrlimit(RLIMIT_FSIZE, &small);
  const auto info = WriteCheckpoint(root_, 1, Content(2));
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(info.ok());
  EXPECT_THAT(*ListDirectory(root_), testing::ElementsAre("1-1"));
  EXPECT_TRUE(ReadCheckpoint(StrCat(root_, "/1-1"), "key").ok());
}

// ME2, RE2: an objective that is not finite is the same after a resume, not one that was never
// seen.
TEST_F(CheckpointTest, KeepsAnObjectiveThatIsNotFinite) {
  const double odd[] = {std::numeric_limits<double>::quiet_NaN(),
                        std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  for (uint64_t step = 1; step <= 3; ++step) {
    CheckpointContent content = Content(step, odd[step - 1]);
    content.progress.objective.best.reset();
    const auto written = WriteCheckpoint(root_, 7, content);
    ASSERT_TRUE(written.ok()) << written.status().ToString();
    const auto read = ReadCheckpoint(written->path, "key");
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    const ObjectiveState& objective = (*read)->progress.objective;
    ASSERT_TRUE(objective.last.has_value());
    EXPECT_EQ(FormatDouble(*objective.last), FormatDouble(odd[step - 1]));
    EXPECT_FALSE(objective.best.has_value());
  }
  // It ranks no checkpoint.
  for (const StoredCheckpoint& stored : ListCheckpoints(root_, "key")) {
    EXPECT_FALSE(stored.objective.has_value());
  }
}

class SilentSink final : public EventSink {
 public:
  void Scalars(uint64_t, std::vector<std::pair<std::string, double>>) override {}
  void Vector(uint64_t, std::string, std::vector<uint32_t>, std::vector<float>) override {}
  void Line(std::string, std::string) override { ++lines; }
  void Phase(std::string) override {}
  void Log(std::string) override {}
  Status health() const override { return OkStatus(); }

  std::atomic<int> lines = 0;
};

// Kind 12: a file system that hangs does not keep a trainer from ending.
TEST_F(CheckpointTest, AHangingFileSystemHoldsUpNoEnd) {
  // What the detached thread uses lives as long as the process.
  static auto* const sink = new SilentSink;
  static auto* const gate = new std::promise<void>;
  const auto start = std::chrono::steady_clock::now();
  {
    CheckpointWriter writer({.root = root_,
                             .epoch = 1,
                             .run_key = "key",
                             .before_publish = [] { gate->get_future().wait(); },
                             .close_limit = std::chrono::milliseconds(50)},
                            *sink);
    ASSERT_TRUE(writer.Submit(Content(5)));
    EXPECT_FALSE(writer.WaitIdle(std::chrono::milliseconds(50)));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_TRUE(ListCheckpoints(root_, "key").empty());
  gate->set_value();
  while (sink->lines == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(ListCheckpoints(root_, "key").size(), 1u);
}

// Somebody else removes old ones: the last checkpoint of a run waits for its room, another does
// not, and the step of one that failed may be tried again.
TEST_F(CheckpointTest, OnlyTheLastOneWaitsForRoom) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  getrlimit(RLIMIT_FSIZE, &before);
  const auto limit = [&](rlim_t bytes) {
    rlimit changed = before;
    changed.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &changed);
  };
  SilentSink events;
  CheckpointWriter writer({.root = root_, .epoch = 1, .run_key = "key", .is_alone = false}, events);
  limit(64);
  EXPECT_TRUE(writer.Submit(Content(1)));
  EXPECT_TRUE(writer.WaitIdle(std::chrono::seconds(10)));
  EXPECT_FALSE(writer.last_step().has_value());
  EXPECT_TRUE(writer.Submit(Content(1), CheckpointWriter::WhenFull::kWait));
  EXPECT_FALSE(writer.WaitIdle(std::chrono::milliseconds(300)));
  limit(before.rlim_cur);
  EXPECT_TRUE(writer.WaitIdle(std::chrono::seconds(10)));
  EXPECT_EQ(writer.last_step(), 1u);
  EXPECT_TRUE(ReadCheckpoint(StrCat(root_, "/1-1"), "key").ok());
}

StoredCheckpoint Stored(uint64_t step, std::optional<double> objective) {
  return {.path = StrCat("1-", step), .epoch = 1, .step = step, .objective = objective};
}

// The newest stay for resumption, the best for use; never none.
TEST(ChooseExpired, KeepsTheNewestAndTheBest) {
  const std::vector<StoredCheckpoint> stored = {Stored(10, 3.0), Stored(20, 2.0), Stored(30, 2.5),
                                                Stored(40, std::nullopt), Stored(50, 2.7)};
  EXPECT_THAT(ChooseExpired(stored, {.keep_last = 2, .keep_best = 1}),
              testing::ElementsAre("1-10", "1-30"));
  EXPECT_THAT(ChooseExpired(stored, {.keep_last = 1, .keep_best = 1, .lower_is_better = false}),
              testing::ElementsAre("1-20", "1-30", "1-40"));
  EXPECT_THAT(ChooseExpired({Stored(10, 3.0)}, {.keep_last = 0, .keep_best = 0}),
              testing::IsEmpty());
}

}  // namespace
}  // namespace switchyard::train
