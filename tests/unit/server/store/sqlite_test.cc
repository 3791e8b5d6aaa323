#include "server/store/sqlite.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/base/strings.h"
#include "server/store/limits.h"
#include "server/store/migrator.h"
#include "server/store/sentinel.h"
#include "server/store/store.h"
#include "tests/suites/store_rows.h"

namespace switchyard::store {
namespace {

class SqliteTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = ::testing::TempDir() + "/sqlite_test_" + NewUuidV4().ToString();
    ASSERT_TRUE(MakeDirectories(dir_).ok());
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<Connection> OpenWriter(const std::string& name) {
    Result<std::unique_ptr<Connection>> db =
        Connection::Open(dir_ + "/" + name, Connection::Mode::kWriter);
    EXPECT_TRUE(db.ok()) << db.status().ToString();
    return *std::move(db);
  }
  std::unique_ptr<Store> OpenStore() {
    Result<std::unique_ptr<Store>> store = OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }

  std::string dir_;
};

// One object a line, blanks collapsed, in order of name.
std::string Schema(Connection& db) {
  Statement read =
      db.Prepare("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name");
  std::string schema;
  while (*read.Step()) {
    std::string line;
    for (std::istringstream words(read.Text(0)); words;) {
      std::string word;
      if (words >> word) line += (line.empty() ? "" : " ") + word;
    }
    schema += line + "\n";
  }
  return schema;
}

// An empty file brought up to date has the schema that was reviewed: a change of a migration shows
// here and in the golden file.
TEST_F(SqliteTest, FreshSchemaIsTheGoldenOne) {
  const std::unique_ptr<Connection> db = OpenWriter("a.db");
  ASSERT_TRUE(Migrate(*db, EmbeddedMigrations(), 1).ok());
  const std::string path = SWITCHYARD_SOURCE_DIR "/tests/golden/schema.sql";
  const Result<std::string> golden = ReadFile(path);
  ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  EXPECT_EQ(Schema(*db), *golden);
  // Again: nothing to do.
  EXPECT_TRUE(Migrate(*db, EmbeddedMigrations(), 2).ok());
}

// A file of version 1 with rows is upgraded by a further migration: rows stay, a copy of the file
// as it was lies beside it, and a migration that fails leaves the old schema.
TEST_F(SqliteTest, UpgradesKeepRowsAndACopy) {
  const std::unique_ptr<Connection> db = OpenWriter("a.db");
  const std::vector<Migration> first = {{1, "0001_a", "CREATE TABLE t(x INTEGER)"}};
  ASSERT_TRUE(Migrate(*db, first, 1).ok());
  ASSERT_TRUE(db->Execute("INSERT INTO t VALUES (5)").ok());
  std::vector<Migration> second = first;
  second.push_back({2, "0002_b", "ALTER TABLE t ADD y INTEGER; SELECT * FROM nothing"});
  EXPECT_FALSE(Migrate(*db, second, 2).ok());
  EXPECT_FALSE(db->Execute("SELECT y FROM t").ok());
  second[1].sql = "ALTER TABLE t ADD y INTEGER DEFAULT 7";
  const Status status = Migrate(*db, second, 3);
  ASSERT_TRUE(status.ok()) << status.ToString();
  {
    Statement read = db->Prepare("SELECT x + y FROM t");
    ASSERT_TRUE(*read.Step());
    EXPECT_EQ(read.Int(0), 12);
  }
  EXPECT_TRUE(FileExists(dir_ + "/a.db.before-2"));
}

// RE3: the copy before an upgrade is whole and of this moment, though an earlier try was broken off
// in the middle of it or the older program went on meanwhile.
TEST_F(SqliteTest, ACopyBeforeAnUpgradeIsWholeAndNew) {
  const std::unique_ptr<Connection> db = OpenWriter("a.db");
  const std::vector<Migration> first = {{1, "0001_a", "CREATE TABLE t(x INTEGER)"}};
  ASSERT_TRUE(Migrate(*db, first, 1).ok());
  ASSERT_TRUE(db->Execute("INSERT INTO t VALUES (5)").ok());
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/a.db.before-2", "SQLite format 3").ok());
  ASSERT_TRUE(WriteFileAtomically(dir_ + "/a.db.before-2.tmp", "half of a copy").ok());
  std::vector<Migration> second = first;
  second.push_back({2, "0002_b", "ALTER TABLE t ADD y INTEGER"});
  const Status status = Migrate(*db, second, 2);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(FileExists(dir_ + "/a.db.before-2.tmp"));
  const std::unique_ptr<Connection> copy = OpenWriter("a.db.before-2");
  Statement read = copy->Prepare("SELECT x FROM t");
  ASSERT_TRUE(*read.Step());
  EXPECT_EQ(read.Int(0), 5);
}

// A file of a newer program, of another program, or with a migration whose text has changed since:
// refused and left alone.
TEST_F(SqliteTest, RefusesForeignSchemas) {
  const std::vector<Migration> one = {{1, "0001_a", "CREATE TABLE t(x INTEGER)"}};
  const std::vector<Migration> other = {{1, "0001_a", "CREATE TABLE t(x TEXT)"}};
  const std::vector<Migration> two = {one[0], {2, "0002_b", "CREATE TABLE u(x)"}};
  const std::unique_ptr<Connection> db = OpenWriter("a.db");
  ASSERT_TRUE(Migrate(*db, two, 1).ok());
  EXPECT_EQ(Migrate(*db, one, 1).code(), Code::kFailedPrecondition);
  const std::unique_ptr<Connection> changed = OpenWriter("b.db");
  ASSERT_TRUE(Migrate(*changed, one, 1).ok());
  EXPECT_EQ(Migrate(*changed, other, 1).code(), Code::kFailedPrecondition);
  const std::unique_ptr<Connection> foreign = OpenWriter("c.db");
  ASSERT_TRUE(foreign->Execute("CREATE TABLE mine(x)").ok());
  EXPECT_EQ(Migrate(*foreign, one, 1).code(), Code::kFailedPrecondition);
}

// A reader's connection cannot write, whatever it is asked to run.
TEST_F(SqliteTest, ReadersCannotWrite) {
  const std::unique_ptr<Connection> writer = OpenWriter("a.db");
  ASSERT_TRUE(writer->Execute("CREATE TABLE t(x)").ok());
  const Result<std::unique_ptr<Connection>> reader =
      Connection::Open(dir_ + "/a.db", Connection::Mode::kReader);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ((*reader)->Execute("INSERT INTO t VALUES (1)").code(), Code::kPermissionDenied);
  EXPECT_FALSE((*reader)->Execute("PRAGMA query_only=0; DELETE FROM t").ok());
}

// A read that works past its budget ends with a status that says so, and the connection goes on.
TEST_F(SqliteTest, EndsReadsPastTheirBudget) {
  const std::unique_ptr<Connection> db = OpenWriter("a.db");
  db->SetTimeBudget(20);
  const Status status = db->ReadSnapshot([&] {
    return db->Execute(
        "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) "
        "SELECT count(*) FROM c");
  });
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.ToString();
  db->SetTimeBudget(0);
  EXPECT_TRUE(db->Execute("CREATE TABLE t(x)").ok());
}

// A full database: the commit fails with a code of its own and leaves nothing behind.
TEST_F(SqliteTest, AFullDatabaseRollsBack) {
  const std::unique_ptr<Connection> db = OpenWriter("a.db");
  ASSERT_TRUE(db->Execute("CREATE TABLE t(x); PRAGMA max_page_count=20").ok());
  const Status status = db->Transact([&]() -> Status {
    for (int i = 0; i < 100; ++i) {
      SWITCHYARD_RETURN_IF_ERROR(db->Execute("INSERT INTO t VALUES (zeroblob(4000))"));
    }
    return OkStatus();
  });
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
  Statement count = db->Prepare("SELECT count(*) FROM t");
  ASSERT_TRUE(*count.Step());
  EXPECT_EQ(count.Int(0), 0);
}

// A bit flips in the log of a killed coordinator: SQLite would silently forget every commit from
// there on. The sentinel notices, and a start is refused.
TEST_F(SqliteTest, NoticesThatCommitsVanished) {
  {
    const std::unique_ptr<Store> store = OpenStore();
    for (uint64_t n = 1; n <= 20; ++n) {
      const std::vector<Write> writes = {MakeSweep(n), SweepStatus{.id = MakeSweepId(n)}};
      ASSERT_TRUE(store->Commit(writes).ok());
    }
    // No Close: what a kill leaves.
  }
  {
    const std::unique_ptr<Store> store = OpenStore();
    ASSERT_NE(store, nullptr);
    EXPECT_EQ(store->ListSweeps(false, "", 100)->sweeps.size(), 20u);
    const std::vector<Write> writes = {MakeSweep(21), SweepStatus{.id = MakeSweepId(21)}};
    ASSERT_TRUE(store->Commit(writes).ok());
  }
  {
    std::fstream wal(dir_ + "/switchyard.db-wal", std::ios::in | std::ios::out | std::ios::binary);
    wal.seekp(32 + 24 + 100);
    wal.put('\x5a');
  }
  const Result<std::unique_ptr<Store>> store = OpenSqliteStore({.data_dir = dir_, .now_ms = 1});
  EXPECT_EQ(store.status().code(), Code::kDataLoss) << store.status().ToString();
}

// The database file is removed beside its sentinel: a coordinator must not begin an empty history
// as if nothing had been.
TEST_F(SqliteTest, NoticesThatTheDatabaseIsGone) {
  {
    const std::unique_ptr<Store> store = OpenStore();
    ASSERT_TRUE(store->Close().ok());
  }
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(dir_ + "/switchyard.db" + suffix);
  }
  EXPECT_EQ(OpenSqliteStore({.data_dir = dir_}).status().code(), Code::kDataLoss);
}

