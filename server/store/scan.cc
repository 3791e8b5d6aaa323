#include <bit>
#include <unordered_map>

#include "common/base/strings.h"
#include "server/store/pack.h"
#include "server/store/row_reader.h"
#include "server/store/scan.h"

namespace switchyard::store {
namespace {

// Distinct columns that are shared among the runs of a scan; more are decoded run by run.
constexpr size_t kSharedColumnsMax = 100'000;
constexpr int kColumnsPerValue = 3;

// Columns by their packed form: a sweep has many runs, and few cells.
class SharedColumns {
 public:
  Result<std::shared_ptr<const Columns>> Find(std::string_view packed) {
    key_.assign(packed);
    if (const auto found = known_.find(key_); found != known_.end()) return found->second;
    SWITCHYARD_ASSIGN_OR_RETURN(Columns columns, UnpackColumns(packed));
    auto shared = std::make_shared<const Columns>(std::move(columns));
    if (known_.size() < kSharedColumnsMax) known_.emplace(key_, shared);
    return shared;
  }

 private:
  std::string key_;
  std::unordered_map<std::string, std::shared_ptr<const Columns>> known_;
};

constexpr int kLinkColumns = 4;
constexpr int kRunColumns = 11;

// One left join for each series; the names of series are looked up before.
std::string ScanSql(size_t series, bool with_run) {
  std::string columns = "SELECT l.number, l.cell, l.columns, l.state";
  std::string joins = " FROM links l";
  if (with_run) {
    columns +=
        ", r.uuid, r.seed, r.router, r.attempts, r.step, r.steps_total, r.active_ms, a.end_class, "
        "r.need_count, r.need_kind, r.sweep <> l.sweep";
    joins +=
        " CROSS JOIN runs r ON r.id = l.run LEFT JOIN attempts a "
        "ON r.state = 7 AND a.epoch = r.current_epoch";
  }
  for (size_t i = 0; i < series; ++i) {
    columns += StrCat(", m", i, ".last, m", i, ".has_best, m", i, ".best");
    joins += StrCat(" LEFT JOIN summaries m", i, " ON m", i, ".run = l.run AND m", i, ".name = ?",
                    i + 3);
  }
  return columns + joins + " WHERE l.sweep = ?1 AND l.number > ?2 ORDER BY l.number";
}

void ReadRunColumns(const Statement& read, RunFacts* facts) {
  int at = kLinkColumns;
  facts->run = {read.Id(at++)};
  facts->seed = read.Uint(at++);
  facts->router.assign(read.Bytes(at++));
  facts->attempts = static_cast<uint32_t>(read.Uint(at++));
  facts->step = read.Uint(at++);
  facts->steps_total = read.Uint(at++);
  facts->active_ms = read.Uint(at++);
  facts->end_class = static_cast<scheduler::EndClass>(read.Int(at++));
  facts->slots = static_cast<uint32_t>(read.Uint(at++));
  facts->is_gpu = static_cast<scheduler::SlotKind>(read.Int(at++)) == scheduler::SlotKind::kGpu;
  facts->is_reused = read.Int(at++) != 0;
}

RunFacts::Value ReadValue(const Statement& read, int column) {
  if (read.IsNull(column)) return {};
  RunFacts::Value value{.is_present = true, .last = std::bit_cast<double>(read.Uint(column))};
  value.has_best = read.Int(column + 1) != 0;
  if (value.has_best) value.best = std::bit_cast<double>(read.Uint(column + 2));
  return value;
}

}  // namespace

Result<Columns> UnpackColumns(std::string_view bytes) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<std::string> texts, UnpackTexts(bytes));
  Columns columns;
  for (size_t i = 0; i + 1 < texts.size(); i += 2) columns.emplace_back(texts[i], texts[i + 1]);
  return columns;
}

Status CheckScan(const ScanQuery& query) {
  if (query.series.size() <= kScanSeriesMax) return OkStatus();
  return InvalidArgument(StrCat("the question names ", query.series.size(), " series; at most ",
                                kScanSeriesMax, " are read at once"));
}

Status RowReader::ScanRuns(const ScanQuery& query,
                           const std::function<bool(const RunFacts&)>& visit) {
  SWITCHYARD_RETURN_IF_ERROR(CheckScan(query));
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t sweep, SweepKey(query.sweep.value.ToString()));
  std::vector<int64_t> names;
  for (const std::string& series : query.series) {
    Statement find = db_.Prepare("SELECT id FROM names WHERE name = ?1");
    find.Bind(1, series);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
    names.push_back(has_row ? find.Int(0) : -1);  // no run has a point of it
  }
  Statement read = db_.Prepare(ScanSql(names.size(), query.with_run));
  read.Bind(1, sweep).Bind(2, query.after);
  for (size_t i = 0; i < names.size(); ++i) read.Bind(static_cast<int>(i) + 3, names[i]);
  SharedColumns columns;
  RunFacts facts;
  facts.values.resize(names.size());
  const int first_value = kLinkColumns + (query.with_run ? kRunColumns : 0);
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    facts.number = read.Uint(0);
    facts.cell = read.Uint(1);
    SWITCHYARD_ASSIGN_OR_RETURN(facts.columns, columns.Find(read.Bytes(2)));
    facts.state = static_cast<scheduler::RunState>(read.Int(3));
    if (query.with_run) ReadRunColumns(read, &facts);
    for (size_t i = 0; i < names.size(); ++i) {
      facts.values[i] = ReadValue(read, first_value + kColumnsPerValue * static_cast<int>(i));
    }
    if (!visit(facts)) return OkStatus();
  }
}

}  // namespace switchyard::store
