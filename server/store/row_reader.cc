#include "server/store/row_reader.h"

#include <algorithm>
#include <bit>
#include <map>

#include "common/base/strings.h"
#include "server/store/curve.h"
#include "server/store/limits.h"
#include "server/store/log_assembly.h"
#include "server/store/pack.h"
#include "server/store/page_token.h"
#include "server/store/policy_pack.h"
#include "server/store/scan.h"

namespace switchyard::store {
namespace {

using scheduler::RunState;

constexpr std::string_view kSweepColumns =
    "s.uuid, s.project, s.name, s.base_name, s.spec_hash, s.rerun, s.objective, s.axes, s.cells, "
    "s.runs, s.created_ms, s.state, s.proposed, s.counts, s.reason, s.ended_ms, s.parent, "
    "s.budget_slot_ms, s.retried, s.slot_ms, s.run_priority, s.early_failures, "
    "s.is_drawn, s.is_closed, s.id";
constexpr int kSweepIdColumn = 24;

Result<SweepInfo> ReadSweepRow(const Statement& row) {
  SweepInfo info;
  info.row.id = {row.Id(0)};
  info.row.project = row.Text(1);
  info.row.name = row.Text(2);
  info.row.base_name = row.Text(3);
  info.row.spec_hash = row.Text(4);
  info.row.rerun = static_cast<uint32_t>(row.Uint(5));
  info.row.objective = row.Text(6);
  SWITCHYARD_ASSIGN_OR_RETURN(info.row.axes, UnpackTexts(row.Bytes(7)));
  info.row.cells = row.Uint(8);
  info.row.runs = row.Uint(9);
  info.row.created_ms = row.Int(10);
  info.status.id = info.row.id;
  info.status.state = static_cast<scheduler::SweepState>(row.Int(11));
  info.status.proposed = row.Uint(12);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> counts, UnpackUints(row.Bytes(13)));
  std::copy_n(counts.begin(), std::min(counts.size(), info.status.counts.size()),
              info.status.counts.begin());
  info.status.reason = row.Text(14);
  info.status.ended_ms = row.Int(15);
  if (!row.IsNull(16)) info.row.parent = SweepId{row.Id(16)};
  info.row.budget_slot_ms = row.Uint(17);
  info.status.retried = row.Uint(18);
  info.status.slot_ms = row.Uint(19);
  if (!row.IsNull(20)) info.status.priority = static_cast<int32_t>(row.Int(20));
  SWITCHYARD_ASSIGN_OR_RETURN(info.status.early_failures, UnpackEarlyFailures(row.Bytes(21)));
  info.row.is_drawn = row.Uint(22) != 0;
  info.status.is_closed = row.Uint(23) != 0;
  return info;
}

constexpr std::string_view kRunColumns =
    "r.uuid, s.uuid, r.project, r.run_key, r.rerun, r.seed, r.router, r.priority, r.need_kind, "
    "r.need_count, r.max_parallel, r.timeout_ms, r.steps_total, r.created_ms, r.state, "
    "r.current_epoch, r.attempts, r.cancel_req, r.pause_req, r.prune_req, r.user_fail, "
    "r.crash_fail, r.infra_fail, r.infra_streak, r.progress_step, r.active_ms, r.not_before_ms, "
    "r.reason, r.queued_ms, r.started_ms, r.ended_ms, r.parent, r.policy, r.current_priority, "
    "r.alternative, r.evidence, r.step, r.id";
constexpr int kRunStepColumn = 36;
constexpr int kRunIdColumn = 37;
constexpr int kAfterRunColumns = 38;

Status ReadRunRow(const Statement& row, RunRow* run, RunStatus* status) {
  run->id = {row.Id(0)};
  run->sweep = {row.Id(1)};
  run->project = row.Text(2);
  run->run_key = row.Text(3);
  run->rerun = static_cast<uint32_t>(row.Uint(4));
  run->seed = row.Uint(5);
  run->router = row.Text(6);
  run->priority = static_cast<int32_t>(row.Int(7));
  run->need.kind = static_cast<scheduler::SlotKind>(row.Int(8));
  run->need.count = static_cast<uint32_t>(row.Uint(9));
  run->max_parallel = static_cast<uint32_t>(row.Uint(10));
  run->timeout_ms = row.Uint(11);
  run->steps_total = row.Uint(12);
  run->created_ms = row.Int(13);
  status->id = run->id;
  status->state = static_cast<RunState>(row.Int(14));
  status->current_epoch = {row.Uint(15)};
  status->attempts = static_cast<uint32_t>(row.Uint(16));
  status->cancel_req = row.Int(17) != 0;
  status->pause_req = row.Int(18) != 0;
  status->prune_req = row.Int(19) != 0;
  status->user_fail = static_cast<uint32_t>(row.Uint(20));
  status->crash_fail = static_cast<uint32_t>(row.Uint(21));
  status->infra_fail = static_cast<uint32_t>(row.Uint(22));
  status->infra_streak = static_cast<uint32_t>(row.Uint(23));
  status->progress_step = row.Uint(24);
  status->active_ms = row.Uint(25);
  status->not_before_ms = row.Int(26);
  status->reason = row.Text(27);
  status->queued_ms = row.Int(28);
  status->started_ms = row.Int(29);
  status->ended_ms = row.Int(30);
  if (!row.IsNull(31)) run->parent = RunId{row.Id(31)};
  SWITCHYARD_ASSIGN_OR_RETURN(run->policy, UnpackPolicy(row.Bytes(32)));
  status->priority = static_cast<int32_t>(row.Int(33));
  status->alternative = static_cast<uint32_t>(row.Uint(34));
  SWITCHYARD_ASSIGN_OR_RETURN(status->evidence, UnpackEvidence(row.Bytes(35)));
  return OkStatus();
}

constexpr std::string_view kAttemptColumns =
    "a.epoch, r.uuid, a.ordinal, a.worker, a.pool, a.assign_rev, a.resume_epoch, a.resume_step, "
    "a.resume_path, a.created_ms, a.state, a.intent, a.stop_reason, a.end_class, a.reason, "
    "a.start_reported, a.resumed_epoch, a.resumed_step, a.final_step, a.running_ms, a.ended_ms, "
    "a.grace_ms";
constexpr int kAfterAttemptColumns = 22;

void ReadAttemptRow(const Statement& row, AttemptRow* attempt, AttemptStatus* status) {
  attempt->epoch = {row.Uint(0)};
  attempt->run = {row.Id(1)};
  attempt->ordinal = static_cast<uint32_t>(row.Uint(2));
  attempt->worker = {row.Id(3)};
  attempt->pool = row.Text(4);
  attempt->assign_rev = row.Uint(5);
  attempt->resume_epoch = {row.Uint(6)};
  attempt->resume_step = row.Uint(7);
  attempt->resume_path = row.Text(8);
  attempt->created_ms = row.Int(9);
  status->epoch = attempt->epoch;
  status->state = static_cast<scheduler::AttemptState>(row.Int(10));
  status->intent = static_cast<scheduler::Intent>(row.Int(11));
  status->stop_reason = static_cast<scheduler::StopReason>(row.Int(12));
  status->end_class = static_cast<scheduler::EndClass>(row.Int(13));
  status->reason = row.Text(14);
  status->start_reported = row.Int(15) != 0;
  status->resumed_epoch = {row.Uint(16)};
  status->resumed_step = row.Uint(17);
  status->final_step = row.Uint(18);
  status->running_ms = row.Int(19);
  status->ended_ms = row.Int(20);
  status->grace_ms = static_cast<uint32_t>(row.Uint(21));
}

constexpr std::string_view kSummaryColumns =
    "n.name, m.is_vector, m.shape, m.last, m.last_step, m.has_best, m.best, m.best_step, m.count, "
    "m.non_finite FROM summaries m JOIN names n ON n.id = m.name";

Result<SummaryRow> ReadSummaryRow(const Statement& row, RunId run) {
  SummaryRow summary{.run = run, .series = row.Text(0), .is_vector = row.Int(1) != 0};
  SWITCHYARD_ASSIGN_OR_RETURN(summary.shape, UnpackUints32(row.Bytes(2)));
  summary.last = std::bit_cast<double>(row.Uint(3));
  summary.last_step = row.Uint(4);
  summary.has_best = row.Int(5) != 0;
  summary.best = std::bit_cast<double>(row.Uint(6));
  summary.best_step = row.Uint(7);
  summary.count = row.Uint(8);
  summary.non_finite = row.Uint(9);
  return summary;
}

constexpr std::string_view kCheckpointColumns =
    "c.epoch, c.step, c.state, c.digest, c.bytes, c.path, c.store, c.pinned, c.score, c.state_ms";

CheckpointRow ReadCheckpointRow(const Statement& row, RunId run) {
  return {.run = run,
          .epoch = {row.Uint(0)},
          .step = row.Uint(1),
          .state = static_cast<scheduler::CheckpointState>(row.Int(2)),
          .digest = row.Text(3),
          .bytes = row.Uint(4),
          .path = row.Text(5),
          .store = row.Text(6),
          .pinned = row.Int(7) != 0,
          .score = row.IsNull(8) ? std::nullopt
                                 : std::optional<double>(std::bit_cast<double>(row.Uint(8))),
          .state_ms = row.Int(9)};
}

// Chunks of rank 0 in the database.
class SqliteChunks final : public ChunkSource {
 public:
  explicit SqliteChunks(Connection& db) : db_(db) {}

