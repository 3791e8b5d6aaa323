// Retry classes, budgets, poison rules, blame of workers, the breaker and budgets of sweeps.
#include <gtest/gtest.h>

#include "server/scheduler/decide.h"
#include "server/scheduler/lease_policy.h"
#include "server/scheduler/plan.h"
#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

const RunId kRun = World::RunOf(101);

MemberReport FailureOf(World& world, int code, EndClass end_class, uint64_t step = 5) {
  MemberReport report = world.Exit(kRun, code, end_class, false);
  report.final_step = step;
  report.reason = "step " + std::to_string(step);
  return report;
}

// Each class of end is tried again as often as protocol 13.3 says, and no more.
TEST(Retry, FollowsTheClassOfTheEnd) {
  const std::tuple<int, EndClass, RunState> cases[] = {
      {64, EndClass::kSpec, RunState::kFailed},    {65, EndClass::kData, RunState::kFailed},
      {69, EndClass::kInfra, RunState::kBackoff},  {70, EndClass::kInternal, RunState::kBackoff},
      {71, EndClass::kOom, RunState::kFailed},     {77, EndClass::kGuard, RunState::kFailed},
      {3, EndClass::kUser, RunState::kFailed},     {0, EndClass::kUnknown, RunState::kBackoff},
      {75, EndClass::kStopped, RunState::kQueued}, {76, EndClass::kFenced, RunState::kBackoff},
  };
  for (const auto& [code, end_class, expected] : cases) {
    World world = World::Running();
    world.Beat(World::Worker(1), {FailureOf(world, code, end_class)});
    EXPECT_EQ(world.StateOf(kRun), expected) << code << " " << Name(end_class);
  }
}

// An internal error is tried twice more, at steps far apart with no newer checkpoint and different
// texts; then its budget is spent.
TEST(Retry, SpendsTheBudgetOfCrashes) {
  World world = World::Running();
  for (int i = 1; i <= 3; ++i) {
    world.Crash(kRun, static_cast<uint64_t>(100 * i), /*signal=*/6 + i);
    if (i < 3) {
      EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff) << i;
      world.StartAgain(kRun);
    }
  }
  EXPECT_EQ(world.StateOf(kRun), RunState::kFailed);
}

// A newer published checkpoint is progress: the budget starts anew.
TEST(Retry, ANewerCheckpointRenewsTheBudget) {
  World world = World::Running();
  for (int i = 1; i <= 6; ++i) {
    world.Publish(kRun, static_cast<uint64_t>(100 * i));
    world.Crash(kRun, static_cast<uint64_t>(100 * i + 50), 11);
    ASSERT_EQ(world.StateOf(kRun), RunState::kBackoff) << i;
    EXPECT_EQ(world.state().FindRun(kRun)->status.crash_fail, 1u);
    world.StartAgain(kRun);
  }
}

