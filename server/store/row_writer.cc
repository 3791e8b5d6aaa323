#include "server/store/row_writer.h"

#include <bit>
#include <optional>
#include <type_traits>
#include <unordered_set>

#include "common/base/strings.h"
#include "server/store/chunks.h"
#include "server/store/limits.h"
#include "server/store/pack.h"
#include "server/store/policy_pack.h"

namespace switchyard::store {
namespace {

constexpr size_t kCacheMax = 200000;

int64_t Number(auto enumerator) { return static_cast<int64_t>(enumerator); }

// The row before it is not there, or the stored state is final: memory and disk differ.
Status Contradiction(std::string_view what, const std::string& id) {
  return Internal(StrCat(what, " ", id, " is not stored, or has ended otherwise"));
}

std::string Text(Epoch epoch) { return StrCat(epoch.value); }

// Of rows that replace one another only the last of a commit is worth writing.
std::string ReplaceKey(const Write& write) {
  return std::visit(
      [](const auto& row) -> std::string {
        using Row = std::decay_t<decltype(row)>;
        if constexpr (std::is_same_v<Row, SummaryRow>) {
          return StrCat("s", row.run.value.high, ".", row.run.value.low, ".", row.series);
        } else if constexpr (std::is_same_v<Row, StreamRow>) {
          return StrCat("t", row.epoch.value, ".", row.rank);
        } else if constexpr (std::is_same_v<Row, SweepStatus>) {
          return StrCat("w", row.id.value.high, ".", row.id.value.low);
        } else if constexpr (std::is_same_v<Row, RunProgress>) {
          return StrCat("p", row.run.value.high, ".", row.run.value.low);
        } else {
          return {};
        }
      },
      write);
}

}  // namespace

void RowWriter::Forget() {
  sweep_keys_.clear();
  run_keys_.clear();
  name_keys_.clear();
  series_.clear();
  dictionary_ = {};
}

std::vector<int64_t> RowWriter::TakeSeriesToMerge() {
  std::vector<int64_t> taken(series_to_merge_.begin(), series_to_merge_.end());
  series_to_merge_.clear();
  return taken;
}

std::vector<RowWriter::LogKey> RowWriter::TakeLogsToMerge() {
  std::vector<LogKey> taken(logs_to_merge_.begin(), logs_to_merge_.end());
  logs_to_merge_.clear();
  return taken;
}

Status RowWriter::WriteAll(std::span<const Write> writes) {
  if (sweep_keys_.size() + run_keys_.size() > kCacheMax || name_keys_.size() > kCacheMax ||
      series_.size() > kCacheMax) {
    Forget();
  }
  std::vector<bool> is_replaced(writes.size());
  std::unordered_set<std::string> later;
  for (size_t i = writes.size(); i-- > 0;) {
    std::string key = ReplaceKey(writes[i]);
    if (!key.empty() && !later.insert(std::move(key)).second) is_replaced[i] = true;
  }
  // Links last: they copy the state of a run that the same commit may make.
  for (const bool is_link_pass : {false, true}) {
    for (size_t i = 0; i < writes.size(); ++i) {
      if (is_replaced[i] || std::holds_alternative<LinkRow>(writes[i]) != is_link_pass) continue;
      Status status = std::visit([this](const auto& row) { return Put(row); }, writes[i]);
      if (status.code() == Code::kAlreadyExists || status.code() == Code::kFailedPrecondition) {
        status = Internal(status.message());
      }
      SWITCHYARD_RETURN_IF_ERROR(status);
    }
  }
  return OkStatus();
}

Result<int64_t> RowWriter::SweepKey(SweepId id) {
  if (const auto it = sweep_keys_.find(id.value); it != sweep_keys_.end()) return it->second;
  Statement find = db_.Prepare("SELECT id FROM sweeps WHERE uuid = ?1");
  find.Bind(1, id.value);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
  if (!has_row) return Internal(StrCat("sweep ", id.value.ToString(), " is not stored"));
  return sweep_keys_[id.value] = find.Int(0);
}

Result<int64_t> RowWriter::RunKey(RunId id) {
  if (const auto it = run_keys_.find(id.value); it != run_keys_.end()) return it->second;
  Statement find = db_.Prepare("SELECT id FROM runs WHERE uuid = ?1");
  find.Bind(1, id.value);
  SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
  if (!has_row) return Internal(StrCat("run ", id.value.ToString(), " is not stored"));
  return run_keys_[id.value] = find.Int(0);
}

Result<int64_t> RowWriter::NameKey(const std::string& name) {
  if (const auto it = name_keys_.find(name); it != name_keys_.end()) return it->second;
  {
    Statement find = db_.Prepare("SELECT id FROM names WHERE name = ?1");
    find.Bind(1, name);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
    if (has_row) return name_keys_[name] = find.Int(0);
  }
  Statement insert = db_.Prepare("INSERT INTO names(name) VALUES (?1)");
  SWITCHYARD_RETURN_IF_ERROR(insert.Bind(1, name).Run());
  return name_keys_[name] = db_.last_insert_rowid();
}

Status RowWriter::Put(const SweepRow& row) {
  Statement insert = db_.Prepare(
      "INSERT INTO sweeps(uuid, project, name, base_name, spec_hash, rerun, objective, axes, "
      "cells, runs, created_ms, state, proposed, counts, reason, ended_ms, parent, "
      "budget_slot_ms, is_drawn) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 1, 0, x'', '', 0, ?12, ?13, ?14)");
  const std::string axes = PackTexts(row.axes);
  insert.Bind(1, row.id.value).Bind(2, row.project).Bind(3, row.name).Bind(4, row.base_name);
  insert.Bind(5, row.spec_hash).Bind(6, row.rerun).BindBlob(7, row.objective).BindBlob(8, axes);
  insert.Bind(9, row.cells).Bind(10, row.runs).Bind(11, row.created_ms);
  if (row.parent.has_value()) {
    insert.Bind(12, row.parent->value);
  } else {
    insert.BindNull(12);
  }
  insert.Bind(13, row.budget_slot_ms).Bind(14, row.is_drawn);
  SWITCHYARD_RETURN_IF_ERROR(insert.Run());
  const int64_t key = db_.last_insert_rowid();
  sweep_keys_[row.id.value] = key;
  Statement document = db_.Prepare("INSERT INTO sweep_documents(sweep, spec) VALUES (?1, ?2)");
  const std::string spec = Compress(row.spec);
  return document.Bind(1, key).BindBlob(2, spec).Run();
}

Status RowWriter::Put(const SweepExtension& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, SweepKey(row.id));
  Statement update = db_.Prepare(
      "UPDATE sweeps SET spec_hash = ?2, axes = ?3, cells = ?4, runs = ?5, is_drawn = 1 "
      "WHERE id = ?1");
  const std::string axes = PackTexts(row.axes);
  update.Bind(1, key).Bind(2, row.spec_hash).BindBlob(3, axes).Bind(4, row.cells).Bind(5, row.runs);
  SWITCHYARD_RETURN_IF_ERROR(update.Run());
  Statement document = db_.Prepare("UPDATE sweep_documents SET spec = ?2 WHERE sweep = ?1");
  const std::string spec = Compress(row.spec);
  return document.Bind(1, key).BindBlob(2, spec).Run();
}

