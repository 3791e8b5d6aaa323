#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/strings.h"
#include "server/results/lineage.h"
#include "server/store/chunks.h"
#include "server/store/curve.h"
#include "server/store/limits.h"
#include "server/store/log_assembly.h"
#include "server/store/page_token.h"
#include "server/store/scan.h"
#include "server/store/store.h"

namespace switchyard::store {
namespace {

using scheduler::RunState;

struct StoredSweep {
  SweepRow row;
  SweepStatus status;
  uint64_t order = 0;  // from 1, as submitted
};

struct StoredRun {
  RunRow row;
  RunStatus status;
  std::optional<uint64_t> step;
  uint64_t order = 0;
};

struct StoredAttempt {
  AttemptRow row;
  AttemptStatus status;
  std::map<uint32_t, MemberRow> members;
  std::map<uint32_t, StreamRow> streams;
};

struct StoredSeries {
  SeriesHead head;
  std::map<uint64_t, ChunkRow> chunks;  // by first_seq
};

using SeriesKey = std::tuple<Epoch, uint32_t, std::string>;
using LogKey = std::tuple<Epoch, uint32_t, scheduler::LogStream>;

struct Tables {
  std::map<SweepId, StoredSweep> sweeps;
  std::map<RunId, StoredRun> runs;
  std::map<std::pair<uint64_t, uint64_t>, LinkRow> links;  // by order of the sweep, number
  std::map<Epoch, StoredAttempt> attempts;
  std::map<std::pair<WorkerId, uint32_t>, std::pair<Epoch, uint32_t>> reservations;
  std::map<SeriesKey, StoredSeries> series;
  std::map<std::tuple<Epoch, uint32_t, uint64_t>, StreamEventRow> events;
  std::map<LogKey, std::map<uint64_t, std::string>> logs;
  std::map<std::tuple<RunId, uint64_t, Epoch>, CheckpointRow> checkpoints;
  std::map<std::pair<RunId, std::string>, SummaryRow> summaries;
  std::map<std::string, IdemRow> idem;
  std::map<WorkerId, WorkerRow> workers;
  std::map<uint64_t, HistoryRow> history;
  std::map<std::string, UsageRow> usage;
  std::map<SweepId, StrategyRow> strategies;
};

struct Shared {
  std::mutex mu;
  Tables tables;  // guarded by mu
};

// Changes of one commit, each with its way back.
class Change {
 public:
  explicit Change(Tables* tables) : t_(*tables) {}

  void Undo() {
    while (!undo_.empty()) {
      undo_.back()();
      undo_.pop_back();
    }
  }

  Status Put(const SweepRow& row);
  Status Put(const SweepExtension& row);
  Status Put(const SweepStatus& row);
  Status Put(const LinkRow& row);
  Status Put(const RunRow& row);
  Status Put(const RunStatus& row);
  Status Put(const AttemptRow& row);
  Status Put(const AttemptStatus& row);
  Status Put(const MemberRow& row);
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
  Status Put(const StrategyRow& row);

  void SetNow(int64_t now_ms) { now_ms_ = now_ms; }

 private:
  template <typename Map>
  void Set(Map& map, const typename Map::key_type& key, typename Map::mapped_type value) {
    const auto it = map.find(key);
    if (it == map.end()) {
      undo_.push_back([&map, key] { map.erase(key); });
      map.emplace(key, std::move(value));
    } else {
      undo_.push_back([&map, key, old = it->second] { map.at(key) = old; });
      it->second = std::move(value);
    }
  }
  template <typename Map>
  void Erase(Map& map, typename Map::iterator it) {
    undo_.push_back([&map, key = it->first, old = it->second] { map.emplace(key, old); });
    map.erase(it);
  }
  template <typename Value>
  void Assign(Value& place, Value value) {
    undo_.push_back([&place, old = place] { place = old; });
    place = std::move(value);
  }
  // Inserts; false: there already.
  template <typename Map>
  bool Add(Map& map, const typename Map::key_type& key, typename Map::mapped_type value) {
    if (map.contains(key)) return false;
    Set(map, key, std::move(value));
    return true;
  }