// Codes that the spec lists are tried again within their own budget; others are not.
TEST(Retry, TriesListedUserCodesAgain) {
  World world = World::Running({.policy = {.user_budget = 1, .user_codes = {42}}});
  world.Beat(World::Worker(1), {FailureOf(world, 42, EndClass::kUser, 5)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
  world.StartAgain(kRun);
  world.Beat(World::Worker(1), {FailureOf(world, 42, EndClass::kUser, 90)}, false);
  EXPECT_EQ(world.StateOf(kRun), RunState::kFailed);
}

// So are errors whose last output has one of the listed texts, whatever their code.
TEST(Retry, TriesListedTextsAgain) {
  const auto fail = [](World& world, const std::string& output) {
    MemberReport report = FailureOf(world, 3, EndClass::kUser, 5);
    report.output_tail = output;
    world.Beat(World::Worker(1), {report});
    return world.StateOf(kRun);
  };
  const RunPolicy policy{.user_budget = 2, .user_texts = {"Connection reset", "no route"}};
  World listed = World::Running({.policy = policy});
  EXPECT_EQ(fail(listed, "step 5\nerror: Connection reset by peer\n"), RunState::kBackoff);
  World other = World::Running({.policy = policy});
  EXPECT_EQ(fail(other, "error: connection refused\n"), RunState::kFailed);
  World silent = World::Running({.policy = policy});
  EXPECT_EQ(fail(silent, ""), RunState::kFailed);
}

// Out of memory: once more with the larger alternative, on a worker that has it.
TEST(Retry, TakesTheLargerAlternativeOnceAfterOutOfMemory) {
  World world = World::Running({.policy = {.alternatives = {{.slots = {.count = 2}}}}});
  world.Beat(World::Worker(1), {FailureOf(world, 71, EndClass::kOom)});
  ASSERT_EQ(world.StateOf(kRun), RunState::kBackoff);
  world.AddWorker(2, 2);
  world.StartAgain(kRun);
  EXPECT_EQ(world.AttemptOf(kRun).row.worker, World::Worker(2));
  EXPECT_EQ(world.AttemptOf(kRun).members[0].slots.size(), 2u);
  world.Beat(World::Worker(2), {FailureOf(world, 71, EndClass::kOom)}, false);
  EXPECT_EQ(world.StateOf(kRun), RunState::kFailed);
}

// Back-off is full jitter below a cap that doubles.
TEST(Retry, BacksOffWithFullJitter) {
  EXPECT_EQ(FailureBackoff(0, 5000).count(), 5000);
  EXPECT_EQ(FailureBackoff(1, 20000).count(), 20000);
  EXPECT_EQ(FailureBackoff(1, 20001).count(), 100) << "at least 100 ms";
  EXPECT_EQ(FailureBackoff(60, 600000).count(), 600000);
  EXPECT_EQ(FailureBackoff(60, 600001 + 400).count(), 400) << "10 min at most";
  EXPECT_EQ(InfraBackoff(60, 60000).count(), 60000);
  EXPECT_EQ(InfraBackoff(60, 60001 + 300).count(), 300) << "60 s at most";
}

// The same end twice within a step of each other is poison, whatever the budget says.
TEST(Poison, TheSameEndTwiceAtOneStep) {
  World world = World::Running({.policy = {.crash_budget = 100}});
  world.Crash(kRun, 500, 11, "fault at 0x7f12");
  world.StartAgain(kRun);
  world.Crash(kRun, 501, 11, "fault at 0x7f98");
  EXPECT_EQ(world.StateOf(kRun), RunState::kQuarantined);
}

// Three times anywhere without a newer checkpoint between.
TEST(Poison, TheSameEndThreeTimesWithoutProgress) {
  World world = World::Running({.policy = {.crash_budget = 100}});
  for (int i = 1; i <= 3; ++i) {
    world.Crash(kRun, static_cast<uint64_t>(100 * i), 11);
    if (i < 3) world.StartAgain(kRun);
  }
  EXPECT_EQ(world.StateOf(kRun), RunState::kQuarantined);
}

// OR3: a run that takes its agent or host down with it twice is tried no more, and not on the same
// worker while another is there.
TEST(Poison, ARunThatTakesItsWorkerDownIsNotRetriedWithoutEnd) {
  World world = World::Running();
  world.AddWorker(2, 1);
  Register again{.worker = world.state().FindWorker(World::Worker(1))->row, .nonce = "nonce"};
  again.worker.incarnation = 2;
  world.Do(again);
  world.Crash(kRun, 10, 9);
  ASSERT_EQ(world.StateOf(kRun), RunState::kBackoff);
  world.StartAgain(kRun);
  ASSERT_EQ(world.AttemptOf(kRun).row.worker, World::Worker(2)) << "shuns the first one";
  again.worker = world.state().FindWorker(World::Worker(2))->row;
  again.worker.incarnation = 2;
  world.Do(again);
  world.Crash(kRun, 400, 6);
  EXPECT_EQ(world.StateOf(kRun), RunState::kQuarantined);
}

// OR3: an agent that starts anew and finds its trainer alive has not crashed with it.
TEST(Poison, AnAdoptedTrainerIsNoCrash) {
  World world = World::Running();
  Register again{.worker = world.state().FindWorker(World::Worker(1))->row, .nonce = "nonce"};
  again.worker.incarnation = 2;
  world.Do(again);
  world.Beat(World::Worker(1), {world.Report(kRun, RecordState::kRunning)});
  world.Crash(kRun, 10, 9);
  EXPECT_EQ(world.state().FindRun(kRun)->status.evidence.crashes, 0u);
}

// OR3: planned stops are free, however often.
TEST(Poison, DrainsDoNotCount) {
  World world = World::Running();
  for (int i = 1; i <= 5; ++i) {
    world.Publish(kRun, static_cast<uint64_t>(10 * i));
    world.Do(SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kDrain});
    world.Beat(
        World::Worker(1),
        {world.Exit(kRun, 75, EndClass::kStopped, false, world.AttemptOf(kRun).streams[0].acked)},
        false);
    ASSERT_EQ(world.StateOf(kRun), RunState::kQueued) << i;
    world.Do(SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kUndrain});
    world.StartAgain(kRun);
  }
  const uint64_t acked = world.AttemptOf(kRun).streams[0].acked;
  world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kOk, true, acked)}, false);
  EXPECT_EQ(world.StateOf(kRun), RunState::kSucceeded);
}

