#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/fault.h"
#include "common/spec/space.h"

namespace switchyard::v1 {
class RunSpec;
class SweepSpec;
}  // namespace switchyard::v1

// Changes of a sweep or a run that exist: extend and fork.
namespace switchyard::spec {

// How one stage of the extended sweep (the empty name without stages) goes on from the old one.
struct StageExtension {
  std::string stage;
  // Number of each cell of the extended plan, in its order: cells that were there keep theirs, the
  // others follow the old ones in file order.
  std::vector<uint64_t> numbers;
  uint64_t added_cells = 0;
  std::vector<uint64_t> added_seeds;  // in file order
};

// Faults, and none, unless `extended` adds cells, seeds, stages or a strategy's cells to `old` and
// removes and changes nothing: base, preset, --set and objective are equal, and so are the stages
// with `needs` but for their seeds. Both documents must be right.
std::optional<std::vector<StageExtension>> PlanExtension(const v1::SweepSpec& old,
                                                         const v1::SweepSpec& extended,
                                                         std::vector<Fault>* faults);

// `extend --replicates +N`: adds the N smallest seeds from 1 that are not used. `seeds`: those that
// the plan has.
void AddReplicates(const std::vector<uint64_t>& seeds, uint64_t count, v1::SweepSpec* sweep);

// `fork RUN --at STEP --set ...`: the canonical spec of a run that goes on from that checkpoint
// with everything restored. `digest`: "sha256:<hex>" of the checkpoint. Faults: a set that leads
// nowhere or a spec that is not valid.
bool MakeFork(const v1::RunSpec& run, std::string_view run_id, uint64_t step,
              std::string_view digest, const std::vector<PathValue>& sets, v1::RunSpec* fork,
              std::vector<Fault>* faults);

}  // namespace switchyard::spec