  Tables& t_;
  std::vector<std::function<void()>> undo_;
  int64_t now_ms_ = 0;
};

Status Contradiction(std::string_view what) {
  return Internal(StrCat(what, " contradicts what is stored"));
}

Status Change::Put(const SweepRow& row) {
  for (const auto& [id, sweep] : t_.sweeps) {
    if (sweep.row.name == row.name) return Contradiction("sweep name");
  }
  StoredSweep sweep{.row = row, .order = t_.sweeps.size() + 1};
  sweep.status.id = row.id;
  return Add(t_.sweeps, row.id, std::move(sweep)) ? OkStatus() : Contradiction("sweep");
}

Status Change::Put(const SweepExtension& row) {
  const auto it = t_.sweeps.find(row.id);
  if (it == t_.sweeps.end()) return Contradiction("sweep extension");
  SweepRow extended = it->second.row;
  extended.spec = row.spec;
  extended.spec_hash = row.spec_hash;
  extended.axes = row.axes;
  extended.cells = row.cells;
  extended.runs = row.runs;
  extended.is_drawn = true;
  Assign(it->second.row, std::move(extended));
  return OkStatus();
}

Status Change::Put(const SweepStatus& row) {
  const auto it = t_.sweeps.find(row.id);
  if (it == t_.sweeps.end()) return Contradiction("sweep status");
  SweepStatus& status = it->second.status;
  if (IsTerminal(status.state) && status.state != row.state) return Contradiction("sweep status");
  Assign(status, row);
  return OkStatus();
}

Status Change::Put(const StrategyRow& row) {
  if (!t_.sweeps.contains(row.sweep)) return Contradiction("strategy");
  Set(t_.strategies, row.sweep, row);
  return OkStatus();
}

Status Change::Put(const LinkRow& row) {
  const auto sweep = t_.sweeps.find(row.sweep);
  if (sweep == t_.sweeps.end() || !t_.runs.contains(row.run)) return Contradiction("link");
  return Add(t_.links, {sweep->second.order, row.number}, row) ? OkStatus() : Contradiction("link");
}

Status Change::Put(const RunRow& row) {
  if (!t_.sweeps.contains(row.sweep)) return Contradiction("run");
  StoredRun run{.row = row, .order = t_.runs.size() + 1};
  run.status.id = row.id;
  run.status.priority = row.priority;
  return Add(t_.runs, row.id, std::move(run)) ? OkStatus() : Contradiction("run");
}

Status Change::Put(const RunStatus& row) {
  const auto it = t_.runs.find(row.id);
  if (it == t_.runs.end()) return Contradiction("run status");
  RunStatus& status = it->second.status;
  if (IsTerminal(status.state) && status.state != row.state) return Contradiction("run status");
  Assign(status, row);
  return OkStatus();
}

Status Change::Put(const AttemptRow& row) {
  if (!t_.runs.contains(row.run)) return Contradiction("attempt");
  StoredAttempt attempt{.row = row};
  attempt.status.epoch = row.epoch;
  return Add(t_.attempts, row.epoch, std::move(attempt)) ? OkStatus() : Contradiction("attempt");
}

Status Change::Put(const AttemptStatus& row) {
  const auto it = t_.attempts.find(row.epoch);
  if (it == t_.attempts.end()) return Contradiction("attempt status");
  AttemptStatus& status = it->second.status;
  if (IsTerminal(status.state) && status.state != row.state) {
    return Contradiction("attempt status");
  }
  Assign(status, row);
  return OkStatus();
}

Status Change::Put(const MemberRow& row) {
  const auto it = t_.attempts.find(row.epoch);
  if (it == t_.attempts.end()) return Contradiction("member");
  const std::pair<Epoch, uint32_t> holder{row.epoch, row.rank};
  for (auto held = t_.reservations.begin(); held != t_.reservations.end();) {
    const auto next = std::next(held);
    if (held->second == holder) Erase(t_.reservations, held);
    held = next;
  }
  if (!IsTerminal(row.state)) {
    for (const uint32_t slot : row.slots) {
      if (!Add(t_.reservations, {row.worker, slot}, holder)) return Contradiction("reservation");
    }
  }
  Set(it->second.members, row.rank, row);
  return OkStatus();
}

Status Change::Put(const StreamRow& row) {
  const auto it = t_.attempts.find(row.epoch);
  if (it == t_.attempts.end()) return Contradiction("stream");
  Set(it->second.streams, row.rank, row);
  return OkStatus();
}

Status Change::Put(const ChunkRow& row) {
  if (!t_.attempts.contains(row.epoch)) return Contradiction("chunk");
  const SeriesKey key{row.epoch, row.rank, row.series};
  StoredSeries fresh;
  fresh.head = {.id = static_cast<int64_t>(t_.series.size() + 1),
                .name = row.series,
                .is_vector = row.is_vector,
                .shape = row.shape};
  Add(t_.series, key, std::move(fresh));
  StoredSeries& series = t_.series.at(key);
  if (series.head.is_vector != row.is_vector || series.head.shape != row.shape) {
    return Contradiction("kind of a series");
  }
  const uint64_t last = series.chunks.empty() ? 0 : series.chunks.rbegin()->second.last_seq;
  if (row.first_seq <= last || row.last_seq < row.first_seq) return Contradiction("chunk");
  Set(series.chunks, row.first_seq, row);
  return OkStatus();
}

Status Change::Put(const StreamEventRow& row) {
  return Add(t_.events, {row.epoch, row.rank, row.seq}, row) ? OkStatus()
                                                             : Contradiction("stream event");
}

Status Change::Put(const LogRow& row) {
  const LogKey key{row.epoch, row.rank, row.stream};
  Add(t_.logs, key, {});
  auto& pieces = t_.logs.at(key);
  if (!pieces.empty() && row.offset < pieces.rbegin()->first + pieces.rbegin()->second.size()) {
    return Contradiction("output");
  }
  Set(pieces, row.offset, row.data);
  const uint64_t end = row.offset + row.data.size();
  if (end <= kLogHeadBytes + kLogTailBytes) return OkStatus();
  for (auto it = pieces.lower_bound(kLogHeadBytes);
       it != pieces.end() && it->first + it->second.size() <= end - kLogTailBytes;) {
    const auto next = std::next(it);
    Erase(pieces, it);
    it = next;
  }
  return OkStatus();
}

Status Change::Put(const CheckpointRow& row) {
  if (!t_.runs.contains(row.run)) return Contradiction("checkpoint");
  Set(t_.checkpoints, {row.run, row.step, row.epoch}, row);
  return OkStatus();
}

Status Change::Put(const SummaryRow& row) {
  if (!t_.runs.contains(row.run)) return Contradiction("summary");
  Set(t_.summaries, {row.run, row.series}, row);
  return OkStatus();
}

Status Change::Put(const SummaryReset& row) {
  if (!t_.runs.contains(row.run)) return Contradiction("summary");
  for (auto it = t_.summaries.lower_bound({row.run, ""});
       it != t_.summaries.end() && it->first.first == row.run;) {
    const auto next = std::next(it);
    Erase(t_.summaries, it);
    it = next;
  }
  return OkStatus();
}

Status Change::Put(const RunProgress& row) {
  const auto it = t_.runs.find(row.run);
  if (it == t_.runs.end()) return Contradiction("progress");
  Assign(it->second.step, std::optional<uint64_t>(row.step));
  return OkStatus();
}

Status Change::Put(const IdemRow& row) {
  if (const auto it = t_.idem.find(row.request_id);
      it != t_.idem.end() && it->second.expires_ms <= now_ms_) {
    Erase(t_.idem, it);
  }
  return Add(t_.idem, row.request_id, row) ? OkStatus() : Contradiction("request");
}

Status Change::Put(const WorkerRow& row) {
  Set(t_.workers, row.id, row);
  return OkStatus();
}

Status Change::Put(const HistoryRow& row) {
  Set(t_.history, t_.history.size(), row);
  return OkStatus();
}

Status Change::Put(const UsageRow& row) {
  Set(t_.usage, row.project, row);
  return OkStatus();
}

class MemoryChunks final : public ChunkSource {
 public:
  explicit MemoryChunks(const Tables& tables) : t_(tables) {}

