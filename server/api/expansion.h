#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/scheduler/event.h"

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

  // Runs first..first+count-1 (cut at the end), with fresh ids that rise with the number.
  // kInvalidArgument: a cell that is not valid.
  Result<std::vector<scheduler::PlannedRun>> Expand(uint64_t first, uint64_t count,
                                                    int64_t unix_ms) const;

 private:
  Expansion() = default;
  std::unique_ptr<spec::SweepPlan> plan_;
  scheduler::SweepRow row_;
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
