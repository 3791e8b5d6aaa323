// What people ask of runs, sweeps, workers and checkpoints; profiles; contacts.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "server/scheduler/decide.h"
#include "server/scheduler/explain.h"
#include "server/scheduler/lease_policy.h"
#include "server/scheduler/plan.h"
#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

const RunId kRun = World::RunOf(101);
const SweepId kSweep = World::SweepOf(1);

Decision Steer(World& world, Verb verb) { return world.Do(SteerRun{.run = kRun, .verb = verb}); }

// A pause stops with a checkpoint and waits; a resume queues it up again.
TEST(Verbs, PauseAndResumeARun) {
  World world = World::Running();
  Steer(world, Verb::kPause);
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kDrain);
  EXPECT_EQ(WantedOf(world.state(), World::Worker(1))[0].grace_ms, kGraceMs);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kPaused);
  EXPECT_EQ(std::get<SteerAnswer>(Steer(world, Verb::kPause).answer).runs_affected, 0u);
  Steer(world, Verb::kResume);
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
  EXPECT_FALSE(world.state().FindRun(kRun)->status.pause_req);
}

// A resume before the stop has ended takes the pause back: the run is placed again.
TEST(Verbs, ResumeOvertakesAPause) {
  World world = World::Running();
  Steer(world, Verb::kPause);
  Steer(world, Verb::kResume);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
}

// S28: pruned is stopped early, never failed or cancelled.
TEST(Verbs, PruneEndsAsStoppedEarly) {
  World world = World::Running({}, 2);
  Steer(world, Verb::kPrune);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kStoppedEarly);
  const Decision queued = world.Do(SteerRun{.run = World::RunOf(102), .verb = Verb::kPrune});
  EXPECT_EQ(ChangesOf<RunStatus>(queued)[0].state, RunState::kStoppedEarly);
}

// S15: kill after cancel raises the intent and leaves no grace; nothing lowers it again.
TEST(Verbs, KillRisesAboveCancel) {
  World world = World::Running();
  Steer(world, Verb::kCancel);
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kCancel);
  Steer(world, Verb::kKill);
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kKill);
  EXPECT_EQ(WantedOf(world.state(), World::Worker(1))[0].grace_ms, 0u);
  Steer(world, Verb::kPause);
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kKill);
  EXPECT_EQ(world.AttemptOf(kRun).status.stop_reason, StopReason::kCancel) << "set once";
}

// An attempt is killed because it was not launched in time. A kill by a user comes too late to be
// told to the worker, and still ends the run instead of letting it be tried again.
TEST(Verbs, KillEndsARunWhoseAttemptIsKilledAnyway) {
  World world;
  const WorkerId worker = world.AddWorker(1, 1);
  world.Submit(1, 1);
  world.Place();
  const RunId run = World::RunOf(101);
  world.Advance(kFormTimeout.count());
  world.Beat(worker, {}, /*applied=*/false);
  world.Do(Tick{});
  ASSERT_EQ(world.AttemptOf(run).status.stop_reason, StopReason::kFormTimeout);
  const Decision decision = world.Do(SteerRun{.run = run, .verb = Verb::kKill});
  EXPECT_EQ(std::get<SteerAnswer>(decision.answer).runs_affected, 1u);
  MemberReport report = world.Report(run, RecordState::kRefused);
  report.reason = "intent";
  world.Beat(worker, {report});
  EXPECT_EQ(world.AttemptOf(run).status.state, AttemptState::kFailed);
  EXPECT_EQ(world.StateOf(run), RunState::kCancelled);
}

// A verb on what has ended says so.
TEST(Verbs, RefuseWhatHasEnded) {
  World world;
  EXPECT_FALSE(Steer(world, Verb::kPause).status.ok());
  EXPECT_TRUE(Steer(world, Verb::kCancel).status.ok()) << "cancel is idempotent";
  EXPECT_FALSE(world.Do(SteerSweep{.sweep = kSweep, .verb = Verb::kPause}).status.ok());
}

// Pausing a sweep pauses its live runs and stops proposals; resuming brings them back.
TEST(Verbs, PauseAndResumeASweep) {
  World world = World::Running({}, 3);
  const Decision paused = world.Do(SteerSweep{.sweep = kSweep, .verb = Verb::kPause});
  EXPECT_EQ(std::get<SteerAnswer>(paused.answer).runs_affected, 3u);
  EXPECT_EQ(world.StateOf(World::RunOf(102)), RunState::kPaused);
  EXPECT_TRUE(world.Do(Propose{.sweep = kSweep, .runs = {World::Planned(4, "x")}}).changes.empty());
  world.Do(SteerSweep{.sweep = kSweep, .verb = Verb::kResume});
  EXPECT_EQ(world.StateOf(World::RunOf(102)), RunState::kQueued);
  EXPECT_EQ(world.state().queued, 2u);
}