  Result<std::vector<SeriesHead>> ListSeries(Epoch epoch) override {
    std::vector<SeriesHead> heads;
    for (auto it = t_.series.lower_bound({epoch, 0, ""});
         it != t_.series.end() && std::get<0>(it->first) == epoch && std::get<1>(it->first) == 0;
         ++it) {
      heads.push_back(it->second.head);
    }
    return heads;
  }
  Result<std::optional<SeriesHead>> FindSeries(Epoch epoch, const std::string& name) override {
    const auto it = t_.series.find({epoch, 0, name});
    if (it == t_.series.end()) return std::optional<SeriesHead>();
    return std::optional<SeriesHead>(it->second.head);
  }
  Result<std::vector<ChunkHead>> ListChunks(int64_t series) override {
    listed_.clear();
    std::vector<ChunkHead> heads;
    for (const auto& [key, stored] : t_.series) {
      if (stored.head.id != series) continue;
      for (const auto& [first_seq, chunk] : stored.chunks) {
        heads.push_back({.id = static_cast<int64_t>(listed_.size()),
                         .first_seq = first_seq,
                         .last_seq = chunk.last_seq,
                         .first_step = chunk.first_step,
                         .last_step = chunk.last_step,
                         .is_sorted = HasSortedSteps(chunk.blob)});
        listed_.push_back(&chunk);
      }
    }
    return heads;
  }
  // Of the series listed last.
  Result<std::string> ReadChunk(int64_t id) override {
    return listed_.at(static_cast<size_t>(id))->blob;
  }

