#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "common/base/clock.h"
#include "common/base/failpoint.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "server/store/limits.h"
#include "server/store/merge.h"
#include "server/store/migrator.h"
#include "server/store/row_reader.h"
#include "server/store/row_writer.h"
#include "server/store/sentinel.h"
#include "server/store/sqlite.h"
#include "server/store/store.h"

namespace switchyard::store {
namespace {

constexpr int64_t kReadBudgetMs = 2000;
// Of a scan over the runs of a sweep, of which there may be a million.
constexpr int64_t kScanBudgetMs = 10'000;
constexpr int64_t kSentinelSyncMs = 1000;
// What workers may forget waits for a checkpoint, so one comes even where commits never cease.
constexpr int64_t kCheckpointEveryMs = 10000;
constexpr int kIdemBatch = 1000;

// The queries over one connection, each inside the bracket that its owner gives.
template <typename Base>
class Reading : public Base {
 public:
  Result<SweepInfo> FindSweep(std::string_view selector, bool with_spec) override {
    return Read([&] { return reader_.FindSweep(selector, with_spec); });
  }
  Result<SweepPage> ListSweeps(bool all, std::string_view page, size_t limit) override {
    return Read([&] { return reader_.ListSweeps(all, page, limit); });
  }
  Result<RunInfo> FindRun(std::string_view selector) override {
    return Read([&] { return reader_.FindRun(selector); });
  }
  Result<RunPage> ListRuns(const RunFilter& filter, std::string_view page, size_t limit) override {
    return Read([&] { return reader_.ListRuns(filter, page, limit); });
  }
  Status ScanRuns(const ScanQuery& query,
                  const std::function<bool(const RunFacts&)>& visit) override {
    return Bracket([&] { return reader_.ScanRuns(query, visit); }, kScanBudgetMs);
  }
  Result<std::vector<RunInfo>> GetRuns(SweepId sweep, std::span<const uint64_t> numbers,
                                       std::span<const std::string> series) override {
    return Read([&] { return reader_.GetRuns(sweep, numbers, series); });
  }
  Result<std::string> GetStrategyState(SweepId sweep) override {
    return Read([&] { return reader_.GetStrategyState(sweep); });
  }
  Result<RunDocument> GetRunDocument(RunId run) override {
    return Read([&] { return reader_.GetRunDocument(run); });
  }
  Result<std::vector<AttemptInfo>> ListAttempts(RunId run) override {
    return Read([&] { return reader_.ListAttempts(run); });
  }
  Result<std::vector<CheckpointRow>> ListCheckpoints(RunId run) override {
    return Read([&] { return reader_.ListCheckpoints(run); });
  }
  Result<std::vector<HistoryRow>> ListHistory(Uuid ref, size_t limit) override {
    return Read([&] { return reader_.ListHistory(ref, limit); });
  }
  Result<std::vector<SummaryRow>> ListSummaries(RunId run) override {
    return Read([&] { return reader_.ListSummaries(run); });
  }
  Result<CurvePage> GetCurve(const CurveQuery& query) override {
    return Read([&] { return reader_.GetCurve(query); });
  }
  Result<LogPage> ReadLog(RunId run, uint32_t attempt, scheduler::LogStream stream, uint64_t offset,
                          size_t max_bytes) override {
    return Read([&] { return reader_.ReadLog(run, attempt, stream, offset, max_bytes); });
  }
  Result<SweepInfo> FindSweepByHash(std::string_view project, std::string_view spec_hash) override {
    return Read([&] { return reader_.FindSweepByHash(project, spec_hash); });
  }
  Result<std::vector<std::optional<ValidRun>>> FindValidRuns(
      std::string_view project, std::span<const std::string> run_keys) override {
    return Read([&] { return reader_.FindValidRuns(project, run_keys); });
  }

 protected:
  explicit Reading(std::unique_ptr<Connection> db) : db_(std::move(db)), reader_(*db_) {}

  virtual Status Bracket(const std::function<Status()>& body,
                         int64_t budget_ms = kReadBudgetMs) = 0;

  template <typename Query>
  auto Read(Query query) -> decltype(query()) {
    std::optional<decltype(query())> result;
    const Status status = Bracket([&] {
      result.emplace(query());
      return result->status();
    });
    if (!status.ok()) return status;
    return *std::move(result);
  }

  const std::unique_ptr<Connection> db_;
  RowReader reader_;
};

class SqliteReader final : public Reading<ReadStore> {
 public:
  explicit SqliteReader(std::unique_ptr<Connection> db) : Reading(std::move(db)) {}