Status RowWriter::Put(const SweepStatus& row) {
  Statement update = db_.Prepare(
      "UPDATE sweeps SET state = ?2, proposed = ?3, counts = ?4, reason = ?5, ended_ms = ?6, "
      "retried = ?7, slot_ms = ?8, run_priority = ?9, early_failures = ?10, "
      "is_closed = ?11 "
      "WHERE uuid = ?1 AND (state < 4 OR state = ?2)");
  const std::string counts = PackUints(std::span<const uint64_t>(row.counts));
  update.Bind(1, row.id.value).Bind(2, Number(row.state)).Bind(3, row.proposed);
  update.BindBlob(4, counts).Bind(5, row.reason).Bind(6, row.ended_ms);
  update.Bind(7, row.retried).Bind(8, row.slot_ms);
  if (row.priority.has_value()) {
    update.Bind(9, *row.priority);
  } else {
    update.BindNull(9);
  }
  const std::string failures = PackEarlyFailures(row.early_failures);
  update.BindBlob(10, failures).Bind(11, row.is_closed);
  SWITCHYARD_RETURN_IF_ERROR(update.Run());
  return db_.changes() == 1 ? OkStatus() : Contradiction("sweep", row.id.value.ToString());
}

Status RowWriter::Put(const StrategyRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t sweep, SweepKey(row.sweep));
  Statement insert = db_.Prepare("INSERT OR REPLACE INTO strategies(sweep, state) VALUES (?1, ?2)");
  const std::string state = Compress(row.state);
  return insert.Bind(1, sweep).BindBlob(2, state).Run();
}