 private:
  const Tables& t_;
  std::vector<const ChunkRow*> listed_;
};

class MemoryLog final : public LogSource {
 public:
  explicit MemoryLog(const std::map<uint64_t, std::string>& pieces) : pieces_(pieces) {}

  Result<std::optional<LogPiece>> FindFrom(uint64_t offset) override {
    auto it = pieces_.upper_bound(offset);
    if (it != pieces_.begin()) {
      const auto before = std::prev(it);
      if (before->first + before->second.size() > offset) it = before;
    }
    if (it == pieces_.end()) return std::optional<LogPiece>();
    return std::optional<LogPiece>(LogPiece{.offset = it->first, .data = it->second});
  }

 private:
  const std::map<uint64_t, std::string>& pieces_;
};

template <typename Base>
class MemoryReading : public Base {
 public:
  explicit MemoryReading(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}

  Result<SweepInfo> FindSweep(std::string_view selector, bool with_spec) override {
    const std::lock_guard lock(shared_->mu);
    const StoredSweep* sweep = Select(selector);
    if (sweep == nullptr) {
      return NotFound(StrCat("no sweep ", EscapeForTerminal(selector)));
    }
    SweepInfo info = Info(*sweep);
    if (with_spec) info.row.spec = sweep->row.spec;
    return info;
  }

  Result<SweepPage> ListSweeps(bool all, std::string_view page, size_t limit) override {
    const std::lock_guard lock(shared_->mu);
    const std::string query = StrCat("sweeps ", all);
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> token, ReadPageToken(page, query, 1));
    SweepPage sweeps;
    uint64_t last = 0;
    for (const StoredSweep* sweep : NewestFirst()) {
      if (!token.empty() && sweep->order >= token[0]) continue;
      if (!all && IsTerminal(sweep->status.state)) continue;
      if (sweeps.sweeps.size() == limit) {
        sweeps.next = MakePageToken(query, std::vector<uint64_t>{last});
        break;
      }
      sweeps.sweeps.push_back(Info(*sweep));
      last = sweep->order;
    }
    return sweeps;
  }

  Result<RunInfo> FindRun(std::string_view selector) override {
    const std::lock_guard lock(shared_->mu);
    const Status not_found = NotFound(StrCat("no run ", EscapeForTerminal(selector)));
    if (const Result<Uuid> id = Uuid::Parse(selector); id.ok()) {
      const auto run = t().runs.find({*id});
      if (run == t().runs.end()) return not_found;
      const LinkRow* found = nullptr;
      for (const auto& [key, link] : t().links) {
        if (link.run.value != *id) continue;
        if (found == nullptr || link.sweep == run->second.row.sweep) found = &link;
        if (link.sweep == run->second.row.sweep) break;
      }
      if (found == nullptr) return not_found;
      return Info(*found, {});
    }
    const size_t slash = selector.rfind('/');
    const bool is_bare = slash == std::string_view::npos;
    const std::optional<uint64_t> number =
        ParseUint64(is_bare ? selector : selector.substr(slash + 1));
    if (!number) return not_found;
    const std::string_view name = is_bare ? std::string_view("last") : selector.substr(0, slash);
    const StoredSweep* sweep = Select(name);
    if (sweep == nullptr) return NotFound(StrCat("no sweep ", EscapeForTerminal(name)));
    const auto link = t().links.find({sweep->order, *number});
    if (link == t().links.end()) return not_found;
    return Info(link->second, {});
  }

  Result<RunPage> ListRuns(const RunFilter& filter, std::string_view page, size_t limit) override {
    const std::lock_guard lock(shared_->mu);
    std::string query = "runs ";
    if (filter.sweep) query += filter.sweep->value.ToString();
    for (const RunState state : filter.states) query += StrCat(" ", static_cast<uint32_t>(state));
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> token, ReadPageToken(page, query, 2));
    if (filter.sweep && !t().sweeps.contains(*filter.sweep)) {
      return NotFound(StrCat("no sweep ", filter.sweep->value.ToString()));
    }
    RunPage runs;
    std::pair<uint64_t, uint64_t> last;
    for (const StoredSweep* sweep : NewestFirst()) {
      if (filter.sweep && sweep->row.id != *filter.sweep) continue;
      runs.total += Count(sweep->status, filter.states);
      if (!token.empty() && sweep->order > token[0]) continue;
      const uint64_t after = !token.empty() && sweep->order == token[0] ? token[1] : 0;
      for (auto it = t().links.upper_bound({sweep->order, after});
           it != t().links.end() && it->first.first == sweep->order && runs.next.empty(); ++it) {
        const RunState state = t().runs.at(it->second.run).status.state;
        if (!filter.states.empty() &&
            std::ranges::find(filter.states, state) == filter.states.end()) {
          continue;
        }
        if (runs.runs.size() == limit) {
          runs.next = MakePageToken(query, std::vector<uint64_t>{last.first, last.second});
          break;
        }
        runs.runs.push_back(Info(it->second, filter.series));
        last = it->first;
      }
    }
    return runs;
  }

