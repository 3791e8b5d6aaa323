// What the core makes of stored rows at a start.
#include <gtest/gtest.h>

#include "server/scheduler/apply.h"
#include "server/scheduler/lease_policy.h"
#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

RunRow MakeRow(uint64_t n, uint32_t rerun) {
  RunRow row;
  row.id = {Uuid{3, n}};
  row.sweep = {Uuid{4, 1}};
  row.project = "default";
  row.run_key = "key";
  row.rerun = rerun;
  return row;
}

// A run has ended, its worker still sends the tail of its stream, and the coordinator is killed:
// the start that follows knows the run, takes the rest, and then forgets it.
TEST(RestoreTest, AnEndedRunStaysWhileItsStreamIsOpen) {
  StoredRows rows;
  rows.generation = 1;
  rows.runs = {MakeRow(1, 0)};
  rows.run_status = {{.id = rows.runs[0].id, .state = RunState::kSucceeded}};
  rows.attempts = {{.epoch = {281474976710657}, .run = rows.runs[0].id, .ordinal = 1}};
  rows.attempt_status = {{.epoch = {281474976710657}, .state = AttemptState::kSucceeded}};
  rows.members = {{.epoch = {281474976710657}, .state = MemberState::kExited}};
  rows.streams = {{.epoch = {281474976710657}, .acked = 3, .declared_last = 5}};
  const Now now;
  State state = Restore(rows, now);
  ASSERT_NE(state.FindRun(rows.runs[0].id), nullptr);
  ASSERT_NE(state.FindAttempt({281474976710657}), nullptr);
  const Change sealed[] = {
      StreamRow{.epoch = {281474976710657}, .acked = 5, .declared_last = 5, .sealed = true}};
  Apply(sealed, now, &state);
  EXPECT_EQ(state.FindAttempt({281474976710657}), nullptr);
  EXPECT_EQ(state.FindRun(rows.runs[0].id), nullptr);
}

// RE2: an attempt that is being stopped when the coordinator starts anew has used up all of its
// time.
TEST(RestoreTest, AStoppingAttemptKeepsItsTime) {
  StoredRows rows;
  rows.generation = 1;
  rows.runs = {MakeRow(1, 0)};
  rows.run_status = {{.id = rows.runs[0].id, .state = RunState::kActive}};
  rows.attempts = {{.epoch = {281474976710657}, .run = rows.runs[0].id, .ordinal = 1}};
  rows.attempt_status = {
      {.epoch = {281474976710657}, .state = AttemptState::kStopping, .running_ms = 1700000000000}};
  rows.members = {{.epoch = {281474976710657}, .state = MemberState::kStopping}};
  const Now now{.now = {1000000}, .unix_ms = 1700000025000};
  const State state = Restore(rows, now);
  const Attempt* attempt = state.FindAttempt({281474976710657});
  ASSERT_NE(attempt, nullptr);
  ASSERT_TRUE(attempt->running_since.has_value());
  EXPECT_EQ((now.now - *attempt->running_since).count(), 25000);
}

// A rerun with the same identity has ended while the run before it goes on: the identity still
// names the one that lives.
TEST(RestoreTest, AnEndedRunDoesNotHideTheLiveOneOfItsIdentity) {
  StoredRows rows;
  rows.generation = 1;
  rows.runs = {MakeRow(1, 0), MakeRow(2, 1)};
  rows.run_status = {{.id = rows.runs[0].id, .state = RunState::kQueued},
                     {.id = rows.runs[1].id, .state = RunState::kCancelled}};
  const State state = Restore(rows, Now{});
  const auto live = state.live_keys.find(LiveKey("default", "key"));
  ASSERT_NE(live, state.live_keys.end());
  EXPECT_EQ(live->second, rows.runs[0].id);
}

// The wall clock was set back a day before the coordinator started again: a run that waits for its
// next attempt waits no longer than any run does.
TEST(RestoreTest, AWallClockSetBackDelaysNoRun) {
  StoredRows rows;
  rows.generation = 1;
  rows.runs = {MakeRow(1, 0)};
  const int64_t day_ms = 86'400'000;
  rows.run_status = {
      {.id = rows.runs[0].id, .state = RunState::kBackoff, .not_before_ms = 2 * day_ms}};
  const Now now{.now = {1000}, .unix_ms = day_ms};
  const State state = Restore(rows, now);
  EXPECT_EQ(state.FindRun(rows.runs[0].id)->not_before, now.now + kBackoffMax);
}

// A coordinator that was restored from before the end of an attempt asks its worker for it. That
// one was through with it and refuses: the attempt is lost and its run goes on, instead of waiting.
TEST(RestoreTest, ARefusalOfALaunchedAttemptEndsIt) {
  World world;
  const WorkerId worker = world.AddWorker(1, 1);
  world.Submit(1, 1);
  world.Place();
  const RunId run = World::RunOf(101);
  world.Beat(worker, {world.Report(run, RecordState::kRunning)});
  MemberReport report = world.Report(run, RecordState::kRefused);
  report.reason = "old_generation: 1, the coordinator is of generation 2";
  world.Beat(worker, {report});
  EXPECT_EQ(world.StateOf(run), RunState::kBackoff);
}

// The same for an attempt whose last lines are waited for: the worker has dropped them, since the
// coordinator before the restore had stored them.
TEST(RestoreTest, ARefusalEndsAWaitForTheStream) {
  World world = World::Running();
  const RunId run = World::RunOf(101);
  const WorkerId worker = World::Worker(1);
  world.Beat(worker, {world.Exit(run, 0, EndClass::kOk, true, /*last_seq=*/5)});
  ASSERT_EQ(world.AttemptOf(run).status.state, AttemptState::kStopping);
  MemberReport report = world.Report(run, RecordState::kRefused);
  report.reason = "old_generation: 1, the coordinator is of generation 2";
  world.Beat(worker, {report});
  EXPECT_EQ(world.AttemptOf(run).status.state, AttemptState::kLost);
  EXPECT_EQ(world.StateOf(run), RunState::kBackoff);
}

}  // namespace
}  // namespace switchyard::scheduler