Status RowWriter::Put(const LinkRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t sweep, SweepKey(row.sweep));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t run, RunKey(row.run));
  Packer columns;
  for (const auto& [axis, value] : row.columns) {
    columns.Put(std::string_view(axis)).Put(std::string_view(value));
  }
  const std::string packed = std::move(columns).Take();
  Statement insert = db_.Prepare(
      "INSERT INTO links(sweep, number, run, cell, state, columns) "
      "VALUES (?1, ?2, ?3, ?4, (SELECT state FROM runs WHERE id = ?3), ?5)");
  insert.Bind(1, sweep).Bind(2, row.number).Bind(3, run).Bind(4, row.cell).BindBlob(5, packed);
  return insert.Run();
}

Status RowWriter::Put(const RunRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t sweep, SweepKey(row.sweep));
  Statement insert = db_.Prepare(
      "INSERT INTO runs(uuid, sweep, project, run_key, rerun, seed, router, priority, need_kind, "
      "need_count, max_parallel, timeout_ms, steps_total, created_ms, state, current_epoch, "
      "attempts, cancel_req, pause_req, prune_req, user_fail, crash_fail, infra_fail, "
      "infra_streak, progress_step, active_ms, not_before_ms, reason, queued_ms, started_ms, "
      "ended_ms, parent, policy, current_priority) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, "
      "?10, ?11, ?12, ?13, ?14, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', 0, 0, 0, ?15, ?16, ?8)");
  insert.Bind(1, row.id.value).Bind(2, sweep).Bind(3, row.project).Bind(4, row.run_key);
  insert.Bind(5, row.rerun).Bind(6, row.seed).Bind(7, row.router).Bind(8, row.priority);
  insert.Bind(9, Number(row.need.kind)).Bind(10, row.need.count).Bind(11, row.max_parallel);
  insert.Bind(12, row.timeout_ms).Bind(13, row.steps_total).Bind(14, row.created_ms);
  if (row.parent.has_value()) {
    insert.Bind(15, row.parent->value);
  } else {
    insert.BindNull(15);
  }
  const std::string policy = PackPolicy(row.policy);
  insert.BindBlob(16, policy);
  SWITCHYARD_RETURN_IF_ERROR(insert.Run());
  const int64_t key = db_.last_insert_rowid();
  run_keys_[row.id.value] = key;
  return PutDocument(key, sweep, row);
}

Status RowWriter::PutDocument(int64_t run, int64_t sweep, const RunRow& row) {
  auto& [dictionary_sweep, dictionary_run, dictionary] = dictionary_;
  const bool has_dictionary = dictionary_sweep == sweep && dictionary_run != 0;
  Statement insert = db_.Prepare(
      "INSERT INTO run_documents(run, dictionary, spec, attempt_spec) VALUES (?1, ?2, ?3, ?4)");
  const std::string spec = Compress(row.spec, has_dictionary ? dictionary : std::string_view());
  const std::string attempt_spec =
      Compress(row.attempt_spec, has_dictionary ? dictionary : std::string_view());
  insert.Bind(1, run).BindBlob(3, spec).BindBlob(4, attempt_spec);
  if (has_dictionary) {
    insert.Bind(2, dictionary_run);
  } else {
    insert.BindNull(2);
  }
  SWITCHYARD_RETURN_IF_ERROR(insert.Run());
  if (!has_dictionary) dictionary_ = {sweep, run, row.spec};
  return OkStatus();
}

