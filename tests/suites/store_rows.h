#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/store/chunks.h"
#include "server/store/rows.h"

// Rows with every field set, for tests of stores.
namespace switchyard::store {

inline SweepId MakeSweepId(uint64_t n) { return {Uuid{.high = 0x0197000000007000, .low = n}}; }
inline RunId MakeRunId(uint64_t n) { return {Uuid{.high = 0x0198000000007000, .low = n}}; }
inline WorkerId MakeWorkerId(uint64_t n) { return {Uuid{.high = 0x0199000000007000, .low = n}}; }

inline SweepRow MakeSweep(uint64_t n) {
  return {.id = MakeSweepId(n),
          .project = "default",
          .name = "sweep." + std::to_string(n),
          .base_name = "sweep",
          .spec_hash = "hash" + std::to_string(n),
          .rerun = 2,
          .spec = std::string("spec\0bytes", 10),
          .objective = "objective",
          .axes = {"model.moe.router", "", "train.lr"},
          .cells = 3,
          .runs = 6,
          .created_ms = 1000 + static_cast<int64_t>(n),
          .parent = MakeSweepId(700),
          .budget_slot_ms = 3600000,
          .is_drawn = true};
}

inline RunRow MakeRun(uint64_t n, uint64_t sweep) {
  return {.id = MakeRunId(n),
          .sweep = MakeSweepId(sweep),
          .project = "default",
          .run_key = "key" + std::to_string(n),
          .rerun = 1,
          .seed = 0xfedcba9876543210,
          .router = "smoe",
          .priority = -3,
          .need = {.kind = scheduler::SlotKind::kGpu, .count = 2},
          .max_parallel = 4,
          .timeout_ms = 5000,
          .steps_total = 100,
          .parent = MakeRunId(500),
          .policy = {.profile = scheduler::Profile::kExclusive,
                     .memory_bytes = uint64_t{1} << 40,
                     .exclusive = true,
                     .labels = {"rack=a", ""},
                     .alternatives = {{.slots = {.kind = scheduler::SlotKind::kGpu, .count = 4},
                                       .memory_bytes = 7}},
                     .crash_budget = 5,
                     .user_budget = 6,
                     .user_codes = {42, 255},
                     .user_texts = {"Connection reset", "a, b"},
                     .keep_last = 3,
                     .keep_best = 4,
                     .is_maximized = true,
                     .objective = "valid/bits_per_byte",
                     .is_objective_last = true,
                     .keep_steps = {100, 200},
                     .start_store = "store"},
          .spec = "run spec with a common part " + std::to_string(n),
          .attempt_spec = "attempt spec " + std::to_string(n),
          .created_ms = 77};
}

inline WorkerRow MakeWorker(uint64_t n) {
  return {.id = MakeWorkerId(n),
          .incarnation = 9,
          .instance_id = "boot",
          .pool = "default",
          .host = "host" + std::to_string(n),
          .version = "0.1",
          .metrics_address = "127.0.0.1:1",
          .checkpoint_store = "store",
          .threads_per_slot = 2,
          .labels = {"a=b", ""},
          .slots = {{.index = 0}, {.index = 1, .kind = scheduler::SlotKind::kGpu, .uuid = "GPU-1"}},
          .admin = scheduler::AdminState::kDraining,
          .cordoned = true,
          .cordon_reason = "wedged",
          .memory_bytes = uint64_t{1} << 41,
          .drain_deadline_ms = 12345};
}

// Points of one series, seq and step from 1 on unless told.
inline ChunkRow MakeChunk(Epoch epoch, const std::string& series, uint64_t first_seq,
                          const std::vector<uint64_t>& steps, const std::vector<double>& values) {
  ChunkColumns columns;
  for (size_t i = 0; i < steps.size(); ++i) {
    columns.seqs.push_back(first_seq + i);
    columns.steps.push_back(steps[i]);
    columns.ms.push_back(steps[i] * 10);
  }
  columns.values.assign(reinterpret_cast<const char*>(values.data()),
                        values.size() * sizeof(double));
  ChunkRow row{.epoch = epoch,
               .series = series,
               .first_seq = first_seq,
               .last_seq = first_seq + steps.size() - 1,
               .first_step = steps.front(),
               .last_step = steps.back(),
               .n = static_cast<uint32_t>(steps.size())};
  EncodeChunk(columns, &row.blob);
  return row;
}

}  // namespace switchyard::store