// A run that another active sweep wants goes on when one of its sweeps is paused.
TEST(Verbs, AnotherSweepKeepsARunFromBeingPaused) {
  World world;
  world.Submit(1, 1);
  SubmitSweep other;
  other.sweep = {.id = World::SweepOf(2), .project = "default", .name = "other", .runs = 1};
  other.first = {World::Planned(1, "1-1")};
  other.first[0].run.id = World::RunOf(900);
  world.Do(other);
  world.Do(SteerSweep{.sweep = kSweep, .verb = Verb::kPause});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
}

// A new priority moves a queued run to another line at its old age.
TEST(Verbs, PriorityReordersTheQueue) {
  World world;
  world.Submit(1, 2);
  world.Do(SteerRun{.run = World::RunOf(102), .verb = Verb::kPriority, .priority = 5});
  world.AddWorker(1, 1);
  EXPECT_EQ(PlanPlacements(world.state(), world.now().now, 9)[0].run, World::RunOf(102));
  EXPECT_EQ(world.state().queued, 2u);
  world.Do(SteerSweep{.sweep = kSweep, .verb = Verb::kPriority, .priority = 7});
  EXPECT_EQ(world.state().queue.begin()->first.priority, 7);
}

// R19: a retry is a new run with a parent, in the sweep while that is live.
TEST(Verbs, RetryMakesANewRun) {
  World world = World::Running({}, 2);
  world.Beat(World::Worker(1), {world.Exit(kRun, 64, EndClass::kSpec, false)});
  RetryRuns event{.sweep = kSweep};
  event.runs.push_back({.run = World::Planned(0, "1-1").run, .cell = 1});
  event.runs[0].run.id = World::RunOf(777);
  event.runs[0].run.parent = kRun;
  const Decision decision = world.Do(event);
  EXPECT_EQ(std::get<RetryAnswer>(decision.answer).made, 1u);
  EXPECT_EQ(ChangesOf<LinkRow>(decision)[0].number, 3u) << "behind the planned numbers";
  EXPECT_EQ(world.StateOf(World::RunOf(777)), RunState::kQueued);
  // Asked again while that one is live, it makes none.
  event.runs[0].run.id = World::RunOf(778);
  EXPECT_EQ(std::get<RetryAnswer>(world.Do(event).answer).made, 0u);
}

// R19: of an ended sweep it makes a child sweep, which ends with its runs.
TEST(Verbs, RetryOfAnEndedSweepMakesAChild) {
  World world = World::Running();
  world.Beat(World::Worker(1), {world.Exit(kRun, 64, EndClass::kSpec, false)});
  ASSERT_EQ(world.state().FindSweep(kSweep), nullptr);
  RetryRuns event{.sweep = kSweep};
  event.child = SweepRow{.id = World::SweepOf(9), .project = "default", .name = "s.2"};
  event.child->parent = kSweep;
  event.runs.push_back({.run = World::Planned(0, "1-1").run, .cell = 1});
  event.runs[0].run.id = World::RunOf(777);
  event.runs[0].run.parent = kRun;
  world.Do(event);
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(9))->status.state, SweepState::kActive);
  world.Do(SteerRun{.run = World::RunOf(777)});
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(9)), nullptr) << "completed";
}

// W6..W8: a drained worker stops what it runs, with the deadline as grace, and takes nothing new.
TEST(Workers, DrainAndUndrain) {
  World world = World::Running({}, 2);
  world.Do(
      SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kDrain, .deadline_ms = 5000});
  EXPECT_EQ(WantedOf(world.state(), World::Worker(1))[0].grace_ms, 5000u);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false)});
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 0u);
  world.Beat(World::Worker(1), {});
  world.Do(Tick{});
  EXPECT_EQ(world.state().FindWorker(World::Worker(1))->row.admin, AdminState::kDrained);
  world.Do(SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kUndrain});
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 1u);
}