  Result<std::vector<SeriesHead>> ListSeries(Epoch epoch) override {
    Statement read = db_.Prepare(
        "SELECT s.id, n.name, s.is_vector, s.shape FROM series s JOIN names n ON n.id = s.name "
        "WHERE s.epoch = ?1 AND s.rank = 0 ORDER BY n.name");
    read.Bind(1, epoch.value);
    std::vector<SeriesHead> heads;
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) return heads;
      SWITCHYARD_ASSIGN_OR_RETURN(SeriesHead head, ReadHead(read));
      heads.push_back(std::move(head));
    }
  }

  Result<std::optional<SeriesHead>> FindSeries(Epoch epoch, const std::string& name) override {
    Statement read = db_.Prepare(
        "SELECT s.id, n.name, s.is_vector, s.shape FROM series s JOIN names n ON n.id = s.name "
        "WHERE s.epoch = ?1 AND s.rank = 0 AND n.name = ?2");
    read.Bind(1, epoch.value).Bind(2, name);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return std::optional<SeriesHead>();
    SWITCHYARD_ASSIGN_OR_RETURN(SeriesHead head, ReadHead(read));
    return std::optional<SeriesHead>(std::move(head));
  }

  Result<std::vector<ChunkHead>> ListChunks(int64_t series) override {
    Statement read = db_.Prepare(
        "SELECT id, first_seq, last_seq, first_step, last_step, is_sorted FROM chunks "
        "WHERE series = ?1 ORDER BY first_seq");
    read.Bind(1, series);
    std::vector<ChunkHead> heads;
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) return heads;
      heads.push_back({.id = read.Int(0),
                       .first_seq = read.Uint(1),
                       .last_seq = read.Uint(2),
                       .first_step = read.Uint(3),
                       .last_step = read.Uint(4),
                       .is_sorted = read.Int(5) != 0});
    }
  }

  Result<std::string> ReadChunk(int64_t id) override {
    Statement read = db_.Prepare("SELECT blob FROM chunks WHERE id = ?1");
    read.Bind(1, id);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return Internal(StrCat("chunk ", id, " is gone"));
    return read.Text(0);
  }

 private:
  static Result<SeriesHead> ReadHead(const Statement& row) {
    SeriesHead head{.id = row.Int(0), .name = row.Text(1), .is_vector = row.Int(2) != 0};
    SWITCHYARD_ASSIGN_OR_RETURN(head.shape, UnpackUints32(row.Bytes(3)));
    return head;
  }

  Connection& db_;
};

