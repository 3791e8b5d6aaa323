#include "server/store/scan.h"

#include "common/base/strings.h"
#include "server/store/pack.h"
#include "server/store/row_reader.h"
#include "server/store/run_scan.h"

namespace switchyard::store {

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

Result<uint64_t> RowReader::LastNumber(SweepId sweep) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int64_t key, SweepKey(sweep.value.ToString()));
  Statement read = db_.Prepare("SELECT max(number) FROM links WHERE sweep = ?1");
  read.Bind(1, key);
  SWITCHYARD_RETURN_IF_ERROR(read.Step().status());
  return read.Uint(0);  // of NULL: 0
}

Status RowReader::ScanRuns(const ScanQuery& query,
                           const std::function<bool(const RunFacts&)>& visit, Connection* helper) {
  SWITCHYARD_RETURN_IF_ERROR(CheckScan(query));
  ScanKeys keys{.names = {}, .run_facts = query.run_facts, .make_hint = query.make_hint};
  SWITCHYARD_ASSIGN_OR_RETURN(keys.sweep, SweepKey(query.sweep.value.ToString()));
  for (const std::string& series : query.series) {
    Statement find = db_.Prepare("SELECT id FROM names WHERE name = ?1");
    find.Bind(1, series);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, find.Step());
    keys.names.push_back(has_row ? find.Int(0) : -1);
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const uint64_t last, LastNumber(query.sweep));
  return ScanInBlocks(db_, helper, keys, query.after, last, visit);
}

}  // namespace switchyard::store