Status RowWriter::Put(const RunStatus& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, RunKey(row.id));
  Statement update = db_.Prepare(
      "UPDATE runs SET state = ?2, current_epoch = ?3, attempts = ?4, cancel_req = ?5, "
      "pause_req = ?6, prune_req = ?7, user_fail = ?8, crash_fail = ?9, infra_fail = ?10, "
      "infra_streak = ?11, progress_step = ?12, active_ms = ?13, not_before_ms = ?14, "
      "reason = ?15, queued_ms = ?16, started_ms = ?17, ended_ms = ?18, "
      "current_priority = ?19, alternative = ?20, evidence = ?21 "
      "WHERE id = ?1 AND (state < 5 OR state = ?2)");
  update.Bind(1, key).Bind(2, Number(row.state)).Bind(3, row.current_epoch.value);
  update.Bind(4, row.attempts).Bind(5, row.cancel_req).Bind(6, row.pause_req);
  update.Bind(7, row.prune_req).Bind(8, row.user_fail).Bind(9, row.crash_fail);
  update.Bind(10, row.infra_fail).Bind(11, row.infra_streak).Bind(12, row.progress_step);
  update.Bind(13, row.active_ms).Bind(14, row.not_before_ms).Bind(15, row.reason);
  update.Bind(16, row.queued_ms).Bind(17, row.started_ms).Bind(18, row.ended_ms);
  const std::string evidence = PackEvidence(row.evidence);
  update.Bind(19, row.priority).Bind(20, row.alternative).BindBlob(21, evidence);
  SWITCHYARD_RETURN_IF_ERROR(update.Run());
  if (db_.changes() != 1) return Contradiction("run", row.id.value.ToString());
  Statement links = db_.Prepare("UPDATE links SET state = ?2 WHERE run = ?1 AND state <> ?2");
  return links.Bind(1, key).Bind(2, Number(row.state)).Run();
}

Status RowWriter::Put(const AttemptRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t run, RunKey(row.run));
  Statement insert = db_.Prepare(
      "INSERT INTO attempts(epoch, run, ordinal, worker, pool, assign_rev, resume_epoch, "
      "resume_step, resume_path, created_ms, state, intent, stop_reason, end_class, reason, "
      "start_reported, resumed_epoch, resumed_step, final_step, running_ms, ended_ms) VALUES "
      "(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 1, 1, 0, 0, '', 0, 0, 0, 0, 0, 0)");
  insert.Bind(1, row.epoch.value).Bind(2, run).Bind(3, row.ordinal).Bind(4, row.worker.value);
  insert.Bind(5, row.pool).Bind(6, row.assign_rev).Bind(7, row.resume_epoch.value);
  insert.Bind(8, row.resume_step).Bind(9, row.resume_path).Bind(10, row.created_ms);
  return insert.Run();
}

Status RowWriter::Put(const AttemptStatus& row) {
  Statement update = db_.Prepare(
      "UPDATE attempts SET state = ?2, intent = ?3, stop_reason = ?4, end_class = ?5, "
      "reason = ?6, start_reported = ?7, resumed_epoch = ?8, resumed_step = ?9, "
      "final_step = ?10, running_ms = ?11, ended_ms = ?12, grace_ms = ?13 "
      "WHERE epoch = ?1 AND (state < 5 OR state = ?2)");
  update.Bind(1, row.epoch.value).Bind(2, Number(row.state)).Bind(3, Number(row.intent));
  update.Bind(4, Number(row.stop_reason)).Bind(5, Number(row.end_class)).Bind(6, row.reason);
  update.Bind(7, row.start_reported).Bind(8, row.resumed_epoch.value);
  update.Bind(9, row.resumed_step).Bind(10, row.final_step).Bind(11, row.running_ms);
  update.Bind(12, row.ended_ms).Bind(13, row.grace_ms);
  SWITCHYARD_RETURN_IF_ERROR(update.Run());
  return db_.changes() == 1 ? OkStatus() : Contradiction("attempt", Text(row.epoch));
}

