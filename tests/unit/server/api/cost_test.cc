#include "server/api/cost.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::api {
namespace {

v1::RunSpec SmallRun(uint64_t steps) {
  v1::RunSpec run;
  run.set_kind(v1::RUN_KIND_TRAIN);
  v1::DecoderSpec* decoder = run.mutable_model()->mutable_decoder();
  decoder->set_layers(1);
  decoder->set_d_model(16);
  decoder->set_heads(2);
  decoder->set_d_inner(32);
  v1::TrainSpec* train = run.mutable_train();
  train->set_steps(steps);
  train->set_batch(2);
  train->set_target_len(16);
  train->mutable_optimizer()->mutable_adam()->set_lr(0.001);
  spec::FillDefaults(&run);
  return run;
}

// A stored run that has trained for `active_ms`.
void AddRun(store::Store& store, uint64_t n, uint64_t steps, uint64_t active_ms,
            scheduler::RunState state) {
  const SweepId sweep{Uuid{1, n}};
  scheduler::RunRow run{.id = {Uuid{2, n}}, .sweep = sweep, .project = "p", .need = {}};
  run.run_key = std::to_string(n);
  run.spec = SmallRun(steps).SerializeAsString();
  const std::vector<store::Write> writes = {
      scheduler::SweepRow{.id = sweep, .project = "p", .name = "s" + std::to_string(n)},
      scheduler::SweepStatus{.id = sweep}, run,
      scheduler::RunStatus{.id = run.id, .state = state, .active_ms = active_ms},
      scheduler::LinkRow{.sweep = sweep, .number = 1, .run = run.id, .cell = 1, .columns = {}}};
  ASSERT_TRUE(store.Commit(writes).ok());
}

v1::PlanSweepResponse PlanOf(uint64_t steps, uint64_t runs, uint64_t reused) {
  const v1::RunSpec run = SmallRun(steps);
  v1::PlanSweepResponse plan;
  plan.set_runs(runs);
  plan.set_reused_runs(reused);
  v1::PlannedCell* cell = plan.add_plan();
  cell->set_flops_per_token_active(spec::Account(run).flops_per_token_active);
  cell->set_train_tokens(steps * 2 * 16);
  return plan;
}

// Twice the steps take twice the time, each new run its own, and reused ones none.
TEST(EstimateSlotHours, GoesByTheMedianOfPastRuns) {
  const auto store = store::MakeMemoryStore();
  EXPECT_EQ(*EstimateSlotHours(*store, "p", PlanOf(10, 1, 0)), 0);
  AddRun(*store, 76, 10, 3'600'000, scheduler::RunState::kSucceeded);
  AddRun(*store, 77, 10, 1, scheduler::RunState::kFailed);
  EXPECT_NEAR(*EstimateSlotHours(*store, "p", PlanOf(10, 1, 0)), 1, 1e-9);
  EXPECT_NEAR(*EstimateSlotHours(*store, "p", PlanOf(20, 5, 2)), 6, 1e-9);
  EXPECT_EQ(*EstimateSlotHours(*store, "p", PlanOf(20, 2, 2)), 0);
  EXPECT_EQ(*EstimateSlotHours(*store, "other", PlanOf(10, 1, 0)), 0);
  AddRun(*store, 78, 10, 1, scheduler::RunState::kSucceeded);
  AddRun(*store, 79, 10, 3'600'000, scheduler::RunState::kSucceeded);
  EXPECT_NEAR(*EstimateSlotHours(*store, "p", PlanOf(10, 1, 0)), 1, 1e-9);
}

}  // namespace
}  // namespace switchyard::api
