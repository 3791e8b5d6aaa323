// A coordinator over a database that was restored from a backup: attempts that are newer than the
// backup, and the numbers of their runs.
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "server/store/sqlite.h"
#include "tests/unit/server/app/reducer_world.h"

namespace switchyard::app {
namespace {

constexpr Epoch kLost{(uint64_t{1} << 48) + 9};

// One run of a database of generation 2; its first attempt was assigned in generation 1, after the
// backup, and is known to the worker alone.
class RestoredTest : public ReducerTest {
 protected:
  void SetUp() override {
    ReducerTest::SetUp();
    const auto submitted = Submit(SmallSweep(1));
    ASSERT_TRUE(submitted.ok()) << submitted.status().ToString();
    const auto run =
        Read<store::RunInfo>([](store::ReadStore& store) { return store.FindRun("demo/1"); });
    ASSERT_TRUE(run.ok()) << run.status().ToString();
    run_ = run->row.id;
    TearDown();
    reducer_.reset();
    {
      auto db = store::Connection::Open(dir_ + "/switchyard.db", store::Connection::Mode::kWriter);
      ASSERT_TRUE(db.ok());
      ASSERT_TRUE((*db)->Execute("UPDATE meta SET generation = 2").ok());
    }
    ReducerTest::SetUp();
  }
  ~RestoredTest() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<store::Store> MakeStore() override {
    auto store = store::OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }

  template <typename T>
  Result<T> Read(const std::function<Result<T>(store::ReadStore&)>& query) {
    Waiter<T> waiter;
    queries_->Post([&](Result<store::ReadStore*> store) {
      waiter.callback()(store.ok() ? query(**store) : Result<T>(store.status()));
    });
    return waiter.Wait();
  }

  // Until its summary of the series is as awaited: it may be made anew behind the answer.
  ::testing::AssertionResult HasSummary(uint64_t count, double last) {
    std::string seen;
    for (int i = 0; i < 200; ++i) {
      const auto rows = Read<std::vector<scheduler::SummaryRow>>(
          [this](store::ReadStore& store) { return store.ListSummaries(run_); });
      if (rows.ok() && rows->size() == 1 && (*rows)[0].count == count && (*rows)[0].last == last) {
        return ::testing::AssertionSuccess();
      }
      seen = rows.ok() && rows->size() == 1
                 ? std::to_string((*rows)[0].count) + " points, last " +
                       std::to_string((*rows)[0].last)
                 : std::to_string(rows.ok() ? rows->size() : 0) + " summaries";
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return ::testing::AssertionFailure() << seen;
  }

  Result<api::AppendReply> Send(const api::AppendInput& input) {
    Waiter<api::AppendReply> waiter;
    reducer_->Append(input, waiter.callback());
    return waiter.Wait();
  }
  api::AppendInput LostLines(double value) {
    api::WantedAttempt lost;
    lost.run = run_;
    lost.ordinal = 1;
    lost.epoch = kLost;
    return MakeAppend(lost, value);
  }

  const std::string dir_ = ::testing::TempDir() + "/restored_" + NewUuidV4().ToString();
  RunId run_;
};

// Protocol 10: it is an attempt of its run again, beside the new one of the same ordinal, with all
// of its lines; the run's numbers are those of the newest attempt that has started.
TEST_F(RestoredTest, AnAttemptNewerThanTheBackupIsRecorded) {
  ASSERT_EQ(RegisterWorker(1), "nonce");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  ASSERT_EQ(desired->want.size(), 1u);
  const api::WantedAttempt newer = desired->want[0];
  EXPECT_EQ(newer.ordinal, 1u);

  const api::AppendInput lost = LostLines(2.5);
  const auto first = Send(lost);
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  EXPECT_EQ(first->expect, 1u) << "it comes again, now that its attempt is known";
  const auto again = Send(lost);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->committed, 2u);

  const auto attempts = Read<std::vector<store::AttemptInfo>>(
      [this](store::ReadStore& store) { return store.ListAttempts(run_); });
  ASSERT_TRUE(attempts.ok()) << attempts.status().ToString();
  ASSERT_EQ(attempts->size(), 2u);
  EXPECT_EQ((*attempts)[0].row.epoch, kLost);
  EXPECT_EQ((*attempts)[0].row.ordinal, 1u);
  EXPECT_EQ((*attempts)[0].status.state, scheduler::AttemptState::kLost);
  EXPECT_EQ((*attempts)[1].row.epoch, newer.epoch);

  ASSERT_TRUE(Send(MakeAppend(newer, 7.5)).ok());
  EXPECT_TRUE(HasSummary(1, 7.5))
      << "it began anew: what the lost one had reached is no part of it";

  scheduler::MemberReport report;
  report.run = run_;
  report.ordinal = 1;
  report.epoch = kLost;
  report.state = scheduler::RecordState::kExited;
  report.last_seq = 2;
  scheduler::MemberReport running;
  running.run = run_;
  running.ordinal = 1;
  running.epoch = newer.epoch;
  running.state = scheduler::RecordState::kRunning;
  const auto answer = Beat({report, running});
  ASSERT_TRUE(answer.ok()) << answer.status().ToString();
  ASSERT_EQ(answer->gc.size(), 1u);
  EXPECT_EQ(answer->gc[0].epoch, kLost);
}

// The newest attempt has started and its stream is sealed, when lines of the lost one arrive: the
// summaries stay those of the newest.
TEST_F(RestoredTest, LateLinesDoNotTakeTheSummariesOver) {
  ASSERT_EQ(RegisterWorker(1), "nonce");
  const auto desired = Beat({});
  ASSERT_TRUE(desired.ok()) << desired.status().ToString();
  ASSERT_EQ(desired->want.size(), 1u);
  const api::WantedAttempt newer = desired->want[0];
  ASSERT_TRUE(Send(MakeAppend(newer, 7.5)).ok());
  scheduler::MemberReport report;
  report.run = run_;
  report.ordinal = 1;
  report.epoch = newer.epoch;
  report.state = scheduler::RecordState::kExited;
  report.end_class = scheduler::EndClass::kOk;
  report.complete = true;
  report.last_seq = 2;
  ASSERT_TRUE(Beat({report}).ok());
  ASSERT_TRUE(Beat({report}).ok());
  ASSERT_TRUE(Beat({}).ok());
  ASSERT_TRUE(Beat({}).ok()) << "sealed, and the run has left memory";
  ASSERT_TRUE(HasSummary(1, 7.5));

  const api::AppendInput lost = LostLines(2.5);
  ASSERT_TRUE(Send(lost).ok());
  const auto again = Send(lost);
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  EXPECT_EQ(again->committed, 2u);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_TRUE(HasSummary(1, 7.5));
  const auto run =
      Read<store::RunInfo>([](store::ReadStore& store) { return store.FindRun("demo/1"); });
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(run->status.state, scheduler::RunState::kSucceeded);
}

// What is of a run that the backup did not know is refused for good, and nobody may forget it.
TEST_F(RestoredTest, AnUnknownRunIsRefused) {
  ASSERT_EQ(RegisterWorker(1), "nonce");
  api::AppendInput lost = LostLines(2.5);
  lost.event.run = {Uuid{77, 77}};
  EXPECT_EQ(Send(lost).status().code(), Code::kFailedPrecondition);
  scheduler::MemberReport report;
  report.run = lost.event.run;
  report.ordinal = 1;
  report.epoch = kLost;
  report.state = scheduler::RecordState::kExited;
  for (int i = 0; i < 2; ++i) {
    const auto answer = Beat({report});
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_TRUE(answer->gc.empty());
  }
}

}  // namespace
}  // namespace switchyard::app