  Status ScanRuns(const ScanQuery& query,
                  const std::function<bool(const RunFacts&)>& visit) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckScan(query));
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t order, Order(query.sweep));
    for (auto it = t().links.upper_bound({order, query.after});
         it != t().links.end() && it->first.first == order; ++it) {
      if (!visit(Facts(it->second, query.series))) break;
    }
    return OkStatus();
  }

  Result<std::vector<RunInfo>> GetRuns(SweepId sweep, std::span<const uint64_t> numbers,
                                       std::span<const std::string> series) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t order, Order(sweep));
    std::vector<RunInfo> runs;
    for (const uint64_t number : numbers) {
      const auto link = t().links.find({order, number});
      if (link == t().links.end()) return NotFound(StrCat("no run ", number));
      runs.push_back(Info(link->second, series));
    }
    return runs;
  }

  Result<std::string> GetStrategyState(SweepId sweep) override {
    const std::lock_guard lock(shared_->mu);
    const auto found = t().strategies.find(sweep);
    if (found == t().strategies.end()) {
      return NotFound(StrCat("no strategy state of sweep ", sweep.value.ToString()));
    }
    return found->second.state;
  }

  Result<RunDocument> GetRunDocument(RunId run) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(run));
    const RunRow& row = t().runs.at(run).row;
    return RunDocument{.spec = row.spec, .attempt_spec = row.attempt_spec};
  }

  Result<std::vector<AttemptInfo>> ListAttempts(RunId run) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(run));
    std::vector<AttemptInfo> attempts;
    for (const auto& [epoch, attempt] : t().attempts) {
      if (attempt.row.run != run) continue;
      AttemptInfo info{.row = attempt.row, .status = attempt.status};
      for (const auto& [rank, member] : attempt.members) info.members.push_back(member);
      for (const auto& [rank, stream] : attempt.streams) info.streams.push_back(stream);
      info.worker_host = Host(attempt.row.worker);
      attempts.push_back(std::move(info));
    }
    return attempts;
  }

  Result<std::vector<CheckpointRow>> ListCheckpoints(RunId run) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(run));
    std::vector<CheckpointRow> rows;
    for (auto it = t().checkpoints.lower_bound({run, 0, Epoch{}});
         it != t().checkpoints.end() && std::get<0>(it->first) == run; ++it) {
      rows.push_back(it->second);
    }
    return rows;
  }

  Result<std::vector<HistoryRow>> ListHistory(Uuid ref, size_t limit) override {
    const std::lock_guard lock(shared_->mu);
    std::vector<HistoryRow> rows;
    for (const auto& [order, row] : t().history) {
      if (row.ref == ref) rows.push_back(row);
    }
    if (rows.size() > limit) rows.erase(rows.begin(), rows.end() - static_cast<int64_t>(limit));
    return rows;
  }

  Result<std::vector<SummaryRow>> ListSummaries(RunId run) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(run));
    return Summaries(run);
  }

  Result<CurvePage> GetCurve(const CurveQuery& query) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(query.run));
    MemoryChunks chunks(t());
    return ReadCurve(chunks, Starts(query.run), query);
  }

  Result<LogPage> ReadLog(RunId run, uint32_t attempt, scheduler::LogStream stream, uint64_t offset,
                          size_t max_bytes) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(run));
    const StoredAttempt* newest = nullptr;
    for (const auto& [epoch, stored] : t().attempts) {
      if (stored.row.run == run && (attempt == 0 || stored.row.ordinal == attempt)) {
        newest = &stored;
      }
    }
    if (newest == nullptr) {
      return NotFound(StrCat("run ", run.value.ToString(), " has no attempt ", attempt));
    }
    LogStreamState state{.attempt = newest->row.ordinal};
    if (const auto it = newest->streams.find(0); it != newest->streams.end()) {
      const StreamRow& row = it->second;
      state.end = stream == scheduler::LogStream::kStdout ? row.stdout_end : row.stderr_end;
      state.is_complete = IsOutputComplete(newest->status.state, row);
    }
    static const std::map<uint64_t, std::string> kNothing;
    const auto pieces = t().logs.find({newest->row.epoch, 0, stream});
    MemoryLog log(pieces == t().logs.end() ? kNothing : pieces->second);
    return AssembleLog(log, state, offset, max_bytes);
  }

  Result<SweepInfo> FindSweepByHash(std::string_view project, std::string_view spec_hash) override {
    const std::lock_guard lock(shared_->mu);
    for (const StoredSweep* sweep : NewestFirst()) {
      if (sweep->row.project == project && sweep->row.spec_hash == spec_hash &&
          sweep->status.state != scheduler::SweepState::kCancelling &&
          sweep->status.state != scheduler::SweepState::kCancelled) {
        return Info(*sweep);
      }
    }
    return NotFound(StrCat("no sweep with document ", EscapeForTerminal(spec_hash)));
  }

  Result<std::vector<std::optional<ValidRun>>> FindValidRuns(
      std::string_view project, std::span<const std::string> run_keys) override {
    const std::lock_guard lock(shared_->mu);
    std::vector<std::optional<ValidRun>> found;
    for (const std::string& key : run_keys) {
      const StoredRun* best = nullptr;
      for (const auto& [id, run] : t().runs) {
        if (run.row.run_key != key || run.row.project != project || !IsValid(run)) continue;
        if (best == nullptr ||
            std::pair(run.row.rerun, run.order) > std::pair(best->row.rerun, best->order)) {
          best = &run;
        }
      }
      found.push_back(best == nullptr ? std::optional<ValidRun>()
                                      : ValidRun{.id = best->row.id, .state = best->status.state});
    }
    return found;
  }

 protected:
  const Tables& t() const { return shared_->tables; }

  Status CheckRun(RunId run) const {
    return t().runs.contains(run) ? OkStatus() : NotFound(StrCat("no run ", run.value.ToString()));
  }

  std::vector<const StoredSweep*> NewestFirst() const {
    std::vector<const StoredSweep*> sweeps;
    for (const auto& [id, sweep] : t().sweeps) sweeps.push_back(&sweep);
    std::ranges::sort(sweeps, std::greater<>(), &StoredSweep::order);
    return sweeps;
  }

  const StoredSweep* Select(std::string_view selector) const {
    const std::vector<const StoredSweep*> sweeps = NewestFirst();
    if (selector == "last") return sweeps.empty() ? nullptr : sweeps.front();
    const Result<Uuid> id = Uuid::Parse(selector);
    for (const StoredSweep* sweep : sweeps) {
      if (id.ok() ? sweep->row.id.value == *id : sweep->row.name == selector) return sweep;
    }
    return nullptr;
  }

  static SweepInfo Info(const StoredSweep& sweep) {
    SweepInfo info{.row = sweep.row, .status = sweep.status};
    info.row.spec.clear();
    return info;
  }

  static uint64_t Count(const SweepStatus& status, std::span<const RunState> states) {
    if (states.empty()) return status.proposed + status.retried;
    uint64_t total = 0;
    for (const RunState state : std::set<RunState>(states.begin(), states.end())) {
      total += status.counts[static_cast<size_t>(state)];
    }
    return total;
  }

  std::string Host(WorkerId worker) const {
    const auto it = t().workers.find(worker);
    return it == t().workers.end() ? std::string() : it->second.host;
  }

  Result<uint64_t> Order(SweepId sweep) const {
    const auto found = t().sweeps.find(sweep);
    if (found == t().sweeps.end()) return NotFound(StrCat("no sweep ", sweep.value.ToString()));
    return found->second.order;
  }

  RunFacts Facts(const LinkRow& link, std::span<const std::string> series) const {
    const StoredRun& run = t().runs.at(link.run);
    RunFacts facts{.number = link.number,
                   .cell = link.cell,
                   .columns = std::make_shared<const Columns>(link.columns),
                   .state = run.status.state,
                   .run = link.run,
                   .seed = run.row.seed,
                   .router = run.row.router,
                   .attempts = run.status.attempts,
                   .step = run.step.value_or(0),
                   .steps_total = run.row.steps_total,
                   .active_ms = run.status.active_ms,
                   .slots = run.row.need.count,
                   .is_gpu = run.row.need.kind == scheduler::SlotKind::kGpu,
                   .is_reused = run.row.sweep != link.sweep};
    if (facts.state == RunState::kFailed) {
      const auto it = t().attempts.find(run.status.current_epoch);
      if (it != t().attempts.end()) facts.end_class = it->second.status.end_class;
    }
    for (const std::string& name : series) {
      RunFacts::Value& value = facts.values.emplace_back();
      const auto it = t().summaries.find({link.run, name});
      if (it == t().summaries.end()) continue;
      value = {.is_present = true,
               .last = it->second.last,
               .has_best = it->second.has_best,
               .best = it->second.best};
    }
    return facts;
  }

  RunInfo Info(const LinkRow& link, std::span<const std::string> series) const {
    const StoredRun& run = t().runs.at(link.run);
    RunInfo info{.link = link,
                 .sweep_name = t().sweeps.at(link.sweep).row.name,
                 .row = run.row,
                 .status = run.status,
                 .step = run.step.value_or(0)};
    info.row.spec.clear();
    info.row.attempt_spec.clear();
    if (const auto it = t().attempts.find(run.status.current_epoch); it != t().attempts.end()) {
      info.worker = it->second.row.worker;
      info.worker_host = Host(info.worker);
    }
    for (const std::string& name : series) {
      const auto it = t().summaries.find({link.run, name});
      if (it != t().summaries.end()) info.summaries.push_back(it->second);
    }
    return info;
  }

  std::vector<SummaryRow> Summaries(RunId run) const {
    std::vector<SummaryRow> rows;
    for (auto it = t().summaries.lower_bound({run, ""});
         it != t().summaries.end() && it->first.first == run; ++it) {
      rows.push_back(it->second);
    }
    return rows;
  }

  std::vector<results::AttemptStart> Starts(RunId run) const {
    std::vector<results::AttemptStart> starts;
    for (const auto& [epoch, attempt] : t().attempts) {
      if (attempt.row.run != run) continue;
      starts.push_back({.epoch = epoch,
                        .ordinal = attempt.row.ordinal,
                        .is_reported = attempt.status.start_reported,
                        .resumed_epoch = attempt.status.resumed_epoch,
                        .resumed_step = attempt.status.resumed_step});
    }
    return starts;
  }

  bool IsValid(const StoredRun& run) const {
    if (run.status.state <= RunState::kSucceeded) return true;
    const auto it = t().attempts.find(run.status.current_epoch);
    return run.status.state == RunState::kFailed && it != t().attempts.end() &&
           it->second.status.end_class == scheduler::EndClass::kGuard;
  }

  const std::shared_ptr<Shared> shared_;
};

