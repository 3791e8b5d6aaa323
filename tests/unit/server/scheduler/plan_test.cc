#include "server/scheduler/plan.h"

#include <gtest/gtest.h>

#include "server/scheduler/explain.h"
#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

std::vector<RunId> RunsOf(const std::vector<Placement>& plan) {
  std::vector<RunId> out;
  for (const Placement& placement : plan) out.push_back(placement.run);
  return out;
}

// Priority beats age, age beats id.
TEST(PlanPlacements, OrdersByPriorityThenAge) {
  World world;
  world.Submit(1, 2);
  world.Submit(2, 1, {.priority = 5});
  world.AddWorker(1, 2);
  const auto plan = PlanPlacements(world.state(), world.now().now, 200);
  EXPECT_EQ(RunsOf(plan), (std::vector{World::RunOf(201), World::RunOf(101)}));
}

// Equal states give equal plans, slot by slot.
TEST(PlanPlacements, GivesEachSlotOnce) {
  World world;
  world.Submit(1, 5);
  world.AddWorker(1, 2);
  world.AddWorker(2, 1);
  const auto plan = PlanPlacements(world.state(), world.now().now, 200);
  ASSERT_EQ(plan.size(), 3u);
  // The narrowest worker that fits comes first.
  EXPECT_EQ(plan[0].worker, World::Worker(2));
  EXPECT_EQ(plan[1].slots, (std::vector<uint32_t>{0}));
  EXPECT_EQ(plan[2].slots, (std::vector<uint32_t>{1}));
  EXPECT_EQ(RunsOf(PlanPlacements(world.state(), world.now().now, 200)), RunsOf(plan));
}

// max_parallel holds back the rest of its sweep and nobody else.
TEST(PlanPlacements, RespectsMaxParallel) {
  World world;
  world.Submit(1, 3, {.max_parallel = 1});
  world.Submit(2, 1);
  world.AddWorker(1, 4);
  const auto plan = PlanPlacements(world.state(), world.now().now, 200);
  EXPECT_EQ(RunsOf(plan), (std::vector{World::RunOf(101), World::RunOf(201)}));
}

// A wide run at the head reserves the worker that could hold it: narrow runs without a time limit
// must not keep it from ever being free.
TEST(PlanPlacements, ReservesForTheFirstRunThatDoesNotFit) {
  World world;
  world.AddWorker(1, 2);
  world.Submit(1, 1);
  world.Place();
  world.Submit(2, 1, {.need = {.count = 2}});
  world.Submit(3, 1);
  EXPECT_TRUE(PlanPlacements(world.state(), world.now().now, 200).empty());
}

// A later run may use reserved slots when its own time limit ends before they are needed.
TEST(PlanPlacements, BackfillsWhatEndsBeforeTheReservation) {
  World world;
  world.AddWorker(1, 2);
  world.Submit(1, 1, {.timeout_ms = 3600000});
  world.Place();
  world.Submit(2, 1, {.need = {.count = 2}});
  world.Submit(3, 1, {.timeout_ms = 60000});
  EXPECT_EQ(RunsOf(PlanPlacements(world.state(), world.now().now, 200)),
            (std::vector{World::RunOf(301)}));
}

// A run that fits no registered worker is passed over and reserves nothing.
TEST(PlanPlacements, PassesOverARunThatFitsNowhere) {
  World world;
  world.AddWorker(1, 2);
  world.Submit(1, 1, {.need = {.count = 8}});
  world.Submit(2, 1);
  EXPECT_EQ(RunsOf(PlanPlacements(world.state(), world.now().now, 200)),
            (std::vector{World::RunOf(201)}));
}

// Silent workers get no new work.
TEST(PlanPlacements, SkipsSuspectWorkers) {
  World world;
  world.AddWorker(1, 1);
  world.Submit(1, 1);
  world.Advance(30000);
  world.Do(Tick{});
  EXPECT_TRUE(PlanPlacements(world.state(), world.now().now, 200).empty());
}

// A requeued run goes on from its newest checkpoint, on a worker that reaches it.
TEST(PlanPlacements, ResumesWhereTheCheckpointIs) {
  World world;
  const WorkerId here = world.AddWorker(1, 1, "disk-a");
  world.Submit(1, 1);
  world.Place();
  const RunId run = World::RunOf(101);
  world.Beat(here, {world.Report(run, RecordState::kRunning)});
  world.Lines(run, 1, 2,
              {{.kind = LineFact::Kind::kCheckpoint,
                .seq = 2,
                .from = {},
                .step = 40,
                .digest = "d",
                .bytes = 9,
                .path = "/ckpt/40"}});
  world.Beat(here, {world.Exit(run, 69, EndClass::kInfra, false, 2)});
  world.AddWorker(2, 1, "disk-b");
  world.Advance(5000);
  world.Do(Tick{});
  const auto plan = PlanPlacements(world.state(), world.now().now, 200);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].worker, here);
  ASSERT_TRUE(plan[0].resume.has_value());
  EXPECT_EQ(plan[0].resume->step, 40u);
}

