#include "server/store/store.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "common/base/strings.h"
#include "tests/suites/store_suite.h"

namespace switchyard::store {
namespace {

class SqliteHome final : public StoreHome {
 public:
  SqliteHome() : dir_(::testing::TempDir() + "/store_suite_" + NewUuidV4().ToString()) {}
  ~SqliteHome() override { std::filesystem::remove_all(dir_); }
  std::unique_ptr<Store> Open() override {
    Result<std::unique_ptr<Store>> store = OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }
  bool IsDurable() const override { return true; }

 private:
  const std::string dir_;
};

class MemoryHome final : public StoreHome {
 public:
  std::unique_ptr<Store> Open() override { return MakeMemoryStore(); }
  bool IsDurable() const override { return false; }
};

INSTANTIATE_TEST_SUITE_P(
    Stores, StoreSuite,
    ::testing::Values(StoreParam{"Sqlite", [] { return std::make_unique<SqliteHome>(); }},
                      StoreParam{"Memory", [] { return std::make_unique<MemoryHome>(); }}),
    [](const auto& info) { return info.param.name; });

constexpr uint64_t kManyRuns = 6000;

// Runs of 50 cells with a gap in the numbers; every third has a point.
void CommitManyRuns(Store& store) {
  std::vector<Write> writes = {MakeSweep(1)};
  for (uint64_t i = 1; i <= kManyRuns; ++i) {
    RunRow run = MakeRun(i, 1);
    run.seed = i / 50;
    run.router = "router " + std::to_string(i % 7);
    writes.emplace_back(run);
    writes.emplace_back(RunStatus{.id = run.id});
    writes.emplace_back(LinkRow{.sweep = MakeSweepId(1),
                                .number = i < 3000 ? i : i + 5000,
                                .run = run.id,
                                .cell = i % 50 + 1,
                                .columns = {{"train.lr", std::to_string(i % 50)}}});
    if (i % 3 != 0) continue;
    writes.emplace_back(SummaryRow{
        .run = run.id, .series = "loss", .last = 1.0 / static_cast<double>(i), .count = 1});
  }
  ASSERT_TRUE(store.Commit(writes).ok());
}

std::vector<std::string> Scan(ReadStore& store, uint64_t after, size_t limit) {
  std::vector<std::string> lines;
  const Status status = store.ScanRuns(
      {.sweep = MakeSweepId(1), .series = {"loss"}, .after = after}, [&](const RunFacts& run) {
        lines.push_back(StrCat(run.number, " ", run.cell, " ", run.columns->at(0).second, " ",
                               run.run.value.ToString(), " ", run.seed, " ", run.router, " ",
                               run.values[0].is_present, " ",
                               std::bit_cast<uint64_t>(run.values[0].last)));
        return lines.size() < limit;
      });
  EXPECT_TRUE(status.ok()) << status.ToString();
  return lines;
}

// A reader's long scan is shared by two threads, the writer's is not: same runs, same order.
TEST(LongScanTest, IsTheSameByOneThreadAndByTwo) {
  SqliteHome home;
  const std::unique_ptr<Store> store = home.Open();
  CommitManyRuns(*store);
  {
    const std::unique_ptr<ReadStore> reader = *store->OpenReader();
    const std::vector<std::string> all = Scan(*store, 0, SIZE_MAX);
    EXPECT_THAT(all, ::testing::SizeIs(kManyRuns));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(Scan(*reader, 0, SIZE_MAX), all);
    EXPECT_EQ(Scan(*reader, 700, SIZE_MAX), Scan(*store, 700, SIZE_MAX));
    EXPECT_EQ(Scan(*reader, 3, 2000), Scan(*store, 3, 2000));
  }
  EXPECT_TRUE(store->Close().ok());
}

// What a hint refuses may be missing, nothing else may; what is there has its values.
TEST(LongScanTest, LeavesOutOnlyWhatTheHintRefuses) {
  SqliteHome home;
  const std::unique_ptr<Store> store = home.Open();
  CommitManyRuns(*store);
  {
    const std::unique_ptr<ReadStore> reader = *store->OpenReader();
    // Few, then most runs are worth having.
    for (const uint64_t worth : {uint64_t{3}, uint64_t{45}}) {
      for (ReadStore* const store_or_reader :
           {static_cast<ReadStore*>(store.get()), reader.get()}) {
        std::vector<uint64_t> numbers;
        uint64_t visited = 0;
        const auto is_worth = [worth](const RunFacts& run) { return run.cell <= worth; };
        const Status status = store_or_reader->ScanRuns(
            {.sweep = MakeSweepId(1),
             .series = {"none", "loss"},
             .make_hint = [&] { return is_worth; }},
            [&](const RunFacts& run) {
              ++visited;
              if (!is_worth(run)) return true;
              numbers.push_back(run.number);
              const uint64_t i = run.number < 3000 ? run.number : run.number - 5000;
              EXPECT_FALSE(run.values[0].is_present);
              EXPECT_EQ(run.values[1].is_present, i % 3 == 0);
              EXPECT_EQ(run.values[1].last, i % 3 == 0 ? 1.0 / static_cast<double>(i) : 0);
              return true;
            });
        ASSERT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(numbers.size(), kManyRuns / 50 * worth);
        EXPECT_TRUE(std::ranges::is_sorted(numbers));
        if (worth == 3) {
          EXPECT_EQ(visited, numbers.size());
        }
      }
    }
  }
  EXPECT_TRUE(store->Close().ok());
}

// Each commit gives the first and the last run one value; no scan may see two.
TEST(LongScanTest, SeesOneStateWhileCommitsGoOn) {
  SqliteHome home;
  const std::unique_ptr<Store> store = home.Open();
  CommitManyRuns(*store);
  {
    const std::unique_ptr<ReadStore> reader = *store->OpenReader();
    std::atomic<bool> is_over = false;
    std::thread scans([&] {
      for (int i = 0; i < 20; ++i) {
        double first = 0;
        double last = 0;
        const Status status =
            reader->ScanRuns({.sweep = MakeSweepId(1), .series = {"pair"}, .run_facts = 0},
                             [&](const RunFacts& run) {
                               if (run.number == 1) first = run.values[0].last;
                               if (run.number == kManyRuns + 5000) last = run.values[0].last;
                               return true;
                             });
        EXPECT_TRUE(status.ok()) << status.ToString();
        EXPECT_EQ(first, last);
      }
      is_over = true;
    });
    for (double value = 1; !is_over; ++value) {
      std::vector<Write> writes;
      for (const uint64_t run : {uint64_t{1}, kManyRuns}) {
        writes.emplace_back(
            SummaryRow{.run = MakeRunId(run), .series = "pair", .last = value, .count = 1});
      }
      const Status status = store->Commit(writes);
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
    scans.join();
  }
  EXPECT_TRUE(store->Close().ok());
}

}  // namespace
}  // namespace switchyard::store