  // A long one by two threads where the machine has them.
  Status ScanRuns(const ScanQuery& query,
                  const std::function<bool(const RunFacts&)>& visit) override {
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t last,
                                Read([&] { return reader_.LastNumber(query.sweep); }));
    const bool is_long = last > query.after && last - query.after >= kLongScan;
    if (is_long && std::thread::hardware_concurrency() > 1) {
      SWITCHYARD_RETURN_IF_ERROR(OpenHelper());
      for (int i = 0; i < kSnapshotTries; ++i) {
        SWITCHYARD_ASSIGN_OR_RETURN(const bool is_done, ScanWithHelper(query, visit));
        if (is_done) return OkStatus();
      }
    }
    return Reading::ScanRuns(query, visit);
  }

 private:
  // Numbers from which on a second thread pays.
  static constexpr uint64_t kLongScan = 4096;
  static constexpr int kSnapshotTries = 3;

  // An old snapshot keeps the log from being written from its start again, so no read may be long.
  Status Bracket(const std::function<Status()>& body, int64_t budget_ms) override {
    return Bracket(*db_, body, budget_ms);
  }
  static Status Bracket(Connection& db, const std::function<Status()>& body, int64_t budget_ms) {
    db.SetTimeBudget(budget_ms);
    Status status = db.ReadSnapshot(body);
    db.SetTimeBudget(0);
    return status;
  }

  Status OpenHelper() {
    if (helper_ != nullptr) return OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(helper_, Connection::Open(db_->path(), Connection::Mode::kReader));
    return OkStatus();
  }

  // The number of the commit that the connection sees.
  static Result<uint64_t> CommitSeen(Connection& db) {
    Statement read = db.Prepare("SELECT tail_seq FROM meta");
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    return has_row ? read.Uint(0) : 0;
  }

  // False, with nothing visited: a commit came between the snapshots of the two connections.
  Result<bool> ScanWithHelper(const ScanQuery& query,
                              const std::function<bool(const RunFacts&)>& visit) {
    bool is_done = false;
    const auto scan = [&]() -> Status {
      SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t own, CommitSeen(*db_));
      return Bracket(
          *helper_,
          [&]() -> Status {
            SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t other, CommitSeen(*helper_));
            if (own != other) return OkStatus();
            is_done = true;
            return reader_.ScanRuns(query, visit, helper_.get());
          },
          kScanBudgetMs);
    };
    SWITCHYARD_RETURN_IF_ERROR(Bracket(*db_, scan, kScanBudgetMs));
    return is_done;
  }

  std::unique_ptr<Connection> helper_;  // opened by the first long scan
};

class SqliteStore final : public Reading<Store> {
 public:
  SqliteStore(std::unique_ptr<Connection> db, UniqueFd lock)
      : Reading(std::move(db)), lock_(std::move(lock)), writer_(*db_) {}

  Status Start(const std::string& sentinel_path, bool is_new, int64_t now_ms);

  Result<Snapshot> Load() override;
  Status Commit(std::span<const Write> writes) override;
  Result<IdemRow> FindIdem(std::string_view request_id, int64_t now_ms) override;
  Result<std::vector<SummaryRow>> RebuildSummaries(RunId run, std::optional<Epoch> head,
                                                   uint64_t step) override {
    return reader_.RebuildSummaries(run, head, step);
  }
  Result<RecordedAttempt> FindRecorded(RunId run, Epoch epoch) override {
    return reader_.FindRecorded(run, epoch);
  }
  Result<bool> IsSweepNameTaken(std::string_view name) override {
    return reader_.IsSweepNameTaken(name);
  }
  Result<bool> DoIdleWork(int budget_ms) override;
  bool IsCheckpointed() const override { return is_checkpointed_; }
  StoreStats Stats() override;
  Result<std::unique_ptr<ReadStore>> OpenReader() override;
  Status Close() override;

 private:
  // The one thread that writes sees one state anyway.
  Status Bracket(const std::function<Status()>& body, int64_t /*budget_ms*/) override {
    return body();
  }

  // One durable transaction with its number, and the sentinel behind it.
  Status Write(const std::function<Status()>& body);
  Status CheckSentinel(bool is_new);
  Status ReadMeta();
  Status Checkpoint(Connection::CheckpointMode mode);
  Status CheckpointWhenLong();
  // One piece of idle work; false: there was none.
  Result<bool> MergeOnce();
  Result<bool> ExpireOnce();