Status RowWriter::Reserve(const MemberRow& row) {
  {
    Statement before =
        db_.Prepare("SELECT worker, slots, state FROM members WHERE epoch = ?1 AND rank = ?2");
    before.Bind(1, row.epoch.value).Bind(2, row.rank);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, before.Step());
    if (has_row) {
      const Uuid worker = before.Id(0);
      SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint32_t> slots,
                                  UnpackUints32(before.Bytes(1)));
      const bool held = !IsTerminal(static_cast<scheduler::MemberState>(before.Int(2)));
      const bool holds = !IsTerminal(row.state);
      if (held == holds && worker == row.worker.value && slots == row.slots) return OkStatus();
      for (const uint32_t slot : slots) {
        Statement free = db_.Prepare(
            "DELETE FROM reservations WHERE worker = ?1 AND slot = ?2 AND epoch = ?3 AND "
            "rank = ?4");
        free.Bind(1, worker).Bind(2, slot).Bind(3, row.epoch.value).Bind(4, row.rank);
        SWITCHYARD_RETURN_IF_ERROR(free.Run());
      }
    }
  }
  if (IsTerminal(row.state)) return OkStatus();
  for (const uint32_t slot : row.slots) {
    Statement take =
        db_.Prepare("INSERT INTO reservations(worker, slot, epoch, rank) VALUES (?1, ?2, ?3, ?4)");
    take.Bind(1, row.worker.value).Bind(2, slot).Bind(3, row.epoch.value).Bind(4, row.rank);
    const Status status = take.Run();
    if (status.code() == Code::kAlreadyExists) {
      return Internal(StrCat("slot ", slot, " of worker ", row.worker.value.ToString(),
                             " is held by another member than ", Text(row.epoch), "/", row.rank));
    }
    SWITCHYARD_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

Status RowWriter::Put(const MemberRow& row) {
  SWITCHYARD_RETURN_IF_ERROR(Reserve(row));
  Statement put = db_.Prepare(
      "INSERT OR REPLACE INTO members(epoch, rank, worker, slots, state, exit_code, signal, "
      "end_class, complete, evidence) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)");
  const std::string slots = PackUints(row.slots);
  put.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, row.worker.value).BindBlob(4, slots);
  put.Bind(5, Number(row.state)).Bind(6, row.exit_code).Bind(7, row.signal);
  put.Bind(8, Number(row.end_class)).Bind(9, row.complete).Bind(10, row.evidence);
  return put.Run();
}

Status RowWriter::Put(const StreamRow& row) {
  // A stream that was merged and is written again has something new to merge.
  Statement put = db_.Prepare(
      "INSERT OR REPLACE INTO streams(epoch, rank, acked, declared_last, sealed, stdout_end, "
      "stderr_end, is_merged) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0)");
  put.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, row.acked).Bind(5, row.sealed);
  put.Bind(6, row.stdout_end).Bind(7, row.stderr_end);
  if (row.declared_last) {
    put.Bind(4, *row.declared_last);
  } else {
    put.BindNull(4);
  }
  return put.Run();
}

Result<RowWriter::SeriesState*> RowWriter::SeriesOf(const ChunkRow& row) {
  const SeriesKey key{.epoch = row.epoch.value, .rank = row.rank, .name = row.series};
  if (const auto it = series_.find(key); it != series_.end()) return &it->second;
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t name, NameKey(row.series));
  const std::string shape = PackUints(row.shape);
  SeriesState state;
  {
    Statement find = db_.Prepare(
        "SELECT id, is_vector, shape FROM series WHERE epoch = ?1 AND rank = ?2 AND name = ?3");
    find.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, name);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
    if (has_row) {
      state.id = find.Int(0);
      if ((find.Int(1) != 0) != row.is_vector || find.Bytes(2) != shape) {
        return Internal(StrCat("series ", EscapeForTerminal(row.series), " of attempt ",
                               Text(row.epoch), " changes its kind or shape"));
      }
    }
  }
  if (state.id != 0) {
    Statement newest = db_.Prepare(
        "SELECT last_seq FROM chunks WHERE series = ?1 ORDER BY first_seq DESC LIMIT 1");
    newest.Bind(1, state.id);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, newest.Step());
    if (has_row) state.last_seq = newest.Uint(0);
  } else {
    Statement insert = db_.Prepare(
        "INSERT INTO series(epoch, rank, name, is_vector, shape) VALUES (?1, ?2, ?3, ?4, ?5)");
    insert.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, name).Bind(4, row.is_vector);
    insert.BindBlob(5, shape);
    SWITCHYARD_RETURN_IF_ERROR(insert.Run());
    state.id = db_.last_insert_rowid();
  }
  uint64_t width = 1;
  for (const uint32_t extent : row.shape) width *= extent;
  state.merge_points = MergePoints(row.is_vector, width);
  return &(series_[key] = state);
}