// L5: a worker is drained with a deadline while its attempt is being cancelled with more time: it
// is still cancelled, and by the earlier end. A later one changes nothing.
TEST(Workers, ADrainShortensTheTimeOfACancel) {
  World world = World::Running();
  Steer(world, Verb::kCancel);
  EXPECT_EQ(WantedOf(world.state(), World::Worker(1))[0].grace_ms, kGraceMs);
  SteerWorker drain{.worker = World::Worker(1), .verb = WorkerVerb::kDrain, .deadline_ms = 5000};
  const Decision decision = world.Do(drain);
  EXPECT_EQ(ChangesOf<WantChanged>(decision).size(), 1u) << "its worker is told";
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kCancel);
  EXPECT_EQ(world.AttemptOf(kRun).status.stop_reason, StopReason::kCancel);
  EXPECT_EQ(WantedOf(world.state(), World::Worker(1))[0].grace_ms, 5000u);
  drain.deadline_ms = 20'000;
  EXPECT_TRUE(ChangesOf<AttemptStatus>(world.Do(drain)).empty());
}

// W10, W11: a cordon keeps new work away and lets the rest go on.
TEST(Workers, CordonAndUncordon) {
  World world = World::Running({}, 2);
  world.AddWorker(2, 1);
  world.Do(SteerWorker{.worker = World::Worker(2), .verb = WorkerVerb::kCordon, .reason = "fan"});
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 0u);
  world.Do(SteerWorker{.worker = World::Worker(2), .verb = WorkerVerb::kUncordon});
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 1u);
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kRun);
}

// Confirmed death is only taken for a worker that is out of contact.
TEST(Workers, FenceConfirmsADeath) {
  World world = World::Running({.policy = {.profile = Profile::kLocal}});
  const SteerWorker fence{.worker = World::Worker(1), .verb = WorkerVerb::kFence};
  EXPECT_FALSE(world.Do(fence).status.ok());
  world.Advance(int64_t{24} * 3600 * 1000);
  world.Do(Tick{});
  EXPECT_EQ(world.StateOf(kRun), RunState::kActive) << "local: never by silence";
  EXPECT_TRUE(world.Do(fence).status.ok());
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
}

// The exclusive profile is replaced after X, which holds the safety condition of protocol 5.
TEST(Profiles, ExclusiveIsReplacedAfterItsLease) {
  const double rho = 0.01;
  const double a = static_cast<double>(LeaseMs(Profile::kExclusive, 0)) / 1000;
  const double x = static_cast<double>(ReplaceAfter(Profile::kExclusive)->count()) / 1000;
  EXPECT_GE(x, (a + 0.25) * (1 + rho) / (1 - rho) + 10 * (1 + rho) + 2);
  World world = World::Running({.policy = {.profile = Profile::kExclusive}});
  world.Advance(629999);
  world.Do(Tick{});
  EXPECT_EQ(world.StateOf(kRun), RunState::kActive);
  EXPECT_EQ(world.state().FindWorker(World::Worker(1))->contact, Contact::kSuspect);
  world.Advance(1);
  world.Do(Tick{});
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
  EXPECT_EQ(world.state().FindWorker(World::Worker(1))->contact, Contact::kLost);
}

// W9: a worker lost for a day is shown no more, and welcome when it comes back.
TEST(Workers, RetireAndReturn) {
  World world;
  world.AddWorker(1, 1);
  world.Advance(kRetireAfter.count());
  world.Do(Tick{});
  world.Do(Tick{});
  world.Do(Tick{});
  EXPECT_EQ(world.state().FindWorker(World::Worker(1))->row.admin, AdminState::kRetired);
  world.AddWorker(1, 1);
  EXPECT_TRUE(world.state().FindWorker(World::Worker(1))->IsPlaceable());
}

// M7, W10: a trainer that does not die keeps its slot and cordons its worker until it is reaped.
TEST(Workers, AWedgedTrainerCordonsItsWorker) {
  World world = World::Running();
  world.Beat(World::Worker(1), {world.Report(kRun, RecordState::kWedged)});
  EXPECT_EQ(world.AttemptOf(kRun).members[0].state, MemberState::kWedged);
  EXPECT_TRUE(world.state().FindWorker(World::Worker(1))->row.cordoned);
  EXPECT_EQ(world.state().FindWorker(World::Worker(1))->held.size(), 1u);
  world.Crash(kRun, 1, 9);
  EXPECT_TRUE(world.state().FindWorker(World::Worker(1))->held.empty());
}

std::vector<uint64_t> PublishedSteps(World& world) {
  std::vector<uint64_t> out;
  for (const CheckpointRow& row : world.state().FindRun(kRun)->checkpoints) {
    out.push_back(row.step);
  }
  return out;
}

