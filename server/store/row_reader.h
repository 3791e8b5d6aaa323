#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/results/lineage.h"
#include "server/store/rows.h"
#include "server/store/sqlite.h"

namespace switchyard::store {

// The queries of ReadStore and the loads of Store (store.h has the contracts), over one connection.
// The caller brackets them in a snapshot where several statements must agree. The connection's
// thread only.
class RowReader {
 public:
  explicit RowReader(Connection& db) : db_(db) {}

  Result<SweepInfo> FindSweep(std::string_view selector, bool with_spec);
  Result<SweepPage> ListSweeps(bool all, std::string_view page, size_t limit);
  Result<RunInfo> FindRun(std::string_view selector);
  Result<RunPage> ListRuns(const RunFilter& filter, std::string_view page, size_t limit);
  // `helper`: another connection that sees the same state; a second thread reads through it.
  Status ScanRuns(const ScanQuery& query, const std::function<bool(const RunFacts&)>& visit,
                  Connection* helper = nullptr);
  // The highest number of its runs; 0: none.
  Result<uint64_t> LastNumber(SweepId sweep);
  Result<std::vector<RunInfo>> GetRuns(SweepId sweep, std::span<const uint64_t> numbers,
                                       std::span<const std::string> series);
  Result<RunDocument> GetRunDocument(RunId run);
  Result<std::string> GetStrategyState(SweepId sweep);
  Result<std::vector<AttemptInfo>> ListAttempts(RunId run);
  Result<std::vector<CheckpointRow>> ListCheckpoints(RunId run);
  Result<std::vector<HistoryRow>> ListHistory(Uuid ref, size_t limit);
  Result<std::vector<SummaryRow>> ListSummaries(RunId run);
  Result<CurvePage> GetCurve(const CurveQuery& query);
  Result<LogPage> ReadLog(RunId run, uint32_t attempt, scheduler::LogStream stream, uint64_t offset,
                          size_t max_bytes);
  Result<SweepInfo> FindSweepByHash(std::string_view project, std::string_view spec_hash);
  Result<std::vector<std::optional<ValidRun>>> FindValidRuns(std::string_view project,
                                                             std::span<const std::string> run_keys);

  // All but `meta`.
  Result<Snapshot> Load();
  Result<IdemRow> FindIdem(std::string_view request_id, int64_t now_ms);
  Result<std::vector<SummaryRow>> RebuildSummaries(RunId run, std::optional<Epoch> head,
                                                   uint64_t step);
  Result<RecordedAttempt> FindRecorded(RunId run, Epoch epoch);
  Result<bool> IsSweepNameTaken(std::string_view name);

 private:
  struct LinkKey {
    int64_t sweep = 0;
    uint64_t number = 0;
  };

  Result<int64_t> RunKey(RunId run);
  Result<int64_t> SweepKey(std::string_view selector);
  Result<RunInfo> ReadRun(LinkKey key, std::span<const std::string> series);
  Result<std::vector<SummaryRow>> ReadSummaries(int64_t key, RunId run);
  Result<std::vector<LinkKey>> ListLinks(int64_t sweep, uint64_t after,
                                         std::span<const scheduler::RunState> states, size_t limit);
  Result<uint64_t> CountRuns(std::optional<int64_t> sweep,
                             std::span<const scheduler::RunState> states);
  Result<std::vector<results::AttemptStart>> ReadStarts(int64_t run);
  Result<std::vector<MemberRow>> ReadMembers(Epoch epoch);
  Result<std::vector<StreamRow>> ReadStreams(Epoch epoch);
  Status LoadSweeps(Snapshot* out);
  Status LoadRuns(Snapshot* out);
  Status LoadRunParts(int64_t key, RunId id, Snapshot* out);
  Status LoadAttempts(Snapshot* out);
  Status LoadDoomed(Snapshot* out);
  Status LoadWorkers(Snapshot* out);

  Connection& db_;
};

}  // namespace switchyard::store