Status RowWriter::Put(const ChunkRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(SeriesState* const series, SeriesOf(row));
  // Not left to the unique key alone: a merged chunk hides the first numbers of those within.
  if (row.first_seq <= series->last_seq || row.last_seq < row.first_seq) {
    return Internal(StrCat("points ", row.first_seq, "-", row.last_seq, " of series ",
                           EscapeForTerminal(row.series), " of attempt ", Text(row.epoch),
                           " come after ", series->last_seq));
  }
  Statement insert = db_.Prepare(
      "INSERT INTO chunks(series, first_seq, last_seq, first_step, last_step, n, is_sorted, blob) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
  insert.Bind(1, series->id).Bind(2, row.first_seq).Bind(3, row.last_seq);
  insert.Bind(4, row.first_step).Bind(5, row.last_step).Bind(6, row.n);
  insert.Bind(7, HasSortedSteps(row.blob)).BindBlob(8, row.blob);
  SWITCHYARD_RETURN_IF_ERROR(insert.Run());
  series->last_seq = row.last_seq;
  if (row.n < series->merge_points) series->pending_points += row.n;
  if (series->pending_points >= series->merge_points) {
    series->pending_points = 0;
    series_to_merge_.insert(series->id);
  }
  return OkStatus();
}

Status RowWriter::Put(const StreamEventRow& row) {
  Statement insert = db_.Prepare(
      "INSERT INTO stream_events(epoch, rank, seq, covers, kind, json) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6)");
  insert.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, row.seq).Bind(4, row.covers);
  return insert.Bind(5, row.kind).Bind(6, row.json).Run();
}

Status RowWriter::Put(const LogRow& row) {
  {
    Statement newest = db_.Prepare(
        "SELECT \"offset\" + n FROM logs WHERE epoch = ?1 AND rank = ?2 AND stream = ?3 "
        "ORDER BY \"offset\" DESC LIMIT 1");
    newest.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, Number(row.stream));
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, newest.Step());
    if (has_row && row.offset < newest.Uint(0)) {
      return Internal(StrCat("output from ", row.offset, " of attempt ", Text(row.epoch),
                             " comes after ", newest.Uint(0)));
    }
  }
  Statement insert = db_.Prepare(
      "INSERT INTO logs(epoch, rank, stream, \"offset\", n, codec, blob) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)");
  const bool is_small = row.data.size() < kLogCompressBytes;
  const std::string packed = is_small ? std::string() : Compress(row.data);
  insert.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, Number(row.stream));
  insert.Bind(4, row.offset).Bind(5, uint64_t{row.data.size()});
  insert.Bind(6, is_small ? kCodecPlain : kCodecZstd);
  insert.BindBlob(7, is_small ? row.data : packed);
  SWITCHYARD_RETURN_IF_ERROR(insert.Run());
  const LogKey key{row.epoch.value, row.rank, static_cast<uint8_t>(row.stream)};
  uint64_t& pending = log_pending_bytes_[key];
  if (row.data.size() < kLogChunkBytes) pending += row.data.size();
  if (pending >= kLogChunkBytes) {
    logs_to_merge_.insert(key);
    log_pending_bytes_.erase(key);
  }
  if (log_pending_bytes_.size() > kCacheMax) log_pending_bytes_.clear();
  return TrimLog(row);
}

Status RowWriter::TrimLog(const LogRow& row) {
  const uint64_t end = row.offset + row.data.size();
  if (end <= kLogHeadBytes + kLogTailBytes) return OkStatus();
  // Once a chunk's worth, so that a row a line does not search each time.
  if (row.offset / kLogChunkBytes == end / kLogChunkBytes) return OkStatus();
  Statement trim = db_.Prepare(
      "DELETE FROM logs WHERE epoch = ?1 AND rank = ?2 AND stream = ?3 AND \"offset\" >= ?4 AND "
      "\"offset\" < ?5 AND \"offset\" + n <= ?5");
  trim.Bind(1, row.epoch.value).Bind(2, row.rank).Bind(3, Number(row.stream));
  return trim.Bind(4, kLogHeadBytes).Bind(5, end - kLogTailBytes).Run();
}

Status RowWriter::Put(const CheckpointRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t run, RunKey(row.run));
  Statement put = db_.Prepare(
      "INSERT OR REPLACE INTO checkpoints(run, step, epoch, state, digest, bytes, path, store, "
      "pinned, score, state_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
  put.Bind(1, run).Bind(2, row.step).Bind(3, row.epoch.value).Bind(4, Number(row.state));
  put.Bind(5, row.digest).Bind(6, row.bytes).Bind(7, row.path).Bind(8, row.store);
  put.Bind(9, row.pinned).Bind(11, row.state_ms);
  if (row.score.has_value()) {
    put.Bind(10, std::bit_cast<uint64_t>(*row.score));
  } else {
    put.BindNull(10);
  }
  return put.Run();
}

