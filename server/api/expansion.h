#pragma once

#include <cstdint>
#include <memory>
#include <optional>
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

// One space of a sweep: its own, that of a stage, or that of one group of a stage's parents.
struct PlannedSpace {
  std::string stage;  // empty: the sweep has no stages
  std::shared_ptr<const spec::SweepPlan> plan;
  std::string objective;  // ObjectiveSpec as resolved, serialised
};

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
  const v1::SweepSpec& document() const { return *document_; }
  // What can be planned before a run has ended: the sweep's own space, or those of its stages
  // without `needs`, in file order. Empty where all stages need another sweep.
  const std::vector<PlannedSpace>& roots() const { return roots_; }
  // Of the first root, which must be there.
  const spec::SweepPlan& plan() const { return *roots_.front().plan; }
  // Of its runs at one time, as the first cell's policy says; 0: no limit.
  uint64_t max_parallel() const { return max_parallel_; }

  // Runs first..first+count-1 (cut at the end), with fresh ids that rise with the number; none
  // where they are proposed while the sweep runs. kInvalidArgument: a cell that is not valid.
  Result<std::vector<scheduler::PlannedRun>> Expand(uint64_t first, uint64_t count,
                                                    int64_t unix_ms) const;

  // A group of the stage's parents as a space.
  Result<PlannedSpace> SpaceOf(const std::string& stage,
                               std::shared_ptr<const spec::SweepPlan> plan) const;
  // Where its cells are drawn: the space's strategy, at its beginning.
  Result<std::unique_ptr<search::Search>> MakeSearch(const PlannedSpace& space) const;
  // Run `index` (from 1) of a space whose cells are counted, with a fresh id and `number`.
  Result<scheduler::PlannedRun> FromIndex(const PlannedSpace& space, uint64_t index,
                                          uint64_t number, int64_t unix_ms) const;
  // The run of a strategy's point under one of the space's seeds. `start`: the run and the step
  // whose checkpoint it goes on from with everything restored, or none. kInvalidArgument: the cell
  // is not valid.
  struct ForkPoint {
    RunId run;
    uint64_t step = 0;
    std::string digest;
  };
  Result<scheduler::PlannedRun> FromPoint(const PlannedSpace& space,
                                          const search::Space& dimensions,
                                          const search::Point& point, uint64_t number,
                                          uint64_t cell, uint64_t seed,
                                          const std::optional<ForkPoint>& start,
                                          int64_t unix_ms) const;

 private:
  Expansion();
  std::unique_ptr<const v1::SweepSpec> document_;
  std::vector<PlannedSpace> roots_;
  scheduler::SweepRow row_;
  uint64_t max_parallel_ = 0;
};

// What the coordinator shows as a run's objective.
struct ObjectiveFacts {
  std::string series;
  bool is_last = false;
  bool is_maximized = false;
};
// `objective`: SweepRow::objective or PlannedSpace::objective.
ObjectiveFacts ReadObjective(std::string_view objective);
// Layers with experts of a run; `spec`: RunRow::spec.
std::vector<uint32_t> ReadMoeLayers(std::string_view spec);

}  // namespace switchyard::api
