#include "server/scheduler/decide.h"

#include <gtest/gtest.h>

#include "server/scheduler/lease_policy.h"
#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

const RunId kRun = World::RunOf(101);

World Running() { return World::Running(); }

// Finished work counts when its last line is stored, not when the process is gone.
TEST(Decide, WaitsForTheStreamBeforeSuccess) {
  World world = Running();
  world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kOk, true, 5)});
  EXPECT_EQ(world.AttemptOf(kRun).status.state, AttemptState::kStopping);
  EXPECT_EQ(world.StateOf(kRun), RunState::kActive);
  EXPECT_TRUE(world.state().FindWorker(World::Worker(1))->held.empty()) << "the slot is free";
  world.Lines(kRun, 1, 5);
  EXPECT_EQ(world.StateOf(kRun), RunState::kSucceeded);
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(1)), nullptr) << "completed";
}

// A short job may be seen first as ended: the earlier states are walked through in one decision.
TEST(Decide, WalksAnEndThatWasNeverSeenRunning) {
  World world;
  world.AddWorker(1, 1);
  world.Submit(1, 1);
  world.Place();
  const Decision decision =
      world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kOk, true, 0)});
  ASSERT_EQ(ChangesOf<AttemptStatus>(decision).size(), 1u);
  EXPECT_EQ(ChangesOf<AttemptStatus>(decision)[0].state, AttemptState::kSucceeded);
  EXPECT_GT(ChangesOf<AttemptStatus>(decision)[0].running_ms, 0);
}

// Epochs rise over all attempts and carry the generation.
TEST(Decide, GivesEveryAttemptAHigherEpoch) {
  World world;
  world.AddWorker(1, 2);
  world.Submit(1, 2);
  const Decision decision = world.Place();
  const auto attempts = ChangesOf<AttemptRow>(decision);
  ASSERT_EQ(attempts.size(), 2u);
  EXPECT_LT(attempts[0].epoch, attempts[1].epoch);
  EXPECT_EQ(attempts[0].epoch.value >> 48, 1u);
}

// Exit 0 without a valid, complete record is no success.
TEST(Decide, TakesAnIncompleteExitForACrash) {
  World world = Running();
  world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kNone, false)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
  EXPECT_EQ(world.AttemptOf(kRun).status.end_class, EndClass::kInternal);
}

// A crash in teardown, behind a complete record, takes nothing back (protocol 2.3).
TEST(Decide, TakesACompleteRecordAgainstACrashBehindIt) {
  World world = Running();
  MemberReport report = world.Exit(kRun, 0, EndClass::kOk, true);
  report.signal = 11;
  world.Beat(World::Worker(1), {report});
  EXPECT_EQ(world.StateOf(kRun), RunState::kSucceeded);
  EXPECT_EQ(world.AttemptOf(kRun).status.end_class, EndClass::kOk);
}

