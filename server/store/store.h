#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/store/rows.h"

namespace switchyard::store {

// Queries over committed rows. One thread at a time per object; made by Store::OpenReader. Each
// call sees one state of the database. kDeadlineExceeded after 2 s (a scan: 10 s); kNotFound names
// what was asked; kInvalidArgument for a page that is none of this query's.
class ReadStore {
 public:
  virtual ~ReadStore() = default;

  // `selector`: name, id, or "last" (the newest). `with_spec` fills SweepRow::spec.
  virtual Result<SweepInfo> FindSweep(std::string_view selector, bool with_spec) = 0;
  // Newest first; terminal ones only when `all`.
  virtual Result<SweepPage> ListSweeps(bool all, std::string_view page, size_t limit) = 0;
  // Of a drawn sweep; kNotFound: none was stored.
  virtual Result<std::string> GetStrategyState(SweepId sweep) = 0;
  // SWEEP/NUMBER, a bare number of the last sweep, or a run id.
  virtual Result<RunInfo> FindRun(std::string_view selector) = 0;
  // By number within a sweep; newest sweep first across sweeps.
  virtual Result<RunPage> ListRuns(const RunFilter& filter, std::string_view page,
                                   size_t limit) = 0;
  // Facts of the runs of a sweep by number, all over one state of the database; `visit` says false
  // to end the scan, and calls nothing of this object.
  virtual Status ScanRuns(const ScanQuery& query,
                          const std::function<bool(const RunFacts&)>& visit) = 0;
  // These runs of a sweep, in this order. kNotFound: a number is none of its runs.
  virtual Result<std::vector<RunInfo>> GetRuns(SweepId sweep, std::span<const uint64_t> numbers,
                                               std::span<const std::string> series) = 0;
  // The bytes of spec and attempt_spec.
  virtual Result<RunDocument> GetRunDocument(RunId run) = 0;
  // In the order in which they were assigned, that is by epoch. After a restore two may share an
  // ordinal.
  virtual Result<std::vector<AttemptInfo>> ListAttempts(RunId run) = 0;
  // By step, then epoch.
  virtual Result<std::vector<CheckpointRow>> ListCheckpoints(RunId run) = 0;
  // In order of being written, of a run, sweep or worker; the newest `limit`.
  virtual Result<std::vector<HistoryRow>> ListHistory(Uuid ref, size_t limit) = 0;
  // By name.
  virtual Result<std::vector<SummaryRow>> ListSummaries(RunId run) = 0;
  // Points by step (then seq) of rank 0. The canonical curve follows what attempts reported: the
  // head is the newest attempt with start_reported; below its resumed_step come the canonical
  // points of resumed_epoch with step <= resumed_step, and so on. kNotFound: no such series.
  virtual Result<CurvePage> GetCurve(const CurveQuery& query) = 0;
  // `attempt` 0: the newest. At most `max_bytes` from `offset`, or from the next byte that is kept.
  // The first 1 MiB and the last 32 MiB of a stream are kept.
  virtual Result<LogPage> ReadLog(RunId run, uint32_t attempt, scheduler::LogStream stream,
                                  uint64_t offset, size_t max_bytes) = 0;
  // The same document in this project that was not cancelled, newest first; kNotFound: none.
  virtual Result<SweepInfo> FindSweepByHash(std::string_view project,
                                            std::string_view spec_hash) = 0;
  // Per key the valid run with the highest rerun number, in order; nullopt: none.
  virtual Result<std::vector<std::optional<ValidRun>>> FindValidRuns(
      std::string_view project, std::span<const std::string> run_keys) = 0;
};

struct StoreStats {
  uint64_t database_bytes = 0;
  uint64_t wal_bytes = 0;
  uint64_t checkpoints = 0;  // made since the start
  double last_checkpoint_seconds = 0;
};

// The one writer. All calls from the reducer's thread, except OpenReader, which any thread may
// call.
class Store : public ReadStore {
 public:
  // Everything not terminal. Called once at start, and again after a commit that surely failed.
  virtual Result<Snapshot> Load() = 0;

  // All writes in one durable transaction, in order. On return with kOk they survive a power cut.
  //   kInternal           a row contradicts the database: rolled back, a bug of the caller
  //   kResourceExhausted  disk full, kUnavailable  read error or busy: surely rolled back
  //   kDataLoss           the outcome is unknown: the caller must end the process (exit 70)
  virtual Status Commit(std::span<const Write> writes) = 0;

  // Answer of an earlier request with this id; kNotFound: none. Expired ones are not found.
  virtual Result<IdemRow> FindIdem(std::string_view request_id, int64_t now_ms) = 0;

  // Summaries over the canonical curve of the attempt `head` as it would stand with what is
  // committed, with only its points at or below `step`; `head` 0: none; nullopt: the newest attempt
  // that has reported its start.
  virtual Result<std::vector<SummaryRow>> RebuildSummaries(RunId run, std::optional<Epoch> head,
                                                           uint64_t step) = 0;

  // Whether the attempt is stored, and its run in any state, without documents.
  virtual Result<RecordedAttempt> FindRecorded(RunId run, Epoch epoch) = 0;

  // True when `name` is taken by a sweep.
  virtual Result<bool> IsSweepNameTaken(std::string_view name) = 0;

  // Work for idle time (merging chunks, checkpoints of the log, expired rows), at most about
  // `budget_ms`; false: nothing left to do.
  virtual Result<bool> DoIdleWork(int budget_ms) = 0;
  // Lines of the streams up to which everything survives the loss of the log: with backups off,
  // what a complete checkpoint has moved to the main file counts. True when a checkpoint has
  // completed after the last commit.
  virtual bool IsCheckpointed() const = 0;
  virtual StoreStats Stats() = 0;
  // A connection of its own for one query thread. Any thread.
  virtual Result<std::unique_ptr<ReadStore>> OpenReader() = 0;
  // Checkpoints and closes; the object is spent. Readers must be gone.
  virtual Status Close() = 0;
};

struct OpenOptions {
  // Folder of the database; made when absent.
  std::string data_dir;
  // For display only: milliseconds since 1970.
  int64_t now_ms = 0;
};

// SQLite in `data_dir`/switchyard.db: migrates, raises boot. kFailedPrecondition: newer schema;
// kDataLoss: sentinel ahead, bad page or migration checksum.
Result<std::unique_ptr<Store>> OpenSqliteStore(const OpenOptions& options);

// In memory, for tests: passes the same suite.
std::unique_ptr<Store> MakeMemoryStore();

}  // namespace switchyard::store