// A torn write of the newest mark leaves the one before.
TEST_F(SqliteTest, SentinelSurvivesATornSlot) {
  const std::string path = dir_ + "/tail";
  {
    Result<std::unique_ptr<TailSentinel>> sentinel = TailSentinel::Open(path);
    ASSERT_TRUE(sentinel.ok());
    EXPECT_FALSE((*sentinel)->found());
    for (uint64_t n = 1; n <= 3; ++n) {
      ASSERT_TRUE((*sentinel)->Write({.cluster = {1, 2}, .generation = 1, .tail_seq = n}).ok());
    }
    ASSERT_TRUE((*sentinel)->Sync().ok());
  }
  EXPECT_EQ((*TailSentinel::Open(path))->found()->tail_seq, 3u);
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(20);  // the first slot holds marks 1 and 3
    file.put('\x77');
  }
  EXPECT_EQ((*TailSentinel::Open(path))->found()->tail_seq, 2u);
}

// Two coordinators on one folder: the second is turned away.
TEST_F(SqliteTest, OneStoreOpensAFolder) {
  const std::unique_ptr<Store> store = OpenStore();
  EXPECT_EQ(OpenSqliteStore({.data_dir = dir_}).status().code(), Code::kFailedPrecondition);
}

// Each start raises boot, and the cluster's id stays.
TEST_F(SqliteTest, EachStartRaisesBoot) {
  std::string cluster;
  for (uint32_t boot = 1; boot <= 3; ++boot) {
    const std::unique_ptr<Store> store = OpenStore();
    const Result<Snapshot> snapshot = store->Load();
    ASSERT_TRUE(snapshot.ok());
    EXPECT_EQ(snapshot->meta.boot, boot);
    EXPECT_EQ(snapshot->meta.generation, 1u);
    if (boot > 1) {
      EXPECT_EQ(snapshot->meta.cluster_id, cluster);
    }
    cluster = snapshot->meta.cluster_id;
    ASSERT_TRUE(store->Close().ok());
  }
}