// Pieces of one output stream in the database.
class SqliteLog final : public LogSource {
 public:
  SqliteLog(Connection& db, Epoch epoch, scheduler::LogStream stream)
      : db_(db), epoch_(epoch), stream_(stream) {}

  Result<std::optional<LogPiece>> FindFrom(uint64_t offset) override {
    SWITCHYARD_ASSIGN_OR_RETURN(
        std::optional<LogPiece> piece,
        Find("SELECT \"offset\", n, codec, blob FROM logs WHERE epoch = ?1 AND rank = 0 AND "
             "stream = ?2 AND \"offset\" <= ?3 ORDER BY \"offset\" DESC LIMIT 1",
             offset));
    if (piece && piece->offset + piece->data.size() > offset) return piece;
    return Find(
        "SELECT \"offset\", n, codec, blob FROM logs WHERE epoch = ?1 AND rank = 0 AND "
        "stream = ?2 AND \"offset\" > ?3 ORDER BY \"offset\" LIMIT 1",
        offset);
  }

 private:
  Result<std::optional<LogPiece>> Find(std::string_view sql, uint64_t offset) {
    Statement read = db_.Prepare(sql);
    read.Bind(1, epoch_.value).Bind(2, static_cast<int64_t>(stream_)).Bind(3, offset);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return std::optional<LogPiece>();
    LogPiece piece{.offset = read.Uint(0)};
    if (read.Int(2) == kCodecZstd) {
      SWITCHYARD_ASSIGN_OR_RETURN(piece.data, Decompress(read.Bytes(3)));
    } else {
      piece.data = read.Text(3);
    }
    if (piece.data.size() != read.Uint(1)) return DataLoss("output of the wrong length");
    return std::optional<LogPiece>(std::move(piece));
  }

  Connection& db_;
  const Epoch epoch_;
  const scheduler::LogStream stream_;
};

}  // namespace

Result<int64_t> RowReader::RunKey(RunId run) {
  Statement find = db_.Prepare("SELECT id FROM runs WHERE uuid = ?1");
  find.Bind(1, run.value);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
  if (!has_row) return NotFound(StrCat("no run ", run.value.ToString()));
  return find.Int(0);
}

Result<int64_t> RowReader::SweepKey(std::string_view selector) {
  // A sweep that is called "last" is found by its id.
  const bool is_last = selector == "last";
  const Result<Uuid> id = Uuid::Parse(selector);
  Statement find = db_.Prepare(is_last   ? "SELECT max(id) FROM sweeps WHERE ?1 = ?1"
                               : id.ok() ? "SELECT id FROM sweeps WHERE uuid = ?1"
                                         : "SELECT id FROM sweeps WHERE name = ?1");
  if (id.ok()) {
    find.Bind(1, *id);
  } else {
    find.Bind(1, selector);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
  if (!has_row || find.IsNull(0)) {
    return NotFound(is_last ? std::string("no sweep yet")
                            : StrCat("no sweep ", EscapeForTerminal(selector)));
  }
  return find.Int(0);
}

Result<SweepInfo> RowReader::FindSweep(std::string_view selector, bool with_spec) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, SweepKey(selector));
  Statement read = db_.Prepare(StrCat("SELECT ", kSweepColumns, " FROM sweeps s WHERE s.id = ?1"));
  read.Bind(1, key);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return Internal("sweep vanished");
  SWITCHYARD_ASSIGN_OR_RETURN(SweepInfo info, ReadSweepRow(read));
  if (!with_spec) return info;
  Statement document = db_.Prepare("SELECT spec FROM sweep_documents WHERE sweep = ?1");
  document.Bind(1, key);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_document, document.Step());
  if (!has_document) return DataLoss(StrCat("sweep ", info.row.name, " has no document"));
  SWITCHYARD_ASSIGN_OR_RETURN(info.row.spec, Decompress(document.Bytes(0)));
  return info;
}

Result<SweepPage> RowReader::ListSweeps(bool all, std::string_view page, size_t limit) {
  const std::string query = StrCat("sweeps ", all);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> token, ReadPageToken(page, query, 1));
  Statement read =
      db_.Prepare(StrCat("SELECT ", kSweepColumns, " FROM sweeps s WHERE s.id < ?1 ",
                         all ? "" : "AND s.state < 4 ", "ORDER BY s.id DESC LIMIT ?2"));
  read.Bind(1, token.empty() ? INT64_MAX : static_cast<int64_t>(token[0]));
  read.Bind(2, uint64_t{limit + 1});
  SweepPage sweeps;
  int64_t last = 0;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return sweeps;
    if (sweeps.sweeps.size() == limit) {
      sweeps.next = MakePageToken(query, std::vector<uint64_t>{static_cast<uint64_t>(last)});
      return sweeps;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(SweepInfo info, ReadSweepRow(read));
    last = read.Int(kSweepIdColumn);
    sweeps.sweeps.push_back(std::move(info));
  }
}