// A run that waits for its checkpoint's store reserves a worker that reaches it, not one that it
// would not take: others use that one.
TEST(PlanPlacements, ReservesOnlyWhatTheRunMayTake) {
  World world;
  const WorkerId here = world.AddWorker(1, 1, "disk-a");
  world.Submit(1, 1, {.priority = 5});
  world.Place();
  const RunId run = World::RunOf(101);
  world.Beat(here, {world.Report(run, RecordState::kRunning)});
  world.Lines(run, 1, 2,
              {{.kind = LineFact::Kind::kCheckpoint,
                .seq = 2,
                .from = {},
                .step = 40,
                .digest = "d",
                .bytes = 9,
                .path = "/ckpt/40"}});
  world.Beat(here, {world.Exit(run, 69, EndClass::kInfra, false, 2)});
  world.Submit(2, 1, {.priority = 9});
  world.Place();
  const WorkerId other = world.AddWorker(2, 1, "disk-b");
  world.Submit(3, 1);
  world.Advance(5000);
  world.Do(Tick{});
  ASSERT_EQ(world.state().FindRun(run)->status.state, RunState::kQueued);
  const auto plan = PlanPlacements(world.state(), world.now().now, 200);
  EXPECT_EQ(RunsOf(plan), (std::vector{World::RunOf(301)}));
  EXPECT_EQ(plan[0].worker, other);
}

// The words of the planner: what is needed, and what there is.
TEST(Explain, SaysWhyARunWaits) {
  World world;
  world.Submit(1, 2, {.need = {.count = 2}});
  const scheduler::Run& run = *world.state().FindRun(World::RunOf(102));
  EXPECT_NE(Explain(world.state(), run, world.now().now)[1].find("no worker has registered"),
            std::string::npos);
  world.AddWorker(1, 2);
  world.Place();
  const auto lines = Explain(world.state(), run, world.now().now);
  EXPECT_NE(lines[1].find("at most 0 are free"), std::string::npos) << lines[1];
}

// A run shuns the idle worker, on which it has failed, and may not use the free slot that is kept
// for a larger one before it: the next of its line takes the idle worker.
TEST(PlanPlacements, ARunThatShunsAnIdleWorkerHoldsUpNobody) {
  World world;
  world.AddWorker(1, 2);
  world.Submit(1, 1);
  world.Place();
  world.AddWorker(2, 1);
  world.Submit(2, 1, {.priority = 5, .need = {.count = 2}});
  world.Submit(3, 2);
  world.state().runs.at(World::RunOf(301)).status.evidence.workers = {
      {.worker = World::Worker(2), .crashes = 1}};
  const auto plan = PlanPlacements(world.state(), world.now().now, 200);
  ASSERT_EQ(RunsOf(plan), std::vector{World::RunOf(302)});
  EXPECT_EQ(plan[0].worker, World::Worker(2));
}

// The database was restored: what executes somewhere since the backup is not known. An exclusive
// run waits until that has fenced itself; others, those made since the start, and those that have
// had an attempt of this generation do not.
TEST(PlanPlacements, HoldsExclusiveRunsAfterARestore) {
  World world;
  world.Submit(1, 3, {.policy = {.profile = Profile::kExclusive}});
  world.Submit(2, 1);
  world.AddWorker(1, 4);
  State& state = world.state();
  state.loaded_at = world.now().now;
  for (const uint64_t n : {101, 102, 201}) state.runs.at(World::RunOf(n)).is_loaded = true;
  state.runs.at(World::RunOf(102)).status.current_epoch = {(uint64_t{2} << 48) + 1};
  const auto plan = [&] { return RunsOf(PlanPlacements(state, world.now().now, 200)); };
  const std::vector all{World::RunOf(101), World::RunOf(102), World::RunOf(103), World::RunOf(201)};
  EXPECT_EQ(plan(), all) << "never restored";

  state.generation = 2;
  const std::vector others{World::RunOf(102), World::RunOf(103), World::RunOf(201)};
  EXPECT_EQ(plan(), others);
  const auto& held = *state.FindRun(World::RunOf(101));
  EXPECT_NE(ExplainWait(state, held, world.now().now).find("waits 630 s: it runs exclusively"),
            std::string::npos);
  world.Advance(state.leases.exclusive.replace.count() - 1);
  EXPECT_EQ(plan(), others);
  world.Advance(1);
  EXPECT_EQ(plan(), all);
}

}  // namespace
}  // namespace switchyard::scheduler