class MemoryStore final : public MemoryReading<Store> {
 public:
  MemoryStore() : MemoryReading(std::make_shared<Shared>()) {}

  Result<Snapshot> Load() override;

  Status Commit(std::span<const Write> writes) override {
    const std::lock_guard lock(shared_->mu);
    Change change(&shared_->tables);
    change.SetNow(now_ms_);
    // Links last, as they may come before a run of the same commit.
    for (const bool is_link_pass : {false, true}) {
      for (const Write& write : writes) {
        if (std::holds_alternative<LinkRow>(write) != is_link_pass) continue;
        const Status status = std::visit([&](const auto& row) { return change.Put(row); }, write);
        if (status.ok()) continue;
        change.Undo();
        return status;
      }
    }
    return OkStatus();
  }

  Result<IdemRow> FindIdem(std::string_view request_id, int64_t now_ms) override {
    const std::lock_guard lock(shared_->mu);
    now_ms_ = now_ms;
    const auto it = t().idem.find(std::string(request_id));
    if (it == t().idem.end() || it->second.expires_ms <= now_ms) {
      return NotFound(StrCat("no request ", EscapeForTerminal(request_id)));
    }
    return it->second;
  }

  Result<std::vector<SummaryRow>> RebuildSummaries(RunId run, std::optional<Epoch> head,
                                                   uint64_t step) override {
    const std::lock_guard lock(shared_->mu);
    SWITCHYARD_RETURN_IF_ERROR(CheckRun(run));
    MemoryChunks chunks(t());
    const std::vector<results::AttemptStart> starts = Starts(run);
    const Epoch newest = head.has_value() ? *head : results::CanonicalHead(starts);
    return Summarise(chunks, run, results::CanonicalSegments(starts, newest, step));
  }

