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
constexpr int kFirstValueColumn = 12;
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

// One left join for each series; the names of series are looked up before.
std::string ScanSql(size_t series) {
  std::string columns =
      "SELECT l.number, l.cell, l.columns, r.uuid, r.seed, r.state, r.router, r.attempts, r.step, "
      "r.steps_total, r.active_ms, a.end_class";
  std::string joins =
      " FROM links l CROSS JOIN runs r ON r.id = l.run LEFT JOIN attempts a "
      "ON r.state = 7 AND a.epoch = r.current_epoch";
  for (size_t i = 0; i < series; ++i) {
    columns += StrCat(", m", i, ".last, m", i, ".has_best, m", i, ".best");
    joins += StrCat(" LEFT JOIN summaries m", i, " ON m", i, ".run = l.run AND m", i, ".name = ?",
                    i + 3);
  }
  return columns + joins + " WHERE l.sweep = ?1 AND l.number > ?2 ORDER BY l.number";
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
  Statement read = db_.Prepare(ScanSql(names.size()));
  read.Bind(1, sweep).Bind(2, query.after);
  for (size_t i = 0; i < names.size(); ++i) read.Bind(static_cast<int>(i) + 3, names[i]);
  SharedColumns columns;
  RunFacts facts;
  facts.values.resize(names.size());
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return OkStatus();
    facts.number = read.Uint(0);
    facts.cell = read.Uint(1);
    SWITCHYARD_ASSIGN_OR_RETURN(facts.columns, columns.Find(read.Bytes(2)));
    facts.run = {read.Id(3)};
    facts.seed = read.Uint(4);
    facts.state = static_cast<scheduler::RunState>(read.Int(5));
    facts.router.assign(read.Bytes(6));
    facts.attempts = static_cast<uint32_t>(read.Uint(7));
    facts.step = read.Uint(8);
    facts.steps_total = read.Uint(9);
    facts.active_ms = read.Uint(10);
    facts.end_class = static_cast<scheduler::EndClass>(read.Int(11));
    for (size_t i = 0; i < names.size(); ++i) {
      const int column = kFirstValueColumn + kColumnsPerValue * static_cast<int>(i);
      facts.values[i] = {.is_present = !read.IsNull(column),
                         .last = std::bit_cast<double>(read.Uint(column)),
                         .has_best = read.Int(column + 1) != 0,
                         .best = std::bit_cast<double>(read.Uint(column + 2))};
    }
    if (!visit(facts)) return OkStatus();
  }
}

}  // namespace switchyard::store
