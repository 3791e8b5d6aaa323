#include "worker/trainer/lease_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "common/base/clock.h"
#include "common/base/strings.h"
#include "common/events/lease_page.h"

namespace switchyard::trainer {
namespace {

using std::chrono::milliseconds;

class LeaseWatchTest : public testing::Test {
 protected:
  LeaseWatchTest() {
    std::string pattern = StrCat(testing::TempDir(), "/lease-XXXXXX");
    folder_ = mkdtemp(pattern.data());
  }
  ~LeaseWatchTest() override { std::filesystem::remove_all(folder_); }
  std::string Path() const { return StrCat(folder_, "/lease.page"); }
  static uint64_t In(uint64_t ms) { return BoottimeNanoseconds() + ms * 1'000'000; }

  std::string folder_;
};
using LeaseWatchDeathTest = LeaseWatchTest;

// The intents a trainer acts on; KILL must not be mistaken for a stop that writes a checkpoint.
TEST_F(LeaseWatchTest, TellsStopFromKill) {
  auto page = events::LeaseWriter::Create(Path(), 7, In(60'000));
  ASSERT_TRUE(page.ok());
  auto watch = LeaseWatch::Start(Path(), 7);
  ASSERT_TRUE(watch.ok()) << watch.status().ToString();
  EXPECT_EQ((*watch)->Poll(), train::StopIntent::kNone);
  ASSERT_TRUE(page->SetStop(events::LeaseIntent::kDrain, In(60'000)).ok());
  EXPECT_EQ((*watch)->Poll(), train::StopIntent::kStop);
  ASSERT_TRUE(page->SetStop(events::LeaseIntent::kKill, In(60'000)).ok());
  EXPECT_EQ((*watch)->Poll(), train::StopIntent::kKill);
}

// An attempt must not live under another attempt's lease.
TEST_F(LeaseWatchTest, RefusesThePageOfAnotherEpoch) {
  ASSERT_TRUE(events::LeaseWriter::Create(Path(), 8, In(60'000)).ok());
  EXPECT_EQ(LeaseWatch::Start(Path(), 7).status().code(), Code::kFailedPrecondition);
}

// A worker that was cut off lets its lease run out: the trainer must be gone by itself, even while
// its training thread is busy.
TEST_F(LeaseWatchDeathTest, EndsTheProcessPastTheLease) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto page = events::LeaseWriter::Create(Path(), 7, In(100));
        auto watch = LeaseWatch::Start(Path(), 7, milliseconds(20));
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(76), "");
}

// The stop deadline binds too, so that a dead agent cannot prolong a stop.
TEST_F(LeaseWatchDeathTest, EndsTheProcessPastTheStopDeadline) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        auto page = events::LeaseWriter::Create(Path(), 7, In(60'000));
        auto watch = LeaseWatch::Start(Path(), 7, milliseconds(20));
        (void)page->SetStop(events::LeaseIntent::kCancel, In(50));
        std::this_thread::sleep_for(std::chrono::seconds(20));
      },
      testing::ExitedWithCode(76), "");
}

// SIGTERM from outside is a request to stop like any other.
TEST_F(LeaseWatchDeathTest, ASignalAsksForAStop) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        InstallSignalHandlers();
        const auto watch = LeaseWatch::SignalsOnly();
        const bool was_quiet = watch->Poll() == train::StopIntent::kNone;
        std::raise(SIGUSR2);
        std::raise(SIGTERM);
        _exit(was_quiet && watch->Poll() == train::StopIntent::kStop ? 3 : 4);
      },
      testing::ExitedWithCode(3), "");
}

// The step's own check ends the process when the watching thread does not come to it.
TEST_F(LeaseWatchDeathTest, EndsAtAStepWhenTheThreadIsStarved) {
  EXPECT_EXIT(
      {
        auto page = events::LeaseWriter::Create(Path(), 7, In(50));
        auto watch = *LeaseWatch::Start(Path(), 7, std::chrono::hours(1));
        std::this_thread::sleep_for(milliseconds(100));
        watch->Poll();
        _exit(0);
      },
      testing::ExitedWithCode(76), "");
}

// A checkpoint is not published beyond the deadline, whoever asks.
TEST_F(LeaseWatchDeathTest, FencesFromAnotherThread) {
  EXPECT_EXIT(
      {
        auto page = events::LeaseWriter::Create(Path(), 7, In(50));
        auto watch = *LeaseWatch::Start(Path(), 7, std::chrono::hours(1));
        std::this_thread::sleep_for(milliseconds(100));
        std::thread([&] { watch->ExitIfPast(); }).join();
        _exit(0);
      },
      testing::ExitedWithCode(76), "");
}

// What the agent asks about derived series arrives with the next look at the page.
TEST_F(LeaseWatchTest, PassesThePressureOn) {
  auto page = events::LeaseWriter::Create(Path(), 7, In(60'000));
  ASSERT_TRUE(page.ok());
  auto watch = LeaseWatch::Start(Path(), 7, milliseconds(5));
  ASSERT_TRUE(watch.ok());
  EXPECT_EQ((*watch)->pressure(), 0u);
  ASSERT_TRUE(page->SetPressure(3).ok());
  for (int i = 0; i < 1000 && (*watch)->pressure() != 3; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_EQ((*watch)->pressure(), 3u);
  ASSERT_TRUE(page->SetDeadline(In(120'000)).ok());
  EXPECT_EQ((*watch)->Poll(), train::StopIntent::kNone);
}

// SIGUSR2 prints a stack and does not end the trainer.
TEST_F(LeaseWatchDeathTest, PrintsItsStack) {
  EXPECT_EXIT(
      {
        InstallSignalHandlers();
        raise(SIGUSR2);
        _exit(5);
      },
      testing::ExitedWithCode(5), "stack of the training thread");
}

}  // namespace
}  // namespace switchyard::trainer