// C4, C5: the last two and the best are kept; a score that is no number is never best; the rest of
// a live run becomes a tombstone at once, is named to the worker that reaches it, and is gone when
// it says so.
TEST(Checkpoints, AreKeptByTheRetention) {
  World world = World::Running();
  world.Publish(kRun, 10, 2.0);
  world.Publish(kRun, 20, 1.0);
  world.Publish(kRun, 30, std::nan(""));
  world.Publish(kRun, 40, 3.0);
  world.Publish(kRun, 50, 4.0);
  EXPECT_EQ(PublishedSteps(world), (std::vector<uint64_t>{20, 40, 50}));
  EXPECT_EQ(world.state().doomed.size(), 2u);
  const auto beat = [&](std::vector<CheckpointRef> deleted) {
    const scheduler::Worker& worker = *world.state().FindWorker(World::Worker(1));
    return world.Do(Heartbeat{.worker = World::Worker(1),
                              .nonce = worker.nonce,
                              .incarnation = 1,
                              .hb_seq = worker.hb_seq + 1,
                              .observed = {world.Report(kRun, RecordState::kRunning)},
                              .deleted = std::move(deleted)});
  };
  beat({});
  EXPECT_TRUE(TombstonesOf(world.state(), World::Worker(1)).empty());
  world.Do(Tick{});
  const auto named = TombstonesOf(world.state(), World::Worker(1));
  ASSERT_EQ(named.size(), 2u);
  EXPECT_EQ(named[0].step, 10u);
  beat({{.run = kRun, .epoch = named[0].epoch, .step = 10}});
  EXPECT_EQ(world.state().doomed.size(), 1u);
}

// C5, C7: what an ended run has beyond its newest and its best stays for a day, and can be pinned.
TEST(Checkpoints, AnEndedRunHasADayToBePinned) {
  World world = World::Running();
  world.Publish(kRun, 10, 2.0);
  world.Publish(kRun, 20, 1.0);
  world.Publish(kRun, 30, 3.0);
  world.Publish(kRun, 40, 4.0);
  const Epoch epoch = world.AttemptOf(kRun).row.epoch;
  world.Do(Tick{});
  world.Succeed(kRun);
  ASSERT_EQ(world.state().doomed.size(), 2u);
  world.Do(Tick{});
  const CheckpointRef live{.run = kRun, .epoch = epoch, .step = 10};
  const CheckpointRef ended{.run = kRun, .epoch = epoch, .step = 30};
  EXPECT_EQ(world.state().doomed.at(live).row.state, CheckpointState::kTombstoned);
  EXPECT_EQ(world.state().doomed.at(ended).row.state, CheckpointState::kSuperseded);
  EXPECT_FALSE(world.Do(PinCheckpoint{.checkpoint = live}).status.ok());
  EXPECT_TRUE(world.Do(PinCheckpoint{.checkpoint = ended}).status.ok());
  EXPECT_FALSE(world.state().doomed.contains(ended));
}

TEST(Checkpoints, AnEndedRunLosesTheRestAfterADay) {
  World world = World::Running();
  for (uint64_t step = 10; step <= 30; step += 10) world.Publish(kRun, step, 1.0);
  world.Succeed(kRun);
  const auto named = [&] { return TombstonesOf(world.state(), World::Worker(1)).size(); };
  for (int hour = 0; hour < 24; ++hour) {
    world.Do(Tick{});
    EXPECT_EQ(named(), 0u);
    world.Advance(kTombstoneAfter.count() / 24);
  }
  world.Do(Tick{});
  EXPECT_GT(named(), 0u);
}

// ME3: no value that is not finite is the best, in either direction.
TEST(Checkpoints, AnInfiniteScoreIsNeverTheBest) {
  World world = World::Running();
  world.Publish(kRun, 10, 1.0);
  world.Publish(kRun, 20, -std::numeric_limits<double>::infinity());
  world.Publish(kRun, 30, std::numeric_limits<double>::infinity());
  world.Publish(kRun, 40, 3.0);
  world.Publish(kRun, 50, 4.0);
  EXPECT_EQ(PublishedSteps(world), (std::vector<uint64_t>{10, 40, 50}));
}

