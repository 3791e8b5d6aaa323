#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/fault.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/yaml_reader.h"

namespace switchyard::spec {

// A small sweep that is right: transformer_xl, smoe, one seed. Tests replace lines of it.
inline constexpr std::string_view kSmallSweep = R"(name: small
base:
  kind: train
  data: {files: {domains: {c: ["/usr/include/**/*.h"]}}}
  model:
    transformer_xl: {layers: 4, d_model: 128, heads: 4, d_head: 32, d_inner: 128}
    moe: {layers: [0, 1, 2, 3], experts: 8, router: smoe}
  train:
    steps: 100
    batch: 8
    target_len: 128
    memory_len: 128
    optimizer: {adam: {lr: 7e-4}}
replicates: {seeds: [1]}
)";

// `text` with the first `from` replaced. Fails the test when it is not there.
std::string Replaced(std::string_view text, std::string_view from, std::string_view to);

// Faults of reading `text` as sweep.yaml, one a line; empty when there are none.
std::string ReadFaults(std::string_view text, const std::vector<Override>& overrides = {});
// Faults of reading and planning.
std::string PlanFaults(std::string_view text, const std::vector<Override>& overrides = {});
// Its plan. Ends the test program with the faults when there are any.
std::unique_ptr<SweepPlan> PlanOf(std::string_view text,
                                  const std::vector<Override>& overrides = {});
// Run `number` of the plan of `text`, which must be right.
PlannedRun RunOf(std::string_view text, uint64_t number = 1);

}  // namespace switchyard::spec