// Guards end a run as an observation, and keep their class.
TEST(Decide, FailsAGuardedRunAtOnce) {
  World world = Running();
  world.Beat(World::Worker(1), {world.Exit(kRun, 77, EndClass::kGuard, true)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kFailed);
  EXPECT_EQ(world.AttemptOf(kRun).status.end_class, EndClass::kGuard);
}

// Infrastructure ends are tried again after a pause.
TEST(Decide, RequeuesAfterInfrastructureEnds) {
  World world = Running();
  world.Beat(World::Worker(1), {world.Exit(kRun, 69, EndClass::kInfra, false)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
  world.Do(Tick{});
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
  world.Advance(2500);
  world.Do(Tick{});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
  world.Place();
  EXPECT_EQ(world.AttemptOf(kRun).row.ordinal, 2u);
}

// Twenty ends in a row without a newer checkpoint quarantine the run.
TEST(Decide, QuarantinesARunWithoutProgress) {
  World world = Running();
  for (uint32_t i = 1; i < kInfraStreakMax; ++i) {
    world.Beat(World::Worker(1), {world.Exit(kRun, 69, EndClass::kInfra, false)});
    ASSERT_EQ(world.StateOf(kRun), RunState::kBackoff) << i;
    world.Advance(61000);
    world.Beat(World::Worker(1), {});
    world.Do(Tick{});
    world.Place();
  }
  world.Beat(World::Worker(1), {world.Exit(kRun, 69, EndClass::kInfra, false)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQuarantined);
}

// Silence of ten minutes loses the attempt; nothing before that does.
TEST(Decide, LosesAttemptsOfASilentWorker) {
  World world = Running();
  world.Advance(kLostAfter.count() - 1);
  EXPECT_FALSE(world.Do(Tick{.random = 7}).has_expired_leases());
  EXPECT_EQ(world.StateOf(kRun), RunState::kActive);
  world.Advance(1);
  const Decision decision = world.Do(Tick{.random = 7});
  EXPECT_EQ(decision.leases_expired[static_cast<size_t>(Profile::kResilient)], 1u);
  EXPECT_EQ(decision.leases_expired[static_cast<size_t>(Profile::kExclusive)], 0u);
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
  EXPECT_EQ(world.state().FindWorker(World::Worker(1))->contact, Contact::kLost);
}

// Expired leases are counted by the profile of the run.
TEST(Decide, CountsExpiredLeasesByProfile) {
  World world = World::Running({.policy = {.profile = Profile::kExclusive}});
  world.Advance(kLostAfter.count() + 60000);
  const Decision decision = world.Do(Tick{.random = 7});
  EXPECT_EQ(decision.leases_expired[static_cast<size_t>(Profile::kExclusive)], 1u);
  EXPECT_EQ(decision.leases_expired[static_cast<size_t>(Profile::kResilient)], 0u);
}

// W6 by a signal at the agent: what runs is drained, what was on its way there is refused and is
// nobody's fault, nothing new is placed; a new agent is ready again.
TEST(Decide, AWorkerThatLeavesGetsNothingNew) {
  World world;
  world.AddWorker(1, 3);
  world.Submit(1, 3);
  world.Place();
  const WorkerId worker = World::Worker(1);
  world.Beat(worker, {world.Report(kRun, RecordState::kRunning),
                      world.Report(World::RunOf(102), RecordState::kRunning),
                      world.Report(World::RunOf(103), RecordState::kRunning)});
  const RunId refused = World::RunOf(102);
  world.Beat(worker, {world.Report(kRun, RecordState::kRunning),
                      world.Report(refused, RecordState::kRunning)});
  ASSERT_EQ(world.StateOf(World::RunOf(103)), RunState::kBackoff) << "without a record";
  MemberReport exit = world.Exit(refused, 75, EndClass::kStopped, false);
  world.Leave(worker, {world.Report(kRun, RecordState::kRunning), exit}, 20000);
  EXPECT_EQ(world.StateOf(refused), RunState::kQueued);
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kDrain);
  EXPECT_EQ(world.AttemptOf(kRun).status.stop_reason, StopReason::kDrain);
  EXPECT_EQ(world.AttemptOf(kRun).status.grace_ms, 20000u);
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 0u);
  world.Leave(worker, {world.Exit(kRun, 75, EndClass::kStopped, false)}, 20000);
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
  Register again{.worker = world.state().FindWorker(worker)->row, .nonce = "nonce"};
  again.worker.incarnation = 2;
  world.Do(again);
  world.Beat(worker, {}, /*applied=*/false);
  EXPECT_EQ(std::get<ScheduleAnswer>(world.Place().answer).placed, 2u);
}

// An assignment that crosses the signal on its way: refused, and neither the run's nor the worker's
// failure.
TEST(Decide, ARefusalOfAWorkerThatLeavesIsNoFailure) {
  World world;
  world.AddWorker(1, 1);
  world.Submit(1, 1);
  world.Place();
  MemberReport report = world.Report(kRun, RecordState::kRefused);
  report.reason = "draining";
  world.Leave(World::Worker(1), {report}, 20000);
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
  EXPECT_EQ(world.state().FindRun(kRun)->status.infra_fail, 0u);
}

// An agent that has applied the assignment and has no record of it will never launch it.
TEST(Decide, LosesAnAttemptWithoutARecord) {
  World world;
  world.AddWorker(1, 1);
  world.Submit(1, 1);
  world.Place();
  world.Beat(World::Worker(1), {}, /*applied=*/false);
  EXPECT_EQ(world.StateOf(kRun), RunState::kActive) << "it has not seen the assignment";
  world.Beat(World::Worker(1), {});
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
}

// A new instance proves that the old processes are gone.
TEST(Decide, LosesAttemptsOfARestartedHostAtOnce) {
  World world = Running();
  Register event{.worker = world.state().FindWorker(World::Worker(1))->row, .nonce = "second"};
  event.worker.incarnation = 2;
  event.worker.instance_id = "boot-b";
  ASSERT_TRUE(world.Do(event).status.ok());
  world.Beat(World::Worker(1), {}, /*applied=*/false);
  EXPECT_EQ(world.StateOf(kRun), RunState::kBackoff);
}

// The late outcome of an attempt that was given up changes nothing but history.
TEST(Decide, RecordsALateOutcomeOnce) {
  World world = Running();
  const MemberReport late = world.Exit(kRun, 0, EndClass::kOk, true, 3);
  world.Advance(kLostAfter.count());
  world.Do(Tick{.random = 7});
  const Decision first = world.Beat(World::Worker(1), {late});
  EXPECT_EQ(ChangesOf<HistoryRow>(first).size(), 1u);
  EXPECT_TRUE(ChangesOf<RunStatus>(first).empty());
  EXPECT_TRUE(std::get<HeartbeatAnswer>(first.answer).gc.empty()) << "its lines are wanted still";
  const Decision again = world.Beat(World::Worker(1), {late});
  EXPECT_TRUE(ChangesOf<HistoryRow>(again).empty());
}

// Old messages change nothing: nonce, incarnation, sequence.
TEST(Decide, DropsStaleHeartbeats) {
  World world = Running();
  Heartbeat event{.worker = World::Worker(1), .nonce = "other", .incarnation = 1, .hb_seq = 99};
  EXPECT_EQ(world.Do(event).status.code(), Code::kFailedPrecondition);
  event.nonce = "nonce";
  event.incarnation = 7;
  EXPECT_EQ(world.Do(event).status.code(), Code::kFailedPrecondition);
  event.incarnation = 1;
  event.hb_seq = 1;
  event.observed = {world.Exit(kRun, 70, EndClass::kInternal, false)};
  const Decision decision = world.Do(event);
  EXPECT_TRUE(decision.status.ok());
  EXPECT_TRUE(decision.changes.empty());
  EXPECT_EQ(decision.stale, std::vector{StaleKind::kHbSeq});
}

// A registration that the network delivers once more does not let in again what was heard; that of
// an agent that has started anew counts from the first heartbeat.
TEST(Decide, ADoubledRegistrationLetsNoOldHeartbeatIn) {
  World world = Running();
  Register event{.worker = world.state().FindWorker(World::Worker(1))->row, .nonce = "nonce"};
  Heartbeat old{.worker = World::Worker(1),
                .nonce = "nonce",
                .incarnation = 1,
                .hb_seq = world.state().FindWorker(World::Worker(1))->hb_seq,
                .observed = {world.Exit(kRun, 70, EndClass::kInternal, false)}};
  ASSERT_GT(old.hb_seq, 0u);
  ASSERT_TRUE(world.Do(event).status.ok());
  EXPECT_EQ(world.Do(old).stale, std::vector{StaleKind::kHbSeq});
  event.worker.incarnation = 2;
  ASSERT_TRUE(world.Do(event).status.ok());
  old.incarnation = 2;
  old.hb_seq = 1;
  EXPECT_TRUE(world.Do(old).stale.empty());
}

// A superseded agent and a worker that saw a newer database are turned away.
TEST(Decide, RefusesRegistrationsOfThePast) {
  World world;
  world.AddWorker(1, 1);
  Register event{.worker = world.state().FindWorker(World::Worker(1))->row, .nonce = "n"};
  event.worker.incarnation = 0;
  EXPECT_EQ(world.Do(event).status.code(), Code::kFailedPrecondition);
  event.worker.incarnation = 1;
  event.seen_generation = 2;
  EXPECT_EQ(world.Do(event).status.code(), Code::kFailedPrecondition);
}

// A batch counts once: a duplicate gets the same answer, a gap the wanted number.
TEST(Decide, AcknowledgesEachLineOnce) {
  World world = Running();
  EXPECT_EQ(std::get<AppendAnswer>(world.Lines(kRun, 1, 10).answer).committed, 10u);
  const AppendAnswer twice = std::get<AppendAnswer>(world.Lines(kRun, 1, 10).answer);
  EXPECT_EQ(twice.committed, 10u);
  EXPECT_EQ(twice.accepted_from, 0u);
  const AppendAnswer overlap = std::get<AppendAnswer>(world.Lines(kRun, 8, 5).answer);
  EXPECT_EQ(overlap.accepted_from, 11u);
  EXPECT_EQ(overlap.committed, 12u);
  const Decision gap = world.Lines(kRun, 20, 5);
  EXPECT_EQ(std::get<AppendAnswer>(gap.answer).expect, 13u);
  EXPECT_TRUE(gap.changes.empty());
}

// A stream belongs to one (run, ordinal, epoch, rank, worker).
TEST(Decide, RefusesLinesThatDoNotBelongTogether) {
  World world = Running();
  const Attempt& attempt = world.AttemptOf(kRun);
  Append event{.run = kRun,
               .ordinal = 2,
               .epoch = attempt.row.epoch,
               .worker = attempt.row.worker,
               .first_seq = 1,
               .n = 1};
  EXPECT_EQ(world.Do(event).status.code(), Code::kFailedPrecondition);
  event.ordinal = 1;
  event.worker = World::Worker(9);
  EXPECT_EQ(world.Do(event).status.code(), Code::kFailedPrecondition);
}

// A stream is sealed when its worker has dropped the payload, and its attempt leaves the memory.
TEST(Decide, SealsAStreamWhosePayloadIsGone) {
  World world = Running();
  world.Lines(kRun, 1, 5);
  const Decision end = world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kOk, true, 5)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kSucceeded);
  const MemberReport record = world.Exit(kRun, 0, EndClass::kOk, true, 5);
  const Decision gc = world.Beat(World::Worker(1), {record});
  ASSERT_EQ(std::get<HeartbeatAnswer>(gc.answer).gc.size(), 1u);
  world.Beat(World::Worker(1), {});
  EXPECT_TRUE(world.state().attempts.empty());
  EXPECT_TRUE(world.state().runs.empty());
  // The record of an attempt that is gone may go, too.
  const Decision late = world.Beat(World::Worker(1), {record});
  EXPECT_EQ(std::get<HeartbeatAnswer>(late.answer).gc.size(), 1u);
}