  Result<RecordedAttempt> FindRecorded(RunId run, Epoch epoch) override {
    const std::lock_guard lock(shared_->mu);
    RecordedAttempt recorded{.is_stored = t().attempts.contains(epoch), .run = {}};
    if (const auto known = t().runs.find(run); known != t().runs.end()) {
      recorded.run.emplace(known->second.row, known->second.status);
      recorded.run->first.spec.clear();
      recorded.run->first.attempt_spec.clear();
    }
    return recorded;
  }

  Result<bool> IsSweepNameTaken(std::string_view name) override {
    const std::lock_guard lock(shared_->mu);
    return std::ranges::any_of(t().sweeps,
                               [&](const auto& entry) { return entry.second.row.name == name; });
  }

  Result<bool> DoIdleWork(int) override {
    const std::lock_guard lock(shared_->mu);
    std::erase_if(shared_->tables.idem,
                  [this](const auto& entry) { return entry.second.expires_ms <= now_ms_; });
    return false;
  }
  bool IsCheckpointed() const override { return true; }
  StoreStats Stats() override { return {}; }
  Result<std::unique_ptr<ReadStore>> OpenReader() override {
    return std::unique_ptr<ReadStore>(new MemoryReading<ReadStore>(shared_));
  }
  Status Close() override { return OkStatus(); }

