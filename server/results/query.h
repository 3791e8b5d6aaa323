#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/results/run_names.h"
#include "server/store/rows.h"

namespace switchyard::store {
class ReadStore;
}

// Questions over the runs of one sweep: which ones, in which order, in which groups. Values that
// are absent or not finite satisfy no comparison and come last.
namespace switchyard::results {

// Best or last, as the sweep's objective says.
Pick ObjectivePick(const store::SweepInfo& sweep);
// Whether more is better: the objective's goal for its own series, else by the series' name; none
// for a series without a direction.
std::optional<bool> IsMaximized(const store::SweepInfo& sweep, std::string_view series);

class OrderCache;

struct ListQuery {
  std::vector<std::string> series;  // whose summaries come along
  std::string filter;               // expression; empty: all
  std::string order_by;             // expression; empty: by number
  bool descending = false;
  std::string page;
  size_t limit = 100;
  OrderCache* cache = nullptr;  // none: each page is found anew
};
// kInvalidArgument: an expression that cannot be read or has unknown names, or another query's
// page.
Result<store::RunPage> ListRuns(store::ReadStore& store, const store::SweepInfo& sweep,
                                const ListQuery& query);

struct GroupQuery {
  std::string filter;
  std::vector<std::string> by;
  std::vector<std::string> series;  // the first one orders the groups
  std::optional<Pick> pick;         // none: the objective's
};
struct GroupValue {
  uint64_t n = 0;
  uint64_t non_finite = 0;
  double mean = 0;  // NaN: n is 0
  double sd = 0;    // NaN: n is below 2
  double best = 0;  // NaN: no direction, or n is 0
  uint64_t best_run = 0;
};
struct Group {
  std::vector<std::string> key;  // one per `by`; empty: the run has none
  uint64_t runs = 0;
  uint64_t succeeded = 0;
  uint64_t first_number = 0;
  std::vector<GroupValue> values;  // one per series
};
struct GroupResult {
  std::vector<Group> groups;
  uint64_t runs = 0;
};
// kInvalidArgument as above; kResourceExhausted: more than kGroupsMax groups.
inline constexpr size_t kGroupsMax = 100'000;
inline constexpr size_t kGroupSeriesMax = 16;
Result<GroupResult> GroupRuns(store::ReadStore& store, const store::SweepInfo& sweep,
                              const GroupQuery& query);

// Calls `visit` with the names set to each run that satisfies `filter`, by number. `names` has
// everything that `visit` asks for, with UseRun() if it reads more of the facts than number, cell,
// columns and state.
Status ForEachRun(store::ReadStore& store, const store::SweepInfo& sweep, const std::string& filter,
                  RunNames* names, const std::function<Status(const store::RunFacts&)>& visit);

}  // namespace switchyard::results