// Cancelling a queued run ends it; a running one is asked to stop, and finished work wins.
TEST(Decide, CancelsByState) {
  World world;
  world.AddWorker(1, 1);
  world.Submit(1, 2);
  world.Place();
  const RunId queued = World::RunOf(102);
  world.Do(SteerRun{.run = queued, .reason = "mistake"});
  EXPECT_EQ(world.state().FindRun(queued), nullptr);
  world.Beat(World::Worker(1), {world.Report(kRun, RecordState::kRunning)});
  world.Do(SteerRun{.run = kRun, .reason = ""});
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kCancel);
  EXPECT_EQ(WantedOf(world.state(), World::Worker(1)).size(), 1u);
  EXPECT_EQ(std::get<SteerAnswer>(world.Do(SteerRun{.run = kRun}).answer).runs_affected, 0u);
  world.Lines(kRun, 1, 1);
  world.Beat(World::Worker(1), {world.Exit(kRun, 0, EndClass::kOk, true, 1)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kSucceeded);
}

// A stop on request ends as cancelled.
TEST(Decide, EndsACancelledAttempt) {
  World world = Running();
  world.Do(SteerSweep{.sweep = World::SweepOf(1), .reason = "enough"});
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(1))->status.state, SweepState::kCancelling);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false, 0)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kCancelled);
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(1)), nullptr);
}