  const UniqueFd lock_;
  RowWriter writer_;
  std::unique_ptr<TailSentinel> sentinel_;
  Uuid cluster_;
  Meta meta_;
  uint64_t tail_seq_ = 0;
  int64_t now_ms_ = 0;
  int64_t sentinel_synced_ms_ = 0;

  std::deque<int64_t> series_to_merge_;
  std::deque<RowWriter::LogKey> logs_to_merge_;

  bool is_checkpointed_ = false;
  int64_t checkpointed_ms_ = 0;
  uint64_t tail_seq_at_idle_ = 0;
  uint64_t wal_bytes_seen_ = 0;
  uint64_t checkpoint_due_bytes_ = kWalBytes;
  uint64_t checkpoints_ = 0;
  double last_checkpoint_seconds_ = 0;
};

Status SqliteStore::ReadMeta() {
  Statement read = db_->Prepare("SELECT cluster, generation, boot, tail_seq FROM meta");
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return DataLoss(StrCat("database ", db_->path(), " has no meta row"));
  cluster_ = read.Id(0);
  meta_.cluster_id = cluster_.ToString();
  meta_.generation = static_cast<uint32_t>(read.Uint(1));
  meta_.boot = static_cast<uint32_t>(read.Uint(2));
  meta_.schema = static_cast<uint32_t>(EmbeddedMigrations().size());
  tail_seq_ = read.Uint(3);
  return OkStatus();
}

Status SqliteStore::CheckSentinel(bool is_new) {
  const std::optional<TailSentinel::Mark>& mark = sentinel_->found();
  if (!mark) return OkStatus();
  const std::string advice =
      StrCat("restore a backup, or remove ", db_->path(), ".tail to go on with what is there");
  if (is_new || mark->cluster != cluster_) {
    return DataLoss(StrCat("database ", db_->path(), is_new ? " is gone" : " is another cluster's",
                           " (the sentinel knows cluster ", mark->cluster.ToString(),
                           "): ", advice));
  }
  if (mark->generation == meta_.generation && mark->tail_seq > tail_seq_) {
    return DataLoss(StrCat("database ", db_->path(), " ends at commit ", tail_seq_,
                           ", the sentinel at ", mark->tail_seq,
                           ": acknowledged data has vanished; ", advice));
  }
  return OkStatus();
}

Status SqliteStore::Start(const std::string& sentinel_path, bool is_new, int64_t now_ms) {
  now_ms_ = now_ms;
  writer_.SetNow(now_ms);
  SWITCHYARD_ASSIGN_OR_RETURN(sentinel_, TailSentinel::Open(sentinel_path));
  if (is_new) SWITCHYARD_RETURN_IF_ERROR(CheckSentinel(is_new));
  SWITCHYARD_FAILPOINT("store.sentinel_opened");
  SWITCHYARD_RETURN_IF_ERROR(Migrate(*db_, EmbeddedMigrations(), now_ms));
  SWITCHYARD_FAILPOINT("store.migrated");
  const Uuid fresh = NewUuidV4();
  SWITCHYARD_RETURN_IF_ERROR(db_->Transact([&] {
    return db_
        ->Prepare(
            "INSERT OR IGNORE INTO meta(id, cluster, generation, boot, tail_seq) "
            "VALUES (1, ?1, 1, 0, 0)")
        .Bind(1, fresh)
        .Run();
  }));
  SWITCHYARD_RETURN_IF_ERROR(ReadMeta());
  if (!is_new) SWITCHYARD_RETURN_IF_ERROR(CheckSentinel(is_new));
  SWITCHYARD_FAILPOINT("store.meta_read");
  ++meta_.boot;
  SWITCHYARD_RETURN_IF_ERROR(
      Write([&] { return db_->Prepare("UPDATE meta SET boot = ?1").Bind(1, meta_.boot).Run(); }));
  SWITCHYARD_FAILPOINT("store.boot_raised");
  return Checkpoint(Connection::CheckpointMode::kTruncate);
}

