#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/status.h"
#include "server/store/rows.h"
#include "server/store/sqlite.h"

// The scan over the runs of a sweep in SQLite, by one thread or two.
namespace switchyard::store {

// Columns by their packed form, for all threads of a scan: a sweep has many runs, and few cells.
class SharedColumns {
 public:
  using ByPacked = std::unordered_map<std::string, std::shared_ptr<const Columns>>;

  // The entry of this packed form, which stays as it is as long as this object; null: too many are
  // known, and `*out` is of this call alone.
  Result<const ByPacked::value_type*> Find(std::string_view packed,
                                           std::shared_ptr<const Columns>* out);

 private:
  std::mutex mu_;
  ByPacked known_;
};

// What the statements of a scan are made of: the query with keys for its names.
struct ScanKeys {
  int64_t sweep = 0;
  std::vector<int64_t> names;  // one per series; -1: no run has a point of it
  uint32_t run_facts = 0;
  std::function<std::function<bool(const RunFacts&)>()> make_hint;
};

// The runs of a range of numbers over one connection. The connection's thread only.
class RangeScan {
 public:
  RangeScan(Connection& db, const ScanKeys& keys, SharedColumns* shared);

  // Numbers above `after` up to `last` from now on.
  void Start(uint64_t after, uint64_t last);
  // The next run by number; false: none is left. `facts` may be those of an earlier call. Leaves
  // out runs that the hint refuses when few of the runs before were worth having: then their
  // summaries are looked up one by one.
  Result<bool> Next(RunFacts* facts);

 private:
  Status FindColumns(uint64_t cell, std::string_view packed, std::shared_ptr<const Columns>* out);

  Status LookUpValues(int64_t run, RunFacts* facts);

  const ScanKeys& keys_;
  SharedColumns& shared_;
  const std::function<bool(const RunFacts&)> hint_;  // may be empty
  Statement full_;
  // Where there is a hint and there are series: without values, and the value of one series.
  std::optional<Statement> light_;
  std::optional<Statement> value_;
  bool is_hinted_ = false;
  uint64_t ranges_ = 0;
  uint64_t asked_ = 0;   // since the last range that was hinted as a probe
  uint64_t wanted_ = 0;  // of these
  // What each cell had last: compared before anything is looked up.
  std::unordered_map<uint64_t, const SharedColumns::ByPacked::value_type*> by_cell_;
};

// Visits the runs numbered above `after` up to `last`, by number, in the calling thread; `visit`
// says false to end. With `helper`, which must see the same state as `own` and is used by nobody
// else meanwhile, a second thread reads. The answer does not depend on which thread reads what.
Status ScanInBlocks(Connection& own, Connection* helper, const ScanKeys& keys, uint64_t after,
                    uint64_t last, const std::function<bool(const RunFacts&)>& visit);

}  // namespace switchyard::store