Result<RunInfo> RowReader::FindRun(std::string_view selector) {
  const auto not_found = [&selector] {
    return NotFound(StrCat("no run ", EscapeForTerminal(selector)));
  };
  if (const Result<Uuid> id = Uuid::Parse(selector); id.ok()) {
    // The sweep that made the run first.
    Statement find = db_.Prepare(
        "SELECT l.sweep, l.number FROM runs r JOIN links l ON l.run = r.id WHERE r.uuid = ?1 "
        "ORDER BY l.sweep <> r.sweep, l.sweep LIMIT 1");
    find.Bind(1, *id);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
    if (!has_row) return not_found();
    return ReadRun({.sweep = find.Int(0), .number = find.Uint(1)}, {});
  }
  const size_t slash = selector.rfind('/');
  const std::string_view sweep =
      slash == std::string_view::npos ? std::string_view("last") : selector.substr(0, slash);
  const std::optional<uint64_t> number =
      ParseUint64(slash == std::string_view::npos ? selector : selector.substr(slash + 1));
  if (!number) return not_found();
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, SweepKey(sweep));
  Result<RunInfo> run = ReadRun({.sweep = key, .number = *number}, {});
  if (run.status().code() == Code::kNotFound) return not_found();
  return run;
}

Result<RunInfo> RowReader::ReadRun(LinkKey key, std::span<const std::string> series) {
  RunInfo info;
  int64_t run = 0;
  {
    Statement read =
        db_.Prepare(StrCat("SELECT ", kRunColumns,
                           ", l.cell, l.columns, o.uuid, o.name, a.worker, w.host FROM links l "
                           "JOIN runs r ON r.id = l.run JOIN sweeps s ON s.id = r.sweep JOIN "
                           "sweeps o ON o.id = l.sweep "
                           "LEFT JOIN attempts a ON a.epoch = r.current_epoch LEFT JOIN workers w "
                           "ON w.uuid = a.worker "
                           "WHERE l.sweep = ?1 AND l.number = ?2"));
    read.Bind(1, key.sweep).Bind(2, key.number);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return NotFound(StrCat("no run ", key.number));
    SWITCHYARD_RETURN_IF_ERROR(ReadRunRow(read, &info.row, &info.status));
    info.step = read.Uint(kRunStepColumn);
    run = read.Int(kRunIdColumn);
    info.link.number = key.number;
    info.link.run = info.row.id;
    info.link.cell = read.Uint(kAfterRunColumns);
    SWITCHYARD_ASSIGN_OR_RETURN(info.link.columns, UnpackColumns(read.Bytes(kAfterRunColumns + 1)));
    info.link.sweep = {read.Id(kAfterRunColumns + 2)};
    info.sweep_name = read.Text(kAfterRunColumns + 3);
    info.worker = {read.Id(kAfterRunColumns + 4)};
    info.worker_host = read.Text(kAfterRunColumns + 5);
  }
  Statement read =
      db_.Prepare(StrCat("SELECT ", kSummaryColumns, " WHERE m.run = ?1 AND n.name = ?2"));
  for (const std::string& name : series) {
    read.Bind(1, run).Bind(2, name);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (has_row) {
      SWITCHYARD_ASSIGN_OR_RETURN(SummaryRow summary, ReadSummaryRow(read, info.row.id));
      info.summaries.push_back(std::move(summary));
    }
    read.Reset();
  }
  return info;
}

Result<std::vector<RowReader::LinkKey>> RowReader::ListLinks(int64_t sweep, uint64_t after,
                                                             std::span<const RunState> states,
                                                             size_t limit) {
  std::vector<LinkKey> keys;
  const auto add = [&](Statement& read) -> Status {
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) return OkStatus();
      keys.push_back({.sweep = sweep, .number = read.Uint(0)});
    }
  };
  if (states.empty()) {
    Statement read = db_.Prepare(
        "SELECT number FROM links WHERE sweep = ?1 AND number > ?2 ORDER BY number LIMIT ?3");
    read.Bind(1, sweep).Bind(2, after).Bind(3, uint64_t{limit});
    SWITCHYARD_RETURN_IF_ERROR(add(read));
    return keys;
  }
  std::vector<RunState> distinct(states.begin(), states.end());
  std::ranges::sort(distinct);
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  for (const RunState state : distinct) {
    Statement read = db_.Prepare(
        "SELECT number FROM links WHERE sweep = ?1 AND state = ?4 AND number > ?2 ORDER BY number "
        "LIMIT ?3");
    read.Bind(1, sweep).Bind(2, after).Bind(3, uint64_t{limit});
    read.Bind(4, static_cast<int64_t>(state));
    SWITCHYARD_RETURN_IF_ERROR(add(read));
  }
  std::ranges::sort(keys, {}, &LinkKey::number);
  if (keys.size() > limit) keys.resize(limit);
  return keys;
}