Status SqliteStore::Write(const std::function<Status()>& body) {
  SWITCHYARD_FAILPOINT("store.begin");
  const Status status = db_->Transact([&]() -> Status {
    SWITCHYARD_RETURN_IF_ERROR(body());
    SWITCHYARD_FAILPOINT("store.rows_written");
    return db_->Prepare("UPDATE meta SET tail_seq = ?1").Bind(1, tail_seq_ + 1).Run();
  });
  if (!status.ok()) {
    writer_.Forget();
    return status;
  }
  SWITCHYARD_FAILPOINT("store.committed");
  ++tail_seq_;
  is_checkpointed_ = false;
  if (db_->WalBytes() < wal_bytes_seen_) checkpoint_due_bytes_ = kWalBytes;
  wal_bytes_seen_ = db_->WalBytes();
  // The commit stands. A witness that cannot be written must not turn it into a failure, nor stop
  // the coordinator: the start that follows compares with an older mark.
  Status witness = sentinel_->Write({.cluster = cluster_,
                                     .generation = meta_.generation,
                                     .boot = meta_.boot,
                                     .tail_seq = tail_seq_});
  SWITCHYARD_FAILPOINT("store.sentinel_written");
  if (const int64_t now = MonotonicNow().ms; now - sentinel_synced_ms_ >= kSentinelSyncMs) {
    sentinel_synced_ms_ = now;
    if (witness.ok()) witness = sentinel_->Sync();
    SWITCHYARD_FAILPOINT("store.sentinel_synced");
  }
  if (!witness.ok()) LogWarning("tail sentinel: ", witness.message());
  return OkStatus();
}

Result<Snapshot> SqliteStore::Load() {
  SWITCHYARD_ASSIGN_OR_RETURN(Snapshot snapshot, reader_.Load());
  snapshot.meta = meta_;
  return snapshot;
}

Status SqliteStore::Commit(std::span<const store::Write> writes) {
  if (writes.empty()) return OkStatus();
  const Status status = Write([&] { return writer_.WriteAll(writes); });
  // A deferred constraint shows at the commit.
  if (status.code() == Code::kFailedPrecondition || status.code() == Code::kAlreadyExists) {
    return Internal(status.message());
  }
  SWITCHYARD_RETURN_IF_ERROR(status);
  return CheckpointWhenLong();
}

Status SqliteStore::CheckpointWhenLong() {
  if (db_->WalBytes() < checkpoint_due_bytes_) return OkStatus();
  // Held back by a reader, or done while one still looks at the log: not again before as much has
  // come again.
  checkpoint_due_bytes_ = db_->WalBytes() + kWalBytes;
  if (const Status status = Checkpoint(Connection::CheckpointMode::kPassive); !status.ok()) {
    // What was committed stands in the log.
    LogError("checkpoint: ", status.message());
  }
  return OkStatus();
}

Status SqliteStore::Checkpoint(Connection::CheckpointMode mode) {
  SWITCHYARD_FAILPOINT("checkpoint.begin");
  const auto start = std::chrono::steady_clock::now();
  SWITCHYARD_ASSIGN_OR_RETURN(const bool is_complete, db_->Checkpoint(mode));
  last_checkpoint_seconds_ =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  SWITCHYARD_FAILPOINT("checkpoint.done");
  ++checkpoints_;
  checkpointed_ms_ = MonotonicNow().ms;
  if (is_complete) is_checkpointed_ = true;
  if (db_->WalBytes() == 0) {
    wal_bytes_seen_ = 0;
    checkpoint_due_bytes_ = kWalBytes;
  }
  return OkStatus();
}

Result<IdemRow> SqliteStore::FindIdem(std::string_view request_id, int64_t now_ms) {
  now_ms_ = now_ms;
  writer_.SetNow(now_ms);
  return reader_.FindIdem(request_id, now_ms);
}

Result<bool> SqliteStore::MergeOnce() {
  for (const int64_t series : writer_.TakeSeriesToMerge()) series_to_merge_.push_back(series);
  for (const RowWriter::LogKey& key : writer_.TakeLogsToMerge()) logs_to_merge_.push_back(key);
  if (!series_to_merge_.empty()) {
    // Several a transaction: a commit costs more than a merge.
    SWITCHYARD_RETURN_IF_ERROR(Write([&]() -> Status {
      for (int i = 0; i < 16 && !series_to_merge_.empty(); ++i) {
        SWITCHYARD_RETURN_IF_ERROR(
            MergeSeries(*db_, series_to_merge_.front(), MergeEnd::kMoreComes));
        SWITCHYARD_FAILPOINT("merge.series");
        series_to_merge_.pop_front();
      }
      return OkStatus();
    }));
    return true;
  }
  if (!logs_to_merge_.empty()) {
    SWITCHYARD_RETURN_IF_ERROR(
        Write([&] { return MergeLog(*db_, logs_to_merge_.front(), MergeEnd::kMoreComes); }));
    SWITCHYARD_FAILPOINT("merge.log");
    logs_to_merge_.pop_front();
    return true;
  }
  Epoch epoch;
  uint32_t rank = 0;
  {
    Statement read =
        db_->Prepare("SELECT epoch, rank FROM streams WHERE sealed = 1 AND is_merged = 0 LIMIT 1");
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return false;
    epoch = {read.Uint(0)};
    rank = static_cast<uint32_t>(read.Uint(1));
  }
  SWITCHYARD_RETURN_IF_ERROR(Write([&] { return MergeStream(*db_, epoch, rank); }));
  SWITCHYARD_FAILPOINT("merge.stream");
  return true;
}

