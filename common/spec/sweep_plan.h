#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/spec/fault.h"
#include "common/spec/space.h"

namespace switchyard::v1 {
class PolicySpec;
class RunSpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

class SweepLayout;

// One run of a sweep, resolved.
struct PlannedRun {
  uint64_t number = 0;  // 1.., seed by seed: all cells of the first seed, then of the second
  uint64_t cell = 0;    // 1..
  uint64_t seed = 0;
  std::vector<std::pair<std::string, std::string>> columns;  // axis -> value as text
  std::unique_ptr<v1::RunSpec> run;                          // canonical, all defaults
  std::unique_ptr<v1::PolicySpec> policy;                    // with defaults
  std::string run_key;                                       // hex
  std::string router;                                        // kind, "dense" without an moe block
  std::vector<std::string> notices;  // fields below the axes dropped from this cell
};

// Lazy expansion of one stage of a sweep: any run by its number, without making the others.
// Immutable, thread-safe for reading.
class SweepPlan {
 public:
  // Of a sweep without stages, or of its first stage without `needs`. Null, with faults, when
  // anything in the document is wrong: the sweep's own fields, each value of each axis alone, all
  // cells when there are at most `cells_checked`, every stage, the report.
  static std::unique_ptr<SweepPlan> Make(const v1::SweepSpec& sweep, std::vector<Fault>* faults,
                                         uint64_t cells_checked = 1000);
  // Of a layout that is right; cells are checked as by Make.
  static std::unique_ptr<SweepPlan> FromLayout(std::shared_ptr<const SweepLayout> layout,
                                               std::vector<Fault>* faults, uint64_t cells_checked);
  ~SweepPlan();

  // Cells that the constraints leave. 1 where cells are drawn.
  uint64_t cell_count() const;
  uint64_t run_count() const;
  const std::vector<std::string>& axes() const;
  const std::vector<uint64_t>& seeds() const;
  // Distinct identities among all runs; none when there are more than `cells_max` cells, or cells
  // are drawn. Cells that are equal share a run.
  std::optional<uint64_t> DistinctRuns(uint64_t cells_max) const;
  // `number` in [1, run_count]. Faults of that cell when it is not valid, or cells are drawn.
  PlannedRun At(uint64_t number, std::vector<Fault>* faults) const;
  // The first cell; where cells are drawn, one at the lower ends and first values. For what does
  // not depend on the cell.
  PlannedRun Example(std::vector<Fault>* faults) const;

  // A strategy proposes the cells: numbers 1.. in order of arrival.
  bool is_drawn() const;
  // How many it will propose; 0: none, or not known before it runs.
  uint64_t drawn_cells() const;
  const std::vector<Dimension>& dimensions() const;
  // False when a constraint drops the cell. kInvalidArgument: see PointFrom.
  Result<bool> Allows(const std::vector<Draw>& draws) const;
  // The cell of these draws under one of seeds(). Faults when they name no cell, or it is not
  // valid.
  PlannedRun From(const std::vector<Draw>& draws, uint64_t cell, uint64_t seed,
                  std::vector<Fault>* faults) const;

  const std::shared_ptr<const SweepLayout>& layout() const;
  // Where cell 1.. stands; for stages that lie over it.
  Point PointOf(uint64_t cell) const;

 private:
  struct Impl;
  explicit SweepPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::spec