Result<uint64_t> RowReader::CountRuns(std::optional<int64_t> sweep,
                                      std::span<const RunState> states) {
  Statement read =
      db_.Prepare(sweep ? "SELECT proposed + retried, counts FROM sweeps WHERE id = ?1"
                        : "SELECT proposed + retried, counts FROM sweeps WHERE ?1 = ?1");
  read.Bind(1, sweep.value_or(0));
  uint64_t total = 0;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return total;
    if (states.empty()) {
      total += read.Uint(0);
      continue;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> counts, UnpackUints(read.Bytes(1)));
    for (size_t state = 1; state < counts.size(); ++state) {
      if (std::ranges::find(states, static_cast<RunState>(state)) != states.end()) {
        total += counts[state];
      }
    }
  }
}

Result<RunPage> RowReader::ListRuns(const RunFilter& filter, std::string_view page, size_t limit) {
  std::string query = "runs ";
  if (filter.sweep) query += filter.sweep->value.ToString();
  for (const RunState state : filter.states) query += StrCat(" ", static_cast<uint32_t>(state));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> token, ReadPageToken(page, query, 2));
  std::optional<int64_t> only;
  if (filter.sweep) {
    SWITCHYARD_ASSIGN_OR_RETURN(only, SweepKey(filter.sweep->value.ToString()));
  }
  RunPage runs;
  SWITCHYARD_ASSIGN_OR_RETURN(runs.total, CountRuns(only, filter.states));
  std::vector<LinkKey> keys;
  int64_t sweep = only.value_or(INT64_MAX);
  uint64_t after = 0;
  if (!token.empty()) {
    sweep = static_cast<int64_t>(token[0]);
    after = token[1];
  }
  while (keys.size() <= limit) {
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<LinkKey> more,
                                ListLinks(sweep, after, filter.states, limit + 1 - keys.size()));
    keys.insert(keys.end(), more.begin(), more.end());
    if (only) break;
    Statement older = db_.Prepare("SELECT max(id) FROM sweeps WHERE id < ?1");
    older.Bind(1, sweep);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, older.Step());
    if (!has_row || older.IsNull(0)) break;
    sweep = older.Int(0);
    after = 0;
  }
  if (keys.size() > limit) {
    keys.resize(limit);
    runs.next = MakePageToken(
        query, std::vector<uint64_t>{static_cast<uint64_t>(keys.back().sweep), keys.back().number});
  }
  for (const LinkKey& key : keys) {
    SWITCHYARD_ASSIGN_OR_RETURN(RunInfo info, ReadRun(key, filter.series));
    runs.runs.push_back(std::move(info));
  }
  return runs;
}

Result<std::vector<RunInfo>> RowReader::GetRuns(SweepId sweep, std::span<const uint64_t> numbers,
                                                std::span<const std::string> series) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, SweepKey(sweep.value.ToString()));
  std::vector<RunInfo> runs;
  for (const uint64_t number : numbers) {
    SWITCHYARD_ASSIGN_OR_RETURN(RunInfo info, ReadRun({.sweep = key, .number = number}, series));
    runs.push_back(std::move(info));
  }
  return runs;
}

Result<std::string> RowReader::GetStrategyState(SweepId sweep) {
  Statement read = db_.Prepare(
      "SELECT t.state FROM strategies t JOIN sweeps s ON s.id = t.sweep WHERE s.uuid = ?1");
  read.Bind(1, sweep.value);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return NotFound(StrCat("no strategy state of sweep ", sweep.value.ToString()));
  return Decompress(read.Bytes(0));
}

Result<RunDocument> RowReader::GetRunDocument(RunId run) {
  Statement read = db_.Prepare(
      "SELECT d.spec, d.attempt_spec, o.spec, d.dictionary FROM runs r "
      "JOIN run_documents d ON d.run = r.id LEFT JOIN run_documents o ON o.run = d.dictionary "
      "WHERE r.uuid = ?1");
  read.Bind(1, run.value);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return NotFound(StrCat("no run ", run.value.ToString()));
  std::string dictionary;
  if (!read.IsNull(3)) {
    SWITCHYARD_ASSIGN_OR_RETURN(dictionary, Decompress(read.Bytes(2)));
  }
  RunDocument document;
  SWITCHYARD_ASSIGN_OR_RETURN(document.spec, Decompress(read.Bytes(0), dictionary));
  SWITCHYARD_ASSIGN_OR_RETURN(document.attempt_spec, Decompress(read.Bytes(1), dictionary));
  return document;
}

Result<std::vector<MemberRow>> RowReader::ReadMembers(Epoch epoch) {
  Statement read = db_.Prepare(
      "SELECT rank, worker, slots, state, exit_code, signal, end_class, complete, evidence "
      "FROM members WHERE epoch = ?1 ORDER BY rank");
  read.Bind(1, epoch.value);
  std::vector<MemberRow> members;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return members;
    MemberRow member{.epoch = epoch,
                     .rank = static_cast<uint32_t>(read.Uint(0)),
                     .worker = {read.Id(1)},
                     .state = static_cast<scheduler::MemberState>(read.Int(3)),
                     .exit_code = static_cast<int32_t>(read.Int(4)),
                     .signal = static_cast<int32_t>(read.Int(5)),
                     .end_class = static_cast<scheduler::EndClass>(read.Int(6)),
                     .complete = read.Int(7) != 0,
                     .evidence = read.Text(8)};
    SWITCHYARD_ASSIGN_OR_RETURN(member.slots, UnpackUints32(read.Bytes(2)));
    members.push_back(std::move(member));
  }
}