Result<bool> SqliteStore::ExpireOnce() {
  {
    Statement read = db_->Prepare("SELECT 1 FROM idem WHERE expires_ms <= ?1 LIMIT 1");
    read.Bind(1, now_ms_);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return false;
  }
  SWITCHYARD_RETURN_IF_ERROR(Write([&] {
    return db_
        ->Prepare(
            "DELETE FROM idem WHERE request_id IN (SELECT request_id FROM idem "
            "WHERE expires_ms <= ?1 LIMIT ?2)")
        .Bind(1, now_ms_)
        .Bind(2, kIdemBatch)
        .Run();
  }));
  return true;
}

Result<bool> SqliteStore::DoIdleWork(int budget_ms) {
  const bool is_quiet = tail_seq_ == tail_seq_at_idle_;
  const Timestamp deadline = MonotonicNow() + Milliseconds(budget_ms);
  bool has_more = true;
  while (has_more && MonotonicNow() < deadline) {
    SWITCHYARD_ASSIGN_OR_RETURN(has_more, MergeOnce());
    if (!has_more) {
      SWITCHYARD_ASSIGN_OR_RETURN(has_more, ExpireOnce());
    }
  }
  // Not at every pause between two batches: a checkpoint syncs twice.
  const bool is_due = is_quiet || db_->WalBytes() >= kWalBytes ||
                      MonotonicNow().ms - checkpointed_ms_ >= kCheckpointEveryMs;
  if (!has_more && !is_checkpointed_ && is_due) {
    SWITCHYARD_RETURN_IF_ERROR(Checkpoint(Connection::CheckpointMode::kTruncate));
  }
  tail_seq_at_idle_ = tail_seq_;
  return has_more || !is_checkpointed_;
}

StoreStats SqliteStore::Stats() {
  StoreStats stats{.wal_bytes = db_->WalBytes(),
                   .checkpoints = checkpoints_,
                   .last_checkpoint_seconds = last_checkpoint_seconds_};
  Statement pages = db_->Prepare(
      "SELECT page_count * page_size FROM pragma_page_count, "
      "pragma_page_size");
  if (const Result<bool> has_row = pages.Step(); has_row.ok() && *has_row) {
    stats.database_bytes = pages.Uint(0);
  }
  return stats;
}

Result<std::unique_ptr<ReadStore>> SqliteStore::OpenReader() {
  SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                              Connection::Open(db_->path(), Connection::Mode::kReader));
  return std::unique_ptr<ReadStore>(new SqliteReader(std::move(connection)));
}

Status SqliteStore::Close() {
  SWITCHYARD_FAILPOINT("close.begin");
  SWITCHYARD_RETURN_IF_ERROR(Checkpoint(Connection::CheckpointMode::kTruncate));
  SWITCHYARD_FAILPOINT("close.checkpointed");
  db_->RemoveLogOnClose();
  return sentinel_->Sync();
}

}  // namespace

Result<std::unique_ptr<Store>> OpenSqliteStore(const OpenOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(options.data_dir, 0700));
  const std::string path = options.data_dir + "/switchyard.db";
  SWITCHYARD_ASSIGN_OR_RETURN(UniqueFd lock, LockFile(path + ".lock"));
  SWITCHYARD_FAILPOINT("store.locked");
  const bool is_new = !FileExists(path);
  SWITCHYARD_ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                              Connection::Open(path, Connection::Mode::kWriter));
  auto store = std::make_unique<SqliteStore>(std::move(connection), std::move(lock));
  SWITCHYARD_RETURN_IF_ERROR(store->Start(path + ".tail", is_new, options.now_ms));
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace switchyard::store
