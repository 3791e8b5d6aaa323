#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/scheduler/rows.h"

namespace switchyard::store {

using scheduler::AttemptRow;
using scheduler::AttemptStatus;
using scheduler::CheckpointRow;
using scheduler::ChunkRow;
using scheduler::HistoryRow;
using scheduler::IdemRow;
using scheduler::LinkRow;
using scheduler::LogRow;
using scheduler::MemberRow;
using scheduler::RecordedAttempt;
using scheduler::RunProgress;
using scheduler::RunRow;
using scheduler::RunStatus;
using scheduler::StrategyRow;
using scheduler::StreamEventRow;
using scheduler::StreamRow;
using scheduler::SummaryReset;
using scheduler::SummaryRow;
using scheduler::SweepExtension;
using scheduler::SweepRow;
using scheduler::SweepStatus;
using scheduler::UsageRow;
using scheduler::WorkerRow;

// One row to write. By type:
//   SweepRow, RunRow, LinkRow, AttemptRow   insert; present already: kInternal
//   SweepStatus, RunStatus, AttemptStatus   replace the changing columns; no such row, or the
//   stored
//                                           state is terminal and differs: kInternal
//   SweepExtension                          replaces the document and what follows from it; no such
//                                           sweep: kInternal
//   MemberRow, StreamRow, WorkerRow,
//   CheckpointRow, SummaryRow, RunProgress  insert or replace by key. A MemberRow that is not
//                                           terminal holds the reservation of its (worker, slot)s;
//                                           one held by another member: kInternal; a terminal one
//                                           lets them go.
//   ChunkRow, StreamEventRow, LogRow,
//   HistoryRow                              append
//   SummaryReset                            deletes the run's summaries
//   UsageRow, StrategyRow                   insert or replace by project, by sweep
//   IdemRow                                 insert
// A RunRow and a SweepRow are always followed by their status in the same commit.
using Write = std::variant<SweepRow, SweepExtension, SweepStatus, LinkRow, RunRow, RunStatus,
                           AttemptRow, AttemptStatus, MemberRow, StreamRow, ChunkRow,
                           StreamEventRow, LogRow, CheckpointRow, SummaryRow, SummaryReset,
                           RunProgress, IdemRow, WorkerRow, HistoryRow, UsageRow, StrategyRow>;

struct Meta {
  std::string cluster_id;
  uint32_t generation = 0;
  uint32_t boot = 0;  // already raised for this start
  uint32_t schema = 0;
};

// What the reducer needs at start.
struct Snapshot {
  Meta meta;
  Epoch last_epoch;                       // highest ever given; 0: none
  std::vector<SweepRow> sweeps;           // not terminal, without `spec`
  std::vector<SweepStatus> sweep_status;  // of these
  // Not terminal, or with an attempt that has a stream that is not sealed; without `spec` and
  // `attempt_spec`.
  std::vector<RunRow> runs;
  std::vector<RunStatus> run_status;
  std::vector<LinkRow> links;        // of these runs to not terminal sweeps, without columns
  std::vector<AttemptRow> attempts;  // not terminal, or with a stream that is not sealed
  std::vector<AttemptStatus> attempt_status;
  std::vector<MemberRow> members;  // of these attempts
  std::vector<StreamRow> streams;
  // PUBLISHED ones of these runs; SUPERSEDED and TOMBSTONED ones of all runs.
  std::vector<CheckpointRow> checkpoints;
  std::vector<SummaryRow> summaries;  // of these runs
  std::vector<RunProgress> progress;
  std::vector<WorkerRow> workers;
  std::vector<UsageRow> usage;
};

// ---------------------------------------------------------------- reading

struct SweepInfo {
  SweepRow row;  // `spec` only where asked for
  SweepStatus status;
};

// A run as seen in one sweep. A run linked by several sweeps is listed once in each.
struct RunInfo {
  LinkRow link;
  std::string sweep_name;
  RunRow row;  // `spec` and `attempt_spec` only from GetRun
  RunStatus status;
  uint64_t step = 0;
  WorkerId worker;  // of the newest attempt; nil: none
  std::string worker_host;
  std::vector<SummaryRow> summaries;  // the asked series, in the order asked, absent ones left out
};

struct AttemptInfo {
  AttemptRow row;
  AttemptStatus status;
  std::vector<MemberRow> members;
  std::vector<StreamRow> streams;
  std::string worker_host;
};

struct RunFilter {
  std::optional<SweepId> sweep;             // none: all sweeps
  std::vector<scheduler::RunState> states;  // empty: all
  std::vector<std::string> series;          // whose summaries come along
};

using Columns = std::vector<std::pair<std::string, std::string>>;  // axis -> value

// Facts about a run itself that a scan reads on demand: bits of a set.
enum RunFact : uint32_t {
  kFactRun = 1,
  kFactSeed = 2,
  kFactEndClass = 4,
  kFactRouter = 8,
  kFactAttempts = 16,
  kFactStep = 32,
  kFactStepsTotal = 64,
  kFactActiveMs = 128,
  kFactSlots = 256,  // and is_gpu
  kFactIsReused = 512,
};
inline constexpr uint32_t kAllRunFacts = 1023;

// What a scan over many runs gives of each.
struct RunFacts {
  uint64_t number = 0;
  uint64_t cell = 0;
  // Runs of equal columns mostly share one object.
  std::shared_ptr<const Columns> columns;
  scheduler::RunState state = scheduler::RunState::kQueued;
  // From here to `values` only what the scan asks for (RunFact).
  RunId run;
  uint64_t seed = 0;
  // Of the newest attempt of a run that has failed; else kNone.
  scheduler::EndClass end_class = scheduler::EndClass::kNone;
  std::string router;
  uint32_t attempts = 0;
  uint64_t step = 0;
  uint64_t steps_total = 0;
  uint64_t active_ms = 0;
  uint32_t slots = 1;
  bool is_gpu = false;
  bool is_reused = false;  // another sweep proposed it first
  struct Value {
    bool is_present = false;
    double last = 0;
    bool has_best = false;
    double best = 0;
  };
  std::vector<Value> values;  // one per asked series
};

// Series of one scan.
inline constexpr size_t kScanSeriesMax = 32;

struct ScanQuery {
  SweepId sweep;
  std::vector<std::string> series;  // at most kScanSeriesMax
  uint64_t after = 0;               // only numbers above
  // Of RunFact. Number, cell, columns, state and values always come; each fact costs.
  uint32_t run_facts = kAllRunFacts;
  // Makes, for one thread, what says false of a run that `visit` has no use for, from all facts but
  // the values. Such runs are left out where that saves time, and visited where it does not.
  std::function<std::function<bool(const RunFacts&)>()> make_hint;
};

struct RunPage {
  std::vector<RunInfo> runs;
  std::string next;    // empty at the end
  uint64_t total = 0;  // of the filter, all pages
};

struct SweepPage {
  std::vector<SweepInfo> sweeps;
  std::string next;
};

struct CurvePoint {
  uint64_t step = 0;
  uint64_t ms = 0;
  double value = 0;
  std::vector<float> values;  // vectors
  uint32_t attempt = 0;       // ordinal
};

struct CurveQuery {
  RunId run;
  std::string series;
  uint32_t attempt = 0;  // ordinal; 0: canonical
  uint64_t from_step = 0;
  std::string page;  // `next` of the page before
  size_t limit = 10000;
};

struct CurvePage {
  bool is_vector = false;
  std::vector<uint32_t> shape;
  std::vector<CurvePoint> points;
  std::string next;
};

struct LogPage {
  std::string data;
  uint64_t next_offset = 0;
  bool at_end = false;  // attempt ended, and its stream is complete: no more will come
  uint32_t attempt = 0;
  uint64_t skipped = 0;  // bytes left out before `data`
};

// Bytes of what a trainer gets.
struct RunDocument {
  std::string spec;
  std::string attempt_spec;
};

// A run that already has this identity and stands: live, SUCCEEDED or FAILED(guard).
struct ValidRun {
  RunId id;
  scheduler::RunState state = scheduler::RunState::kQueued;
  uint32_t rerun = 0;
};

}  // namespace switchyard::store