Result<std::vector<StreamRow>> RowReader::ReadStreams(Epoch epoch) {
  Statement read = db_.Prepare(
      "SELECT rank, acked, declared_last, sealed, stdout_end, stderr_end FROM streams "
      "WHERE epoch = ?1 ORDER BY rank");
  read.Bind(1, epoch.value);
  std::vector<StreamRow> streams;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return streams;
    StreamRow stream{.epoch = epoch,
                     .rank = static_cast<uint32_t>(read.Uint(0)),
                     .acked = read.Uint(1),
                     .sealed = read.Int(3) != 0,
                     .stdout_end = read.Uint(4),
                     .stderr_end = read.Uint(5)};
    if (!read.IsNull(2)) stream.declared_last = read.Uint(2);
    streams.push_back(stream);
  }
}

Result<std::vector<AttemptInfo>> RowReader::ListAttempts(RunId run) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(run));
  std::vector<AttemptInfo> attempts;
  {
    Statement read = db_.Prepare(
        StrCat("SELECT ", kAttemptColumns,
               ", w.host FROM attempts a JOIN runs r ON r.id = a.run LEFT JOIN workers w ON "
               "w.uuid = a.worker WHERE a.run = ?1 ORDER BY a.epoch"));
    read.Bind(1, key);
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) break;
      AttemptInfo info;
      ReadAttemptRow(read, &info.row, &info.status);
      info.worker_host = read.Text(kAfterAttemptColumns);
      attempts.push_back(std::move(info));
    }
  }
  for (AttemptInfo& attempt : attempts) {
    SWITCHYARD_ASSIGN_OR_RETURN(attempt.members, ReadMembers(attempt.row.epoch));
    SWITCHYARD_ASSIGN_OR_RETURN(attempt.streams, ReadStreams(attempt.row.epoch));
  }
  return attempts;
}

Result<std::vector<CheckpointRow>> RowReader::ListCheckpoints(RunId run) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(run));
  Statement read =
      db_.Prepare(StrCat("SELECT ", kCheckpointColumns,
                         " FROM checkpoints c WHERE c.run = ?1 ORDER BY c.step, c.epoch"));
  read.Bind(1, key);
  std::vector<CheckpointRow> checkpoints;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return checkpoints;
    checkpoints.push_back(ReadCheckpointRow(read, run));
  }
}

Result<std::vector<HistoryRow>> RowReader::ListHistory(Uuid ref, size_t limit) {
  Statement read =
      db_.Prepare("SELECT at_ms, kind, text FROM history WHERE ref = ?1 ORDER BY id DESC LIMIT ?2");
  read.Bind(1, ref).Bind(2, uint64_t{limit});
  std::vector<HistoryRow> rows;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) break;
    rows.push_back({.at_ms = read.Int(0), .kind = read.Text(1), .ref = ref, .text = read.Text(2)});
  }
  std::ranges::reverse(rows);
  return rows;
}

Result<std::vector<SummaryRow>> RowReader::ReadSummaries(int64_t key, RunId run) {
  Statement read =
      db_.Prepare(StrCat("SELECT ", kSummaryColumns, " WHERE m.run = ?1 ORDER BY n.name"));
  read.Bind(1, key);
  std::vector<SummaryRow> rows;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return rows;
    SWITCHYARD_ASSIGN_OR_RETURN(SummaryRow row, ReadSummaryRow(read, run));
    rows.push_back(std::move(row));
  }
}

Result<std::vector<SummaryRow>> RowReader::ListSummaries(RunId run) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(run));
  return ReadSummaries(key, run);
}

Result<std::vector<results::AttemptStart>> RowReader::ReadStarts(int64_t run) {
  Statement read = db_.Prepare(
      "SELECT epoch, ordinal, start_reported, resumed_epoch, resumed_step FROM attempts "
      "WHERE run = ?1 ORDER BY epoch");
  read.Bind(1, run);
  std::vector<results::AttemptStart> starts;
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return starts;
    starts.push_back({.epoch = {read.Uint(0)},
                      .ordinal = static_cast<uint32_t>(read.Uint(1)),
                      .is_reported = read.Int(2) != 0,
                      .resumed_epoch = {read.Uint(3)},
                      .resumed_step = read.Uint(4)});
  }
}

Result<CurvePage> RowReader::GetCurve(const CurveQuery& query) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(query.run));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<results::AttemptStart> starts, ReadStarts(key));
  SqliteChunks chunks(db_);
  return ReadCurve(chunks, starts, query);
}

Result<std::vector<SummaryRow>> RowReader::RebuildSummaries(RunId run, std::optional<Epoch> head,
                                                            uint64_t step) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(run));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<results::AttemptStart> starts, ReadStarts(key));
  SqliteChunks chunks(db_);
  const Epoch newest = head.has_value() ? *head : results::CanonicalHead(starts);
  return Summarise(chunks, run, results::CanonicalSegments(starts, newest, step));
}

Result<RecordedAttempt> RowReader::FindRecorded(RunId run, Epoch epoch) {
  RecordedAttempt recorded;
  {
    Statement read = db_.Prepare("SELECT 1 FROM attempts WHERE epoch = ?1");
    read.Bind(1, epoch.value);
    SWITCHYARD_ASSIGN_OR_RETURN(recorded.is_stored, read.Step());
  }
  Statement read = db_.Prepare(StrCat(
      "SELECT ", kRunColumns, " FROM runs r JOIN sweeps s ON s.id = r.sweep WHERE r.uuid = ?1"));
  read.Bind(1, run.value);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return recorded;
  auto& [row, status] = recorded.run.emplace();
  SWITCHYARD_RETURN_IF_ERROR(ReadRunRow(read, &row, &status));
  return recorded;
}

