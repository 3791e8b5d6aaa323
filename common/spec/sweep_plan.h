#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/spec/fault.h"

namespace switchyard::v1 {
class PolicySpec;
class RunSpec;
class SweepSpec;
}  // namespace switchyard::v1

namespace switchyard::spec {

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

// Lazy expansion of a sweep: any run by its number, without making the others. Immutable,
// thread-safe for reading.
class SweepPlan {
 public:
  // Faults instead when the document is wrong. Checks the sweep's own fields and each value of each
  // axis alone, and all cells when there are at most `cells_checked`.
  static std::unique_ptr<SweepPlan> Make(const v1::SweepSpec& sweep, std::vector<Fault>* faults,
                                         uint64_t cells_checked = 1000);
  ~SweepPlan();

  uint64_t cell_count() const;
  uint64_t run_count() const;
  const std::vector<std::string>& axes() const;
  const std::vector<uint64_t>& seeds() const;
  // `number` in [1, run_count]. Faults of that cell when it is not valid.
  PlannedRun At(uint64_t number, std::vector<Fault>* faults) const;

 private:
  struct Impl;
  explicit SweepPlan(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::spec