 private:
  void LoadRuns(Snapshot* out) const;
  void LoadAttempts(Snapshot* out) const;

  int64_t now_ms_ = 0;
};

void MemoryStore::LoadRuns(Snapshot* out) const {
  // A run that has ended stays while a stream of it is open.
  std::set<RunId> open;
  for (const auto& [epoch, attempt] : t().attempts) {
    for (const auto& [rank, stream] : attempt.streams) {
      if (!stream.sealed) open.insert(attempt.row.run);
    }
  }
  std::vector<const StoredRun*> runs;
  for (const auto& [id, run] : t().runs) {
    if (!IsTerminal(run.status.state) || open.contains(id)) runs.push_back(&run);
  }
  std::ranges::sort(runs, {}, &StoredRun::order);
  for (const StoredRun* run : runs) {
    out->runs.push_back(run->row);
    out->runs.back().spec.clear();
    out->runs.back().attempt_spec.clear();
    out->run_status.push_back(run->status);
    if (run->step) out->progress.push_back({.run = run->row.id, .step = *run->step});
    for (const auto& [key, link] : t().links) {
      if (link.run != run->row.id || IsTerminal(t().sweeps.at(link.sweep).status.state)) continue;
      out->links.push_back(link);
      out->links.back().columns.clear();
    }
    std::vector<CheckpointRow> published;
    for (const auto& [key, checkpoint] : t().checkpoints) {
      if (checkpoint.run == run->row.id &&
          checkpoint.state == scheduler::CheckpointState::kPublished) {
        published.push_back(checkpoint);
      }
    }
    std::ranges::sort(published, {},
                      [](const CheckpointRow& row) { return std::pair(row.epoch, row.step); });
    std::ranges::move(published, std::back_inserter(out->checkpoints));
    std::ranges::move(Summaries(run->row.id), std::back_inserter(out->summaries));
  }
}

void MemoryStore::LoadAttempts(Snapshot* out) const {
  for (const auto& [epoch, attempt] : t().attempts) {
    out->last_epoch = std::max(out->last_epoch, epoch);
    const bool is_open = std::ranges::any_of(
        attempt.streams, [](const auto& entry) { return !entry.second.sealed; });
    if (IsTerminal(attempt.status.state) && !is_open) continue;
    out->attempts.push_back(attempt.row);
    out->attempt_status.push_back(attempt.status);
    for (const auto& [rank, member] : attempt.members) out->members.push_back(member);
    for (const auto& [rank, stream] : attempt.streams) out->streams.push_back(stream);
  }
}

Result<Snapshot> MemoryStore::Load() {
  const std::lock_guard lock(shared_->mu);
  Snapshot snapshot;
  snapshot.meta = {
      .cluster_id = Uuid{.high = 1, .low = 1}.ToString(), .generation = 1, .boot = 1, .schema = 1};
  std::vector<const StoredSweep*> sweeps = NewestFirst();
  std::ranges::reverse(sweeps);
  for (const StoredSweep* sweep : sweeps) {
    if (IsTerminal(sweep->status.state)) continue;
    snapshot.sweeps.push_back(Info(*sweep).row);
    snapshot.sweep_status.push_back(sweep->status);
  }
  LoadRuns(&snapshot);
  LoadAttempts(&snapshot);
  for (const auto& [key, checkpoint] : t().checkpoints) {
    if (checkpoint.state == scheduler::CheckpointState::kSuperseded ||
        checkpoint.state == scheduler::CheckpointState::kTombstoned) {
      snapshot.checkpoints.push_back(checkpoint);
    }
  }
  for (const auto& [project, usage] : t().usage) snapshot.usage.push_back(usage);
  for (const auto& [id, worker] : t().workers) snapshot.workers.push_back(worker);
  return snapshot;
}

}  // namespace

std::unique_ptr<Store> MakeMemoryStore() { return std::make_unique<MemoryStore>(); }

}  // namespace switchyard::store
