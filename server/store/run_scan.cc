#include "server/store/run_scan.h"

#include <bit>
#include <utility>

#include "common/base/strings.h"
#include "server/store/scan.h"

namespace switchyard::store {
namespace {

// Distinct columns that are shared among the runs of a scan; more are decoded run by run.
constexpr size_t kSharedColumnsMax = 100'000;
constexpr int kColumnsPerValue = 3;

constexpr int kLinkColumns = 5;
// One range in so many is hinted, whatever the ranges before have shown.
constexpr uint64_t kRangesPerProbe = 16;

// What the facts are read from, in the order of their bits.
struct FactColumns {
  RunFact fact;
  std::string_view sql;
};
constexpr FactColumns kFactColumns[] = {
    {kFactRun, ", r.uuid"},
    {kFactSeed, ", r.seed"},
    {kFactEndClass, ", a.end_class"},
    {kFactRouter, ", r.router"},
    {kFactAttempts, ", r.attempts"},
    {kFactStep, ", r.step"},
    {kFactStepsTotal, ", r.steps_total"},
    {kFactActiveMs, ", r.active_ms"},
    {kFactSlots, ", r.need_count, r.need_kind"},
    {kFactIsReused, ", r.sweep <> l.sweep"},
};

// One left join for each series; the names of series are looked up before.
std::string ScanSql(size_t series, uint32_t run_facts) {
  std::string columns = "SELECT l.number, l.cell, l.columns, l.state, l.run";
  std::string joins = " FROM links l";
  for (const FactColumns& one : kFactColumns) {
    if ((run_facts & one.fact) != 0) columns += one.sql;
  }
  if (run_facts != 0) joins += " CROSS JOIN runs r ON r.id = l.run";
  if ((run_facts & kFactEndClass) != 0) {
    joins += " LEFT JOIN attempts a ON r.state = 7 AND a.epoch = r.current_epoch";
  }
  for (size_t i = 0; i < series; ++i) {
    columns += StrCat(", m", i, ".last, m", i, ".has_best, m", i, ".best");
    joins += StrCat(" LEFT JOIN summaries m", i, " ON m", i, ".run = l.run AND m", i, ".name = ?",
                    i + 4);
  }
  return columns + joins +
         " WHERE l.sweep = ?1 AND l.number > ?2 AND l.number <= ?3 ORDER BY l.number";
}

// The columns behind those of the link; gives the first column behind them.
int ReadRunColumns(const Statement& read, uint32_t run_facts, RunFacts* facts) {
  int at = kLinkColumns;
  const auto has = [run_facts](RunFact fact) { return (run_facts & fact) != 0; };
  if (has(kFactRun)) facts->run = {read.Id(at++)};
  if (has(kFactSeed)) facts->seed = read.Uint(at++);
  if (has(kFactEndClass)) facts->end_class = static_cast<scheduler::EndClass>(read.Int(at++));
  if (has(kFactRouter)) facts->router.assign(read.Bytes(at++));
  if (has(kFactAttempts)) facts->attempts = static_cast<uint32_t>(read.Uint(at++));
  if (has(kFactStep)) facts->step = read.Uint(at++);
  if (has(kFactStepsTotal)) facts->steps_total = read.Uint(at++);
  if (has(kFactActiveMs)) facts->active_ms = read.Uint(at++);
  if (has(kFactSlots)) {
    facts->slots = static_cast<uint32_t>(read.Uint(at++));
    facts->is_gpu = static_cast<scheduler::SlotKind>(read.Int(at++)) == scheduler::SlotKind::kGpu;
  }
  if (has(kFactIsReused)) facts->is_reused = read.Int(at++) != 0;
  return at;
}

RunFacts::Value ReadValue(const Statement& read, int column) {
  if (read.IsNull(column)) return {};
  RunFacts::Value value{.is_present = true, .last = std::bit_cast<double>(read.Uint(column))};
  value.has_best = read.Int(column + 1) != 0;
  if (value.has_best) value.best = std::bit_cast<double>(read.Uint(column + 2));
  return value;
}

}  // namespace

Result<const SharedColumns::ByPacked::value_type*> SharedColumns::Find(
    std::string_view packed, std::shared_ptr<const Columns>* out) {
  const std::lock_guard lock(mu_);
  std::string key(packed);
  auto known = known_.find(key);
  if (known == known_.end()) {
    SWITCHYARD_ASSIGN_OR_RETURN(Columns columns, UnpackColumns(packed));
    *out = std::make_shared<const Columns>(std::move(columns));
    if (known_.size() == kSharedColumnsMax) return nullptr;
    known = known_.emplace(std::move(key), *out).first;
  }
  *out = known->second;
  return &*known;
}

RangeScan::RangeScan(Connection& db, const ScanKeys& keys, SharedColumns* shared)
    : keys_(keys),
      shared_(*shared),
      hint_(keys.make_hint ? keys.make_hint() : nullptr),
      full_(db.Prepare(ScanSql(keys.names.size(), keys.run_facts))) {
  if (!hint_ || keys.names.empty()) return;
  light_.emplace(db.Prepare(ScanSql(0, keys.run_facts)));
  value_.emplace(
      db.Prepare("SELECT last, has_best, best FROM summaries WHERE run = ?1 AND name = ?2"));
}

void RangeScan::Start(uint64_t after, uint64_t last) {
  if (hint_ && ranges_++ % kRangesPerProbe == 0) {
    is_hinted_ = true;
    asked_ = 0;
    wanted_ = 0;
  } else {
    is_hinted_ = hint_ && (!light_ || 2 * wanted_ <= asked_);
  }
  const bool is_light = is_hinted_ && light_;
  Statement& read = is_light ? *light_ : full_;
  read.Reset();
  read.Bind(1, keys_.sweep).Bind(2, after).Bind(3, last);
  for (size_t i = 0; !is_light && i < keys_.names.size(); ++i) {
    read.Bind(static_cast<int>(i) + 4, keys_.names[i]);
  }
}

Status RangeScan::FindColumns(uint64_t cell, std::string_view packed,
                              std::shared_ptr<const Columns>* out) {
  const auto last = by_cell_.find(cell);
  if (last != by_cell_.end() && last->second->first == packed) {
    *out = last->second->second;
    return OkStatus();
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const SharedColumns::ByPacked::value_type* known,
                              shared_.Find(packed, out));
  if (known == nullptr) return OkStatus();
  if (last != by_cell_.end()) {
    last->second = known;
  } else if (by_cell_.size() < kSharedColumnsMax) {
    by_cell_.emplace(cell, known);
  }
  return OkStatus();
}

Status RangeScan::LookUpValues(int64_t run, RunFacts* facts) {
  for (size_t i = 0; i < keys_.names.size(); ++i) {
    value_->Reset();
    value_->Bind(1, run).Bind(2, keys_.names[i]);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, value_->Step());
    facts->values[i] = has_row ? ReadValue(*value_, 0) : RunFacts::Value();
  }
  return OkStatus();
}

Result<bool> RangeScan::Next(RunFacts* facts) {
  const bool is_light = is_hinted_ && light_;
  Statement& read = is_light ? *light_ : full_;
  facts->values.resize(keys_.names.size());
  while (true) {
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return false;
    facts->number = read.Uint(0);
    facts->cell = read.Uint(1);
    SWITCHYARD_RETURN_IF_ERROR(FindColumns(facts->cell, read.Bytes(2), &facts->columns));
    facts->state = static_cast<scheduler::RunState>(read.Int(3));
    int column = ReadRunColumns(read, keys_.run_facts, facts);
    if (is_hinted_) {
      ++asked_;
      if (!hint_(*facts)) continue;
      ++wanted_;
    }
    if (is_light) {
      SWITCHYARD_RETURN_IF_ERROR(LookUpValues(read.Int(4), facts));
      return true;
    }
    for (RunFacts::Value& value : facts->values) {
      value = ReadValue(read, column);
      column += kColumnsPerValue;
    }
    return true;
  }
}

}  // namespace switchyard::store