Status RowWriter::Put(const SummaryRow& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t run, RunKey(row.run));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t name, NameKey(row.series));
  Statement put = db_.Prepare(
      "INSERT OR REPLACE INTO summaries(run, name, is_vector, shape, last, last_step, has_best, "
      "best, best_step, count, non_finite) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)");
  const std::string shape = PackUints(row.shape);
  put.Bind(1, run).Bind(2, name).Bind(3, row.is_vector).BindBlob(4, shape);
  put.Bind(5, std::bit_cast<uint64_t>(row.last)).Bind(6, row.last_step).Bind(7, row.has_best);
  put.Bind(8, std::bit_cast<uint64_t>(row.best)).Bind(9, row.best_step).Bind(10, row.count);
  return put.Bind(11, row.non_finite).Run();
}

Status RowWriter::Put(const SummaryReset& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t run, RunKey(row.run));
  return db_.Prepare("DELETE FROM summaries WHERE run = ?1").Bind(1, run).Run();
}

Status RowWriter::Put(const RunProgress& row) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t run, RunKey(row.run));
  return db_.Prepare("UPDATE runs SET step = ?2 WHERE id = ?1")
      .Bind(1, run)
      .Bind(2, row.step)
      .Run();
}

Status RowWriter::Put(const IdemRow& row) {
  Statement expire = db_.Prepare("DELETE FROM idem WHERE request_id = ?1 AND expires_ms <= ?2");
  SWITCHYARD_RETURN_IF_ERROR(expire.Bind(1, row.request_id).Bind(2, now_ms_).Run());
  Statement insert = db_.Prepare(
      "INSERT INTO idem(request_id, method, body_hash, reply, expires_ms) "
      "VALUES (?1, ?2, ?3, ?4, ?5)");
  insert.Bind(1, row.request_id).Bind(2, row.method).Bind(3, row.body_hash);
  return insert.BindBlob(4, row.reply).Bind(5, row.expires_ms).Run();
}

Status RowWriter::Put(const WorkerRow& row) {
  Packer slots;
  for (const scheduler::SlotRow& slot : row.slots) {
    slots.Put(uint64_t{slot.index}).Put(static_cast<uint64_t>(slot.kind));
    slots.Put(std::string_view(slot.uuid));
  }
  const std::string packed_slots = std::move(slots).Take();
  const std::string labels = PackTexts(row.labels);
  Statement put = db_.Prepare(
      "INSERT INTO workers(uuid, incarnation, instance_id, pool, host, version, metrics_address, "
      "checkpoint_store, threads_per_slot, labels, slots, admin, cordoned, cordon_reason, "
      "memory_bytes, drain_deadline_ms) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16) "
      "ON CONFLICT(uuid) DO UPDATE SET incarnation = ?2, instance_id = ?3, pool = ?4, host = ?5, "
      "version = ?6, metrics_address = ?7, checkpoint_store = ?8, threads_per_slot = ?9, "
      "labels = ?10, slots = ?11, admin = ?12, cordoned = ?13, cordon_reason = ?14, "
      "memory_bytes = ?15, drain_deadline_ms = ?16");
  put.Bind(1, row.id.value).Bind(2, row.incarnation).Bind(3, row.instance_id).Bind(4, row.pool);
  put.Bind(5, row.host).Bind(6, row.version).Bind(7, row.metrics_address);
  put.Bind(8, row.checkpoint_store).Bind(9, row.threads_per_slot).BindBlob(10, labels);
  put.BindBlob(11, packed_slots).Bind(12, Number(row.admin)).Bind(13, row.cordoned);
  put.Bind(14, row.cordon_reason).Bind(15, row.memory_bytes).Bind(16, row.drain_deadline_ms);
  return put.Run();
}

Status RowWriter::Put(const UsageRow& row) {
  Statement put =
      db_.Prepare("INSERT OR REPLACE INTO usage(project, slot_seconds, at_ms) VALUES (?1, ?2, ?3)");
  put.Bind(1, row.project).Bind(2, std::bit_cast<uint64_t>(row.slot_seconds)).Bind(3, row.at_ms);
  return put.Run();
}

Status RowWriter::Put(const HistoryRow& row) {
  Statement insert =
      db_.Prepare("INSERT INTO history(at_ms, kind, ref, text) VALUES (?1, ?2, ?3, ?4)");
  return insert.Bind(1, row.at_ms).Bind(2, row.kind).Bind(3, row.ref).Bind(4, row.text).Run();
}

}  // namespace switchyard::store