// A chunk is damaged on disk: reads of its series say so, the others go on, and idle work comes to
// its end instead of trying for ever.
TEST_F(SqliteTest, LeavesDamagedChunksAlone) {
  const std::unique_ptr<Store> store = OpenStore();
  ChunkRow damaged = MakeChunk({10}, "train/a", 4, {4, 5}, {1, 2});
  damaged.blob.resize(damaged.blob.size() - 1);
  const std::vector<Write> writes = {MakeSweep(1),
                                     SweepStatus{.id = MakeSweepId(1)},
                                     MakeRun(1, 1),
                                     RunStatus{.id = MakeRunId(1)},
                                     AttemptRow{.epoch = {10}, .run = MakeRunId(1), .ordinal = 1},
                                     AttemptStatus{.epoch = {10}, .start_reported = true},
                                     MakeChunk({10}, "train/a", 1, {1, 2}, {1, 2}),
                                     damaged,
                                     MakeChunk({10}, "train/b", 1, {1}, {1}),
                                     MakeChunk({10}, "train/b", 2, {2}, {2}),
                                     StreamRow{.epoch = {10}, .sealed = true}};
  ASSERT_TRUE(store->Commit(writes).ok());
  // The second call finds it quiet, and checkpoints.
  ASSERT_TRUE(store->DoIdleWork(1000).ok());
  const Result<bool> more = store->DoIdleWork(1000);
  ASSERT_TRUE(more.ok()) << more.status().ToString();
  EXPECT_FALSE(*more);
  EXPECT_EQ(store->GetCurve({.run = MakeRunId(1), .series = "train/a"}).status().code(),
            Code::kDataLoss);
  EXPECT_EQ(store->GetCurve({.run = MakeRunId(1), .series = "train/b"})->points.size(), 2u);
}