// SIGTERM from outside is no failure: the run waits for another place.
TEST(Decide, RequeuesAfterAStopFromOutside) {
  World world = Running();
  world.Lines(kRun, 1, 2);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false, 2)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
}

// RE2: an attempt that ends before the limit leaves its successor the rest of it, whether it was
// lost, crashed or drained.
TEST(Decide, ARunKeepsItsTimeLimitOverItsAttempts) {
  World world = World::Running({.timeout_ms = 60000});
  world.Advance(25000);
  world.Publish(kRun, 10);
  world.Crash(kRun, 10, 11);
  EXPECT_EQ(world.state().FindRun(kRun)->status.active_ms, 25000u);
  world.StartAgain(kRun);
  world.Do(SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kDrain});
  world.Advance(20000);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false)}, false);
  world.Do(SteerWorker{.worker = World::Worker(1), .verb = WorkerVerb::kUndrain});
  EXPECT_EQ(world.state().FindRun(kRun)->status.active_ms, 45000u);
  world.StartAgain(kRun);
  world.Advance(14999);
  world.Do(Tick{});
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kRun);
  world.Advance(1);
  world.Do(Tick{});
  EXPECT_EQ(world.AttemptOf(kRun).status.stop_reason, StopReason::kTimeout);
}

// The time limit ends a run with a class of its own.
TEST(Decide, EndsARunAtItsTimeLimit) {
  World world;
  world.AddWorker(1, 1);
  world.Submit(1, 1, {.timeout_ms = 60000});
  world.Place();
  world.Beat(World::Worker(1), {world.Report(kRun, RecordState::kRunning)});
  world.Advance(60000);
  world.Do(Tick{});
  EXPECT_EQ(world.AttemptOf(kRun).status.intent, Intent::kDrain);
  world.Beat(World::Worker(1), {world.Exit(kRun, 75, EndClass::kStopped, false, 0)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kFailed);
  EXPECT_EQ(world.AttemptOf(kRun).status.end_class, EndClass::kTimeout);
}

// A run that stands is linked, not run again, and counts for both sweeps.
TEST(Decide, LinksRunsWithTheSameIdentity) {
  World world;
  world.Submit(1, 1);
  SubmitSweep event;
  event.sweep = {.id = World::SweepOf(2), .project = "default", .name = "other"};
  event.sweep.runs = 2;
  event.first = {World::Planned(1, "1-1"), World::Planned(2, "gone")};
  event.first[0].run.id = World::RunOf(900);
  event.first[1].run.id = World::RunOf(901);
  event.first[1].stored = std::pair(World::RunOf(77), RunState::kSucceeded);
  const Decision decision = world.Do(event);
  EXPECT_EQ(std::get<ProposeAnswer>(decision.answer).reused, 2u);
  EXPECT_TRUE(ChangesOf<RunRow>(decision).empty());
  // The run is kept when only one of its sweeps is cancelled.
  world.Do(SteerSweep{.sweep = World::SweepOf(1)});
  EXPECT_EQ(world.StateOf(kRun), RunState::kQueued);
  EXPECT_EQ(world.state().FindSweep(World::SweepOf(1)), nullptr);
  world.Do(SteerSweep{.sweep = World::SweepOf(2)});
  EXPECT_TRUE(world.state().runs.empty());
  EXPECT_TRUE(world.state().sweeps.empty());
}

// Resubmitting what is finished is a sweep that is complete at once.
TEST(Decide, CompletesASweepOfReusedRuns) {
  World world;
  SubmitSweep event;
  event.sweep = {.id = World::SweepOf(1), .project = "default", .name = "again"};
  event.sweep.runs = 1;
  event.first = {World::Planned(1, "k")};
  event.first[0].stored = std::pair(World::RunOf(77), RunState::kSucceeded);
  const Decision decision = world.Do(event);
  ASSERT_EQ(ChangesOf<SweepStatus>(decision).size(), 1u);
  EXPECT_EQ(ChangesOf<SweepStatus>(decision)[0].state, SweepState::kCompleted);
}

// No run is made for a sweep that was cancelled while its runs were being expanded.
TEST(Decide, ProposesNothingForACancelledSweep) {
  World world;
  world.Submit(1, 1);
  world.Do(SteerSweep{.sweep = World::SweepOf(1)});
  const Decision decision =
      world.Do(Propose{.sweep = World::SweepOf(1), .runs = {World::Planned(2, "x")}});
  EXPECT_TRUE(decision.changes.empty());
}

// A state restored from its rows decides like the one that wrote them.
TEST(Restore, BringsBackQueueAndAttempts) {
  World world = Running();
  world.Submit(2, 3);
  StoredRows rows;
  rows.generation = 1;
  rows.boot = 2;
  rows.last_epoch = world.state().last_epoch;
  for (const auto& [id, sweep] : world.state().sweeps) {
    rows.sweeps.push_back(sweep.row);
    rows.sweep_status.push_back(sweep.status);
  }
  for (const auto& [id, run] : world.state().runs) {
    rows.runs.push_back(run.row);
    rows.run_status.push_back(run.status);
    for (const SweepLink& link : run.links) {
      rows.links.push_back({.sweep = link.sweep, .number = link.number, .run = id});
    }
  }
  for (const auto& [epoch, attempt] : world.state().attempts) {
    rows.attempts.push_back(attempt.row);
    rows.attempt_status.push_back(attempt.status);
    rows.members.push_back(attempt.members[0]);
    rows.streams.push_back(attempt.streams[0]);
  }
  for (const auto& [id, worker] : world.state().workers) rows.workers.push_back(worker.row);
  const State restored = Restore(std::move(rows), world.now());
  EXPECT_EQ(restored.queued, 3u);
  EXPECT_EQ(restored.runs.size(), 4u);
  const scheduler::Worker& worker = *restored.FindWorker(World::Worker(1));
  EXPECT_EQ(worker.contact, Contact::kUnknown);
  EXPECT_EQ(worker.attempts.size(), 1u);
  EXPECT_EQ(worker.held.size(), 1u);
  EXPECT_EQ(restored.FindSweep(World::SweepOf(2))->live_runs.size(), 3u);
}

}  // namespace
}  // namespace switchyard::scheduler
