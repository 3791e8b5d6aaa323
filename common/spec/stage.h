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
#include "common/spec/sweep_plan.h"

namespace switchyard::v1 {
class RunSpec;
class StageSpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

class SweepLayout;

struct ParentCheckpoint {
  uint64_t step = 0;
  std::string digest;    // "sha256:<hex>"
  bool is_best = false;  // by the objective of the parent's stage
};

struct ParentSeries {
  std::string name;
  double best = 0;
  double last = 0;
};

// A run of a parent stage that has succeeded.
struct ParentRun {
  std::string id;
  uint64_t cell = 0;
  uint64_t seed = 0;
  std::vector<std::pair<std::string, std::string>> columns;
  std::shared_ptr<const v1::RunSpec> run;     // canonical
  std::vector<ParentCheckpoint> checkpoints;  // those kept, by rising step; the last is the last
  std::vector<ParentSeries> series;
  // Its stage's objective; absent: no such point, or not finite, which ranks last.
  std::optional<double> objective;
  // Where it came from; needed with `from: spec` only.
  std::shared_ptr<const SweepLayout> layout;
  Point point;
};

// The children of one group of inputs: a space and replicates of their own.
struct StageGroup {
  std::string key;  // "cell=3 seed=2 step=600": unique in the stage, the same whenever it is made
  std::vector<std::string> parents;  // ids, by cell and seed
  std::unique_ptr<SweepPlan> plan;
};

enum class ParentStage { kRunning, kDone };

// The stage of that name; null when there is none.
const v1::StageSpec* FindStage(const v1::SweepSpec& sweep, std::string_view id);
// True when `select` ranks parents, so that children can be made only once the parent stage is
// done.
bool WaitsForWholeStage(const v1::StageSpec& stage);

// Of a stage without `needs`. Null, with faults, when it is wrong.
std::unique_ptr<SweepPlan> PlanStage(const v1::SweepSpec& sweep, const v1::StageSpec& stage,
                                     std::vector<Fault>* faults, uint64_t cells_checked = 1000);

// Of a stage with `needs`: its groups by parent cell, seed and step. Pure: the same parents give
// the same groups, and a parent more adds groups, or grows those of `each: cell`, axes and `all`,
// without changing the others. Empty where `select` waits for the whole stage. Faults name the
// group.
std::vector<StageGroup> ExpandStage(const v1::SweepSpec& sweep, const v1::StageSpec& stage,
                                    std::vector<ParentRun> parents, ParentStage parent_stage,
                                    std::vector<Fault>* faults, uint64_t cells_checked = 1000);

// Every fault of a sweep. The plan of a sweep without stages or of the first stage without `needs`;
// null when there are faults, or every stage needs another one and the first ones another sweep.
std::unique_ptr<SweepPlan> CheckStages(const v1::SweepSpec& sweep, std::vector<Fault>* faults,
                                       uint64_t cells_checked);

}  // namespace switchyard::spec