// OR5: a preempted run that saves and exits 0 before its last step is not done.
TEST(Retry, AnIncompleteExitZeroUnderDrainIsPreempted) {
  World world = World::Running({.timeout_ms = 120000});
  world.Advance(10000);
  world.Do(SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kDrain});
  world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kOk, false, 0)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
}

// After two infrastructure ends on one worker another one is tried, and the old one is used again
// when there is no other.
TEST(Blame, ShunsAWorkerAfterTwoInfraEnds) {
  World world = World::Running();
  for (int i = 0; i < 2; ++i) {
    world.Beat(World::Worker(1), {FailureOf(world, 69, EndClass::kInfra)}, false);
    if (i == 0) world.StartAgain(kRun);
  }
  const RunStatus& status = world.state().FindRun(kRun)->status;
  EXPECT_EQ(status.evidence.workers.size(), 1u);
  world.StartAgain(kRun);
  EXPECT_EQ(world.AttemptOf(kRun).row.worker, World::Worker(1)) << "the only one";
  world.Beat(World::Worker(1), {FailureOf(world, 69, EndClass::kInfra)}, false);
  world.AddWorker(2, 1);
  world.StartAgain(kRun);
  EXPECT_EQ(world.AttemptOf(kRun).row.worker, World::Worker(2));
}

// Infrastructure failures of three runs in ten minutes are the worker's fault.
TEST(Blame, CordonsAWorkerThatFailsManyRuns) {
  World world;
  world.AddWorker(1, 3);
  world.Submit(1, 3);
  world.Place();
  for (uint64_t i = 1; i <= 3; ++i) {
    EXPECT_FALSE(world.state().FindWorker(World::Worker(1))->row.cordoned) << i;
    MemberReport report = world.Report(World::RunOf(100 + i), RecordState::kRefused);
    report.reason = "disk";
    world.Beat(World::Worker(1), {report}, false);
    world.Advance(60000);
  }
  EXPECT_TRUE(world.state().FindWorker(World::Worker(1))->row.cordoned);
}

// SW4: five first attempts that fail alike before their first step pause the sweep; what runs goes
// on.
TEST(Breaker, PausesASweepThatCannotStart) {
  World world;
  world.AddWorker(1, 7);
  world.Submit(1, 7);
  world.Place();
  for (uint64_t i = 1; i <= 5; ++i) {
    MemberReport report = world.Exit(World::RunOf(100 + i), 3, EndClass::kUser, false);
    report.reason = "no file /data/" + std::to_string(i);
    world.Beat(World::Worker(1), {report}, false);
  }
  const Sweep& sweep = *world.state().FindSweep(World::SweepOf(1));
  EXPECT_EQ(sweep.status.state, SweepState::kPaused);
  EXPECT_EQ(world.StateOf(World::RunOf(106)), RunState::kActive);
  EXPECT_FALSE(world.state().FindRun(World::RunOf(106))->status.pause_req);
}

// SW4: slot hours count ended and running attempts; live runs are paused with the sweep.
TEST(Budget, PausesWhatHasSpentItsSlotHours) {
  World world;
  world.AddWorker(1, 2);
  SubmitSweep event;
  event.sweep = {.id = World::SweepOf(1), .project = "default", .name = "b", .runs = 1};
  event.sweep.budget_slot_ms = 60000;
  event.first = {World::Planned(1, "k")};
  event.first[0].run.id = kRun;
  event.first[0].run.need = {.count = 2};
  world.Do(event);
  world.Place();
  world.Beat(World::Worker(1), {world.Report(kRun, RecordState::kRunning)});
  world.Advance(29000);
  world.Do(Tick{});
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(1))->status.state, SweepState::kActive);
  world.Advance(1000);
  world.Do(Tick{});
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(1))->status.state, SweepState::kPaused);
  EXPECT_EQ(world.AttemptOf(kRun).status.stop_reason, StopReason::kPause);
}

}  // namespace
}  // namespace switchyard::scheduler