// A pinned checkpoint stays; without its pin the retention takes it.
TEST(Checkpoints, PinsHold) {
  World world = World::Running();
  world.Publish(kRun, 10, 9.0);
  const CheckpointRef first{.run = kRun, .epoch = world.AttemptOf(kRun).row.epoch, .step = 10};
  EXPECT_TRUE(world.Do(PinCheckpoint{.checkpoint = first}).status.ok());
  for (uint64_t step = 20; step <= 50; step += 10) world.Publish(kRun, step, 1.0);
  EXPECT_EQ(PublishedSteps(world).front(), 10u);
  world.Do(PinCheckpoint{.checkpoint = first, .pinned = false});
  EXPECT_NE(PublishedSteps(world).front(), 10u);
  EXPECT_FALSE(
      world.Do(PinCheckpoint{.checkpoint = {.run = kRun, .epoch = first.epoch, .step = 77}})
          .status.ok());
}

// C6: an attempt that reports another start than it was given could not load the checkpoint: the
// next one is given the one before.
TEST(Checkpoints, ACorruptOneIsFallenBackFrom) {
  World world = World::Running();
  world.Publish(kRun, 10);
  world.Publish(kRun, 20);
  world.Crash(kRun, 25, 11);
  world.StartAgain(kRun);
  ASSERT_EQ(world.AttemptOf(kRun).row.resume_step, 20u);
  const Epoch first = world.AttemptOf(kRun).row.resume_epoch;
  world.Lines(kRun, 1, 2,
              {{.kind = LineFact::Kind::kHello, .seq = 1},
               {.kind = LineFact::Kind::kResume, .seq = 2, .from = first, .step = 10}});
  EXPECT_EQ(PublishedSteps(world), (std::vector<uint64_t>{10}));
}

// Labels, memory and exclusiveness bind a run to a worker; explain says which is missing, from the
// same code that places.
TEST(Placement, RespectsLabelsMemoryAndExclusiveness) {
  World world;
  world.AddWorker(1, 4);
  world.Submit(1, 1, {.policy = {.labels = {"rack=a"}}});
  EXPECT_TRUE(PlanPlacements(world.state(), world.now().now, 9).empty());
  EXPECT_NE(ExplainWait(world.state(), *world.state().FindRun(kRun), world.now().now)
                .find("labelled rack=a"),
            std::string::npos);
  Register big{.worker = world.state().FindWorker(World::Worker(1))->row, .nonce = "n"};
  big.worker.id = World::Worker(2);
  big.worker.labels = {"rack=a"};
  big.worker.memory_bytes = 100;
  world.Do(big);
  ASSERT_EQ(PlanPlacements(world.state(), world.now().now, 9).size(), 1u);
  world.Place();
  world.Submit(2, 2, {.policy = {.memory_bytes = 60, .labels = {"rack=a"}}});
  EXPECT_EQ(PlanPlacements(world.state(), world.now().now, 9).size(), 1u) << "60 of 100 twice";
  world.Submit(3, 1, {.priority = 9, .policy = {.exclusive = true, .labels = {"rack=a"}}});
  const auto plan = PlanPlacements(world.state(), world.now().now, 9);
  for (const Placement& placement : plan) EXPECT_NE(placement.run, World::RunOf(301));
  EXPECT_NE(ExplainWait(world.state(), *world.state().FindRun(World::RunOf(301)), world.now().now)
                .find("of its own"),
            std::string::npos);
}

// The project that has used less lately comes first, whatever the age of its runs; within a pass
// projects take turns.
TEST(Placement, SharesFairlyBetweenProjects) {
  World world = World::Running();
  world.Advance(3600 * 1000);
  world.Beat(World::Worker(1), {world.Report(kRun, RecordState::kRunning)});
  EXPECT_NEAR(world.state().UsageOf("default", world.now().now), 3600, 60);
  world.Submit(2, 2);
  world.Submit(3, 2, {.project = "other"});
  world.AddWorker(2, 2);
  const auto plan = PlanPlacements(world.state(), world.now().now, 9);
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_EQ(plan[0].run, World::RunOf(301));
  EXPECT_EQ(plan[1].run, World::RunOf(302));
  // Half is forgotten after a half-life.
  Usage usage{.slot_seconds = 8, .slots = 0, .at = {0}};
  EXPECT_DOUBLE_EQ(usage.At({int64_t{24} * 3600 * 1000}), 4);
}

// 5: the queue is capped by the proposals, and a pass places at most as many as it is told.
TEST(Placement, IsBoundedPerPassAndSkips) {
  World world;
  world.Submit(1, 300);
  world.AddWorker(1, 299);
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Do(Schedule{.limit = 3, .skip = {kRun}}).answer).placed,
            3u);
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 200u);
}

}  // namespace
}  // namespace switchyard::scheduler