Result<LogPage> RowReader::ReadLog(RunId run, uint32_t attempt, scheduler::LogStream stream,
                                   uint64_t offset, size_t max_bytes) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(run));
  Statement read = db_.Prepare(
      "SELECT a.epoch, a.ordinal, a.state, t.acked, t.declared_last, t.sealed, t.stdout_end, "
      "t.stderr_end FROM attempts a LEFT JOIN streams t ON t.epoch = a.epoch AND t.rank = 0 "
      "WHERE a.run = ?1 AND (?2 = 0 OR a.ordinal = ?2) ORDER BY a.epoch DESC LIMIT 1");
  read.Bind(1, key).Bind(2, attempt);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) {
    if (attempt == 0) return NotFound(StrCat("run ", run.value.ToString(), " has no attempt yet"));
    return NotFound(StrCat("run ", run.value.ToString(), " has no attempt ", attempt));
  }
  LogStreamState state;
  state.attempt = static_cast<uint32_t>(read.Uint(1));
  const bool is_stdout = stream == scheduler::LogStream::kStdout;
  state.end = read.Uint(is_stdout ? 6 : 7);
  StreamRow row{.acked = read.Uint(3), .sealed = read.Int(5) != 0};
  if (!read.IsNull(4)) row.declared_last = read.Uint(4);
  state.is_complete = IsOutputComplete(static_cast<scheduler::AttemptState>(read.Int(2)), row);
  SqliteLog log(db_, {read.Uint(0)}, stream);
  return AssembleLog(log, state, offset, max_bytes);
}

Result<SweepInfo> RowReader::FindSweepByHash(std::string_view project, std::string_view spec_hash) {
  Statement read = db_.Prepare(
      StrCat("SELECT ", kSweepColumns,
             " FROM sweeps s WHERE s.spec_hash = ?1 AND s.project = ?2 AND s.state NOT IN (3, 5) "
             "ORDER BY s.id DESC LIMIT 1"));
  read.Bind(1, spec_hash).Bind(2, project);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) {
    return NotFound(StrCat("no sweep with document ", EscapeForTerminal(spec_hash)));
  }
  return ReadSweepRow(read);
}

Result<std::vector<std::optional<ValidRun>>> RowReader::FindValidRuns(
    std::string_view project, std::span<const std::string> run_keys) {
  // Live, SUCCEEDED, or FAILED by a guard: the others do not stand in the way of a new run.
  Statement read = db_.Prepare(
      "SELECT r.uuid, r.state FROM runs r WHERE r.run_key = ?1 AND r.project = ?2 AND (r.state <= "
      "5 "
      "OR (r.state = 7 AND (SELECT a.end_class FROM attempts a WHERE a.epoch = r.current_epoch) = "
      "9)) ORDER BY r.rerun DESC, r.id DESC LIMIT 1");
  std::vector<std::optional<ValidRun>> found;
  found.reserve(run_keys.size());
  for (const std::string& run_key : run_keys) {
    read.Bind(1, run_key).Bind(2, project);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (has_row) {
      found.push_back(ValidRun{.id = {read.Id(0)}, .state = static_cast<RunState>(read.Int(1))});
    } else {
      found.emplace_back();
    }
    read.Reset();
  }
  return found;
}

Result<IdemRow> RowReader::FindIdem(std::string_view request_id, int64_t now_ms) {
  Statement read = db_.Prepare(
      "SELECT method, body_hash, reply, expires_ms FROM idem WHERE request_id = ?1 AND "
      "expires_ms > ?2");
  read.Bind(1, request_id).Bind(2, now_ms);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
  if (!has_row) return NotFound(StrCat("no request ", EscapeForTerminal(request_id)));
  return IdemRow{.request_id = std::string(request_id),
                 .method = read.Text(0),
                 .body_hash = read.Text(1),
                 .reply = read.Text(2),
                 .expires_ms = read.Int(3)};
}

Result<bool> RowReader::IsSweepNameTaken(std::string_view name) {
  Statement read = db_.Prepare("SELECT 1 FROM sweeps WHERE name = ?1");
  read.Bind(1, name);
  return read.Step();
}

Status RowReader::LoadSweeps(Snapshot* out) {
  Statement read = db_.Prepare(
      StrCat("SELECT ", kSweepColumns, " FROM sweeps s WHERE s.state < 4 ORDER BY s.id"));
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(SweepInfo info, ReadSweepRow(read));
    out->sweeps.push_back(std::move(info.row));
    out->sweep_status.push_back(std::move(info.status));
  }
}

Status RowReader::LoadRunParts(int64_t key, RunId id, Snapshot* out) {
  {
    Statement read = db_.Prepare(
        "SELECT s.uuid, l.number, l.cell FROM links l JOIN sweeps s ON s.id = l.sweep "
        "WHERE l.run = ?1 AND s.state < 4 ORDER BY l.sweep, l.number");
    read.Bind(1, key);
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) break;
      out->links.push_back(
          {.sweep = {read.Id(0)}, .number = read.Uint(1), .run = id, .cell = read.Uint(2)});
    }
  }
  {
    Statement read = db_.Prepare(
        StrCat("SELECT ", kCheckpointColumns,
               " FROM checkpoints c WHERE c.run = ?1 AND c.state = 3 ORDER BY c.epoch, c.step"));
    read.Bind(1, key);
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) break;
      out->checkpoints.push_back(ReadCheckpointRow(read, id));
    }
  }
  SWITCHYARD_ASSIGN_OR_RETURN(std::vector<SummaryRow> summaries, ReadSummaries(key, id));
  std::ranges::move(summaries, std::back_inserter(out->summaries));
  return OkStatus();
}

