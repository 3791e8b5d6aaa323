#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/scheduler/event.h"
#include "server/search/search.h"

namespace switchyard::v1 {
class SweepSpec;
}
namespace switchyard::spec {
class SweepPlan;
}

namespace switchyard::api {

// A checked sweep document and its runs by number, as rows. Immutable, thread-safe.
class Expansion {
 public:
  // kInvalidArgument: the faults, one a line.
  static Result<std::shared_ptr<const Expansion>> Make(const v1::SweepSpec& spec);
  // A document that was stored.
  static Result<std::shared_ptr<const Expansion>> Parse(std::string_view spec);
  ~Expansion();

  // Without id, name suffix, rerun and time.
  const scheduler::SweepRow& sweep() const { return row_; }
  const spec::SweepPlan& plan() const { return *plan_; }
  // Of its runs at one time, as the first cell's policy says; 0: no limit.
  uint64_t max_parallel() const { return max_parallel_; }

  // Runs first..first+count-1 (cut at the end), with fresh ids that rise with the number; none
  // where cells are drawn. kInvalidArgument: a cell that is not valid.
  Result<std::vector<scheduler::PlannedRun>> Expand(uint64_t first, uint64_t count,
                                                    int64_t unix_ms) const;

  // Where cells are drawn: the sweep's strategy, at its beginning.
  Result<std::unique_ptr<search::Search>> MakeSearch() const;
  // The run of a strategy's point under one of the document's seeds. kInvalidArgument: the cell is
  // not valid.
  Result<scheduler::PlannedRun> FromPoint(const search::Space& space, const search::Point& point,
                                          uint64_t number, uint64_t cell, uint64_t seed,
                                          int64_t unix_ms) const;

 private:
  Expansion() = default;
  std::shared_ptr<const spec::SweepPlan> plan_;
  scheduler::SweepRow row_;
  uint64_t max_parallel_ = 0;
};

// What the coordinator shows as a run's objective.
struct ObjectiveFacts {
  std::string series;
  bool is_last = false;
};
// `objective`: SweepRow::objective.
ObjectiveFacts ReadObjective(std::string_view objective);
// Layers with experts of a run; `spec`: RunRow::spec.
std::vector<uint32_t> ReadMoeLayers(std::string_view spec);

}  // namespace switchyard::api
