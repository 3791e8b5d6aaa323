#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "server/store/rows.h"
#include "server/store/sqlite.h"

namespace switchyard::store {

// Writes rows into the database, inside the caller's transaction. After a roll-back call Forget.
// Writer's thread only.
class RowWriter {
 public:
  explicit RowWriter(Connection& db) : db_(db) {}

  // kInternal: the row contradicts the database. Others: see Statement.
  Status WriteAll(std::span<const Write> writes);
  // Drops what is remembered about rows.
  void Forget();
  // Expired answers with the id of a new one give way to it.
  void SetNow(int64_t now_ms) { now_ms_ = now_ms; }

  // Series with enough small chunks for a merged one, since the last call.
  std::vector<int64_t> TakeSeriesToMerge();
  // Output streams with enough small pieces: (epoch, rank, stream).
  using LogKey = std::tuple<uint64_t, uint32_t, uint8_t>;
  std::vector<LogKey> TakeLogsToMerge();

 private:
  struct SeriesState {
    int64_t id = 0;
    uint64_t last_seq = 0;
    uint64_t pending_points = 0;  // since the last merge was asked for
    uint32_t merge_points = 0;
  };
  struct SeriesKey {
    uint64_t epoch = 0;
    uint32_t rank = 0;
    std::string name;
    auto operator<=>(const SeriesKey&) const = default;
  };

  Status Put(const SweepRow& row);
  Status Put(const SweepExtension& row);
  Status Put(const SweepStatus& row);
  Status Put(const StrategyRow& row);
  Status Put(const LinkRow& row);
  Status Put(const RunRow& row);
  Status PutDocument(int64_t run, int64_t sweep, const RunRow& row);
  Status Put(const RunStatus& row);
  Status Put(const AttemptRow& row);
  Status Put(const AttemptStatus& row);
  Status Put(const MemberRow& row);
  Status Reserve(const MemberRow& row);
  Status Put(const StreamRow& row);
  Status Put(const ChunkRow& row);
  Status Put(const StreamEventRow& row);
  Status Put(const LogRow& row);
  Status Put(const CheckpointRow& row);
  Status Put(const SummaryRow& row);
  Status Put(const SummaryReset& row);
  Status Put(const RunProgress& row);
  Status Put(const IdemRow& row);
  Status Put(const WorkerRow& row);
  Status Put(const HistoryRow& row);
  Status Put(const UsageRow& row);

  Result<int64_t> SweepKey(SweepId id);
  Result<int64_t> RunKey(RunId id);
  Result<int64_t> NameKey(const std::string& name);
  Result<SeriesState*> SeriesOf(const ChunkRow& row);
  Status TrimLog(const LogRow& row);

  Connection& db_;
  int64_t now_ms_ = 0;

  // What the database holds, to spare look-ups; bounded, dropped whole when full.
  std::unordered_map<Uuid, int64_t> sweep_keys_;
  std::unordered_map<Uuid, int64_t> run_keys_;
  std::unordered_map<std::string, int64_t> name_keys_;
  std::map<SeriesKey, SeriesState> series_;
  // First document of the sweep written last: (sweep, run, spec).
  std::tuple<int64_t, int64_t, std::string> dictionary_;

  std::set<int64_t> series_to_merge_;
  std::map<LogKey, uint64_t> log_pending_bytes_;
  std::set<LogKey> logs_to_merge_;
};

}  // namespace switchyard::store