Status RowReader::LoadRuns(Snapshot* out) {
  Statement read = db_.Prepare(StrCat("SELECT ", kRunColumns,
                                      " FROM runs r JOIN sweeps s ON s.id = r.sweep "
                                      // A run that has ended stays while a stream of it is open.
                                      "WHERE r.id IN (SELECT id FROM runs WHERE state < 5 UNION "
                                      "SELECT a.run FROM streams t JOIN attempts a ON a.epoch = "
                                      "t.epoch WHERE t.sealed = 0) ORDER BY r.id"));
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    RunRow run;
    RunStatus status;
    SWITCHYARD_RETURN_IF_ERROR(ReadRunRow(read, &run, &status));
    if (!read.IsNull(kRunStepColumn)) {
      out->progress.push_back({.run = run.id, .step = read.Uint(kRunStepColumn)});
    }
    SWITCHYARD_RETURN_IF_ERROR(LoadRunParts(read.Int(kRunIdColumn), run.id, out));
    out->runs.push_back(std::move(run));
    out->run_status.push_back(std::move(status));
  }
}

Status RowReader::LoadAttempts(Snapshot* out) {
  Statement read = db_.Prepare(
      StrCat("SELECT ", kAttemptColumns,
             " FROM attempts a JOIN runs r ON r.id = a.run WHERE a.epoch IN "
             "(SELECT epoch FROM attempts WHERE state < 5 UNION SELECT epoch FROM streams WHERE "
             "sealed = 0) ORDER BY a.epoch"));
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    AttemptRow attempt;
    AttemptStatus status;
    ReadAttemptRow(read, &attempt, &status);
    SWITCHYARD_ASSIGN_OR_RETURN(std::vector<MemberRow> members, ReadMembers(attempt.epoch));
    SWITCHYARD_ASSIGN_OR_RETURN(std::vector<StreamRow> streams, ReadStreams(attempt.epoch));
    std::ranges::move(members, std::back_inserter(out->members));
    std::ranges::move(streams, std::back_inserter(out->streams));
    out->attempts.push_back(std::move(attempt));
    out->attempt_status.push_back(std::move(status));
  }
}

Status RowReader::LoadDoomed(Snapshot* out) {
  Statement read = db_.Prepare(
      StrCat("SELECT ", kCheckpointColumns,
             ", r.uuid FROM checkpoints c JOIN runs r ON r.id = c.run WHERE c.state IN (4, 5) "
             "ORDER BY c.run, c.epoch, c.step"));
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    out->checkpoints.push_back(ReadCheckpointRow(read, {read.Id(10)}));
  }
}

Status RowReader::LoadWorkers(Snapshot* out) {
  Statement read = db_.Prepare(
      "SELECT uuid, incarnation, instance_id, pool, host, version, metrics_address, "
      "checkpoint_store, threads_per_slot, labels, slots, admin, cordoned, cordon_reason, "
      "memory_bytes, drain_deadline_ms "
      "FROM workers ORDER BY uuid");
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    WorkerRow worker{.id = {read.Id(0)},
                     .incarnation = read.Uint(1),
                     .instance_id = read.Text(2),
                     .pool = read.Text(3),
                     .host = read.Text(4),
                     .version = read.Text(5),
                     .metrics_address = read.Text(6),
                     .checkpoint_store = read.Text(7),
                     .threads_per_slot = static_cast<uint32_t>(read.Uint(8)),
                     .admin = static_cast<scheduler::AdminState>(read.Int(11)),
                     .cordoned = read.Int(12) != 0,
                     .cordon_reason = read.Text(13),
                     .memory_bytes = read.Uint(14),
                     .drain_deadline_ms = read.Int(15)};
    SWITCHYARD_ASSIGN_OR_RETURN(worker.labels, UnpackTexts(read.Bytes(9)));
    for (Unpacker slots(read.Bytes(10)); !slots.is_done();) {
      scheduler::SlotRow slot;
      SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t index, slots.Uint());
      SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t kind, slots.Uint());
      SWITCHYARD_ASSIGN_OR_RETURN(slot.uuid, slots.Text());
      slot.index = static_cast<uint32_t>(index);
      slot.kind = static_cast<scheduler::SlotKind>(kind);
      worker.slots.push_back(std::move(slot));
    }
    out->workers.push_back(std::move(worker));
  }
}

Result<Snapshot> RowReader::Load() {
  Snapshot snapshot;
  {
    Statement read = db_.Prepare("SELECT max(epoch) FROM attempts");
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (has_row) snapshot.last_epoch = {read.Uint(0)};
  }
  SWITCHYARD_RETURN_IF_ERROR(LoadSweeps(&snapshot));
  SWITCHYARD_RETURN_IF_ERROR(LoadRuns(&snapshot));
  SWITCHYARD_RETURN_IF_ERROR(LoadAttempts(&snapshot));
  SWITCHYARD_RETURN_IF_ERROR(LoadDoomed(&snapshot));
  SWITCHYARD_RETURN_IF_ERROR(LoadWorkers(&snapshot));
  Statement usage = db_.Prepare("SELECT project, slot_seconds, at_ms FROM usage ORDER BY project");
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, usage.Step());
    if (!has_row) break;
    snapshot.usage.push_back({.project = usage.Text(0),
                              .slot_seconds = std::bit_cast<double>(usage.Uint(1)),
                              .at_ms = usage.Int(2)});
  }
  return snapshot;
}

}  // namespace switchyard::store