// The log stays bounded while points pour in beside a reader that comes and goes, and is empty when
// the coordinator is idle (case SQ2).
TEST_F(SqliteTest, TheLogStaysBounded) {
  const std::unique_ptr<Store> store = OpenStore();
  const std::vector<Write> run = {MakeSweep(1),
                                  SweepStatus{.id = MakeSweepId(1)},
                                  MakeRun(1, 1),
                                  RunStatus{.id = MakeRunId(1)},
                                  LinkRow{MakeSweepId(1), 1, MakeRunId(1)},
                                  AttemptRow{.epoch = {10}, .run = MakeRunId(1), .ordinal = 1},
                                  AttemptStatus{.epoch = {10}, .start_reported = true}};
  ASSERT_TRUE(store->Commit(run).ok());
  const Result<std::unique_ptr<ReadStore>> reader = store->OpenReader();
  ASSERT_TRUE(reader.ok());
  std::vector<double> values(100000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0 / static_cast<double>(i + 1);
  std::vector<uint64_t> steps(values.size());
  uint64_t longest = 0;
  for (uint64_t batch = 0; batch < 60; ++batch) {
    for (size_t i = 0; i < steps.size(); ++i) steps[i] = batch * steps.size() + i + 1;
    const std::vector<Write> writes = {
        MakeChunk({10}, "train/x", batch * steps.size() + 1, steps, values)};
    ASSERT_TRUE(store->Commit(writes).ok());
    if (batch % 5 == 0) {
      ASSERT_TRUE((*reader)->GetCurve({.run = MakeRunId(1), .series = "train/x"}).ok());
    }
    longest = std::max(longest, store->Stats().wal_bytes);
  }
  EXPECT_LT(longest, 2 * kWalBytes);
  EXPECT_GT(store->Stats().checkpoints, 1u);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store->DoIdleWork(1000).ok());
  EXPECT_EQ(store->Stats().wal_bytes, 0u);
  EXPECT_TRUE(store->IsCheckpointed());
}

}  // namespace
}  // namespace switchyard::store
