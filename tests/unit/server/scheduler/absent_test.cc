// What workers name and memory lacks: sealed attempts, those of nobody, and those that a restore of
// the database took out of the record.
#include <gtest/gtest.h>

#include "tests/unit/server/scheduler/world.h"

namespace switchyard::scheduler {
namespace {

constexpr uint64_t kFirst = uint64_t{1} << 48;   // epochs of generation 1
constexpr uint64_t kSecond = uint64_t{2} << 48;  // and of 2

// A restored coordinator with one worker of one slot and a queued run. The worker has attempt 3 of
// that run, which the backup did not know.
class AbsentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    world_.state().generation = 2;
    world_.state().last_epoch = kSecond;
    worker_ = world_.AddWorker(1, 1);
    world_.Submit(1, 1);
    report_.run = run_;
    report_.ordinal = 3;
    report_.epoch = lost_;
    report_.state = RecordState::kExited;
    report_.last_seq = 2;
  }

  Decision Beat(std::optional<RecordedAttempt> recorded, std::vector<MemberReport> observed) {
    Heartbeat event = world_.BeatOf(worker_, std::move(observed));
    event.applied = NextRev(&world_.state());
    if (recorded.has_value()) event.recorded[lost_] = *recorded;
    return world_.Do(event);
  }
  Append Lines(uint64_t first, uint64_t n) {
    return {.run = run_,
            .ordinal = 3,
            .epoch = lost_,
            .worker = worker_,
            .first_seq = first,
            .n = n,
            .lines = {},
            .recorded = RecordedAttempt{}};
  }
  static const std::vector<AttemptRef>& GcOf(const Decision& decision) {
    return std::get<HeartbeatAnswer>(decision.answer).gc;
  }

  World world_;
  WorkerId worker_;
  const RunId run_ = World::RunOf(101);
  const Epoch lost_{kFirst + 7};
  MemberReport report_;
};

// Protocol 10: a restored backup is older than an attempt whose worker is there: the attempt is in
// the record again, LOST with its own epoch, its lines are taken, and then its worker may forget
// it.
TEST_F(AbsentTest, AnAttemptNewerThanTheBackupComesBackWithItsLines) {
  const Decision decision = Beat(RecordedAttempt{}, {report_});
  ASSERT_EQ(ChangesOf<AttemptRow>(decision).size(), 1u);
  const AttemptRow row = ChangesOf<AttemptRow>(decision)[0];
  EXPECT_EQ(row.epoch, lost_);
  EXPECT_EQ(row.run, run_);
  EXPECT_EQ(row.ordinal, 3u);
  EXPECT_EQ(row.worker, worker_);
  ASSERT_EQ(ChangesOf<AttemptStatus>(decision).size(), 1u);
  EXPECT_EQ(ChangesOf<AttemptStatus>(decision)[0].state, AttemptState::kLost);
  ASSERT_EQ(ChangesOf<MemberRow>(decision).size(), 1u);
  EXPECT_EQ(ChangesOf<MemberRow>(decision)[0].state, MemberState::kLost);
  ASSERT_EQ(ChangesOf<StreamRow>(decision).size(), 1u);
  EXPECT_TRUE(ChangesOf<RunStatus>(decision).empty()) << "nothing is decided about the run";
  EXPECT_TRUE(GcOf(decision).empty()) << "its lines are still to come";
  ASSERT_EQ(ChangesOf<HistoryRow>(decision).size(), 1u);
  EXPECT_EQ(ChangesOf<HistoryRow>(decision)[0].kind, "attempt_recovered");

  const Decision stored = world_.Do(Lines(1, 2));
  ASSERT_TRUE(stored.status.ok()) << stored.status.ToString();
  EXPECT_EQ(std::get<AppendAnswer>(stored.answer).committed, 2u);
  const Decision after = Beat(std::nullopt, {report_});
  ASSERT_EQ(GcOf(after).size(), 1u);
  EXPECT_EQ(GcOf(after)[0].epoch, lost_);
  Beat(std::nullopt, {});
  EXPECT_EQ(world_.state().FindAttempt(lost_), nullptr) << "sealed";
  EXPECT_NE(world_.state().FindRun(run_), nullptr);
}

// Its run is placed as if it had never been; the new attempt has an epoch of the new generation.
TEST_F(AbsentTest, TheRunGoesOnBesideIt) {
  Beat(RecordedAttempt{}, {report_});
  world_.Place();
  const Attempt& attempt = world_.AttemptOf(run_);
  EXPECT_GT(attempt.row.epoch.value, kSecond);
  EXPECT_EQ(attempt.row.ordinal, 1u);
  EXPECT_EQ(world_.state().FindRun(run_)->attempts.size(), 2u);
}

// Lines may come before any heartbeat: they bring the attempt back and have to come again, from the
// first one. A refusal would end their sending.
TEST_F(AbsentTest, LinesBringItBackAndComeAgain) {
  const Decision first = world_.Do(Lines(5, 2));
  ASSERT_TRUE(first.status.ok()) << first.status.ToString();
  EXPECT_EQ(std::get<AppendAnswer>(first.answer).expect, 1u);
  EXPECT_EQ(std::get<AppendAnswer>(first.answer).accepted_from, 0u);
  ASSERT_EQ(ChangesOf<AttemptRow>(first).size(), 1u);
  EXPECT_EQ(std::get<AppendAnswer>(world_.Do(Lines(1, 2)).answer).committed, 2u);
}

TEST_F(AbsentTest, OutputBringsItBackAndComesAgain) {
  AppendLog event{.run = run_,
                  .ordinal = 3,
                  .epoch = lost_,
                  .worker = worker_,
                  .offset = 100,
                  .size = 10,
                  .recorded = RecordedAttempt{}};
  const Decision first = world_.Do(event);
  ASSERT_TRUE(first.status.ok()) << first.status.ToString();
  EXPECT_EQ(std::get<AppendLogAnswer>(first.answer).committed, 0u);
  EXPECT_EQ(ChangesOf<AttemptRow>(first).size(), 1u);
  event.offset = 0;
  EXPECT_EQ(std::get<AppendLogAnswer>(world_.Do(event).answer).committed, 10u);
}

// A checkpoint that it announces is nobody's to resume from, and its start makes it no head of the
// run's curve: an older attempt, that the record still has as the current one, may yet succeed.
TEST_F(AbsentTest, ItsCheckpointsAreOrphans) {
  Beat(RecordedAttempt{}, {report_});
  Append event = Lines(1, 2);
  event.lines = {
      {.kind = LineFact::Kind::kHello, .seq = 1, .digest = {}, .path = {}},
      {.kind = LineFact::Kind::kCheckpoint, .seq = 2, .step = 9, .digest = {}, .path = {}}};
  const Decision decision = world_.Do(event);
  ASSERT_EQ(ChangesOf<CheckpointRow>(decision).size(), 1u);
  EXPECT_EQ(ChangesOf<CheckpointRow>(decision)[0].state, CheckpointState::kOrphan);
  EXPECT_FALSE(world_.state().FindAttempt(lost_)->status.start_reported);
}

// One that the restored record has, and whose stream is sealed there: its worker may forget it.
TEST_F(AbsentTest, ASealedOneOfAnEarlierGenerationIsForgotten) {
  const RecordedAttempt sealed{.is_stored = true, .run = {}};
  const Decision decision = Beat(sealed, {report_});
  EXPECT_TRUE(ChangesOf<AttemptRow>(decision).empty());
  ASSERT_EQ(GcOf(decision).size(), 1u);
  Append event = Lines(1, 2);
  event.recorded = sealed;
  const Decision refused = world_.Do(event);
  EXPECT_EQ(refused.status.code(), Code::kFailedPrecondition);
  EXPECT_NE(refused.status.message().find("sealed"), std::string::npos);
}

// A run that the record does not know: nothing is made of it, and its worker keeps the directory.
TEST_F(AbsentTest, AnAttemptOfAnUnknownRunStaysWithItsWorker) {
  report_.run = World::RunOf(999);
  const Decision decision = Beat(RecordedAttempt{}, {report_});
  EXPECT_TRUE(ChangesOf<AttemptRow>(decision).empty());
  EXPECT_TRUE(GcOf(decision).empty());
  ASSERT_EQ(decision.stale.size(), 1u);
  EXPECT_EQ(decision.stale[0], StaleKind::kUnknownAttempt);
  Append event = Lines(1, 2);
  event.run = World::RunOf(999);
  EXPECT_EQ(world_.Do(event).status.code(), Code::kFailedPrecondition);
}

// Its run has ended since the restore and left memory: it ends no second time, and is forgotten
// again with the attempt.
TEST_F(AbsentTest, AnEndedRunIsKnownAgainWhileTheStreamIsOpen) {
  RunRow row;
  row.id = World::RunOf(500);
  row.project = "default";
  row.run_key = "ended";
  const RunStatus status{.id = row.id, .state = RunState::kCancelled, .cancel_req = true};
  report_.run = row.id;
  const Decision decision = Beat(RecordedAttempt{.run = {{row, status}}}, {report_});
  EXPECT_EQ(ChangesOf<AttemptRow>(decision).size(), 1u);
  ASSERT_NE(world_.state().FindRun(row.id), nullptr);
  EXPECT_EQ(world_.state().FindRun(row.id)->status, status);
  EXPECT_FALSE(world_.state().live_keys.contains(LiveKey("default", "ended")));
  Append event = Lines(1, 2);
  event.run = row.id;
  EXPECT_EQ(std::get<AppendAnswer>(world_.Do(event).answer).committed, 2u);
  EXPECT_EQ(GcOf(Beat(std::nullopt, {report_})).size(), 1u);
  Beat(std::nullopt, {});
  EXPECT_EQ(world_.state().FindRun(row.id), nullptr);
}

// What cannot be told yet is neither refused nor forgotten: the record could not be read, the run
// ended in the same turn, the worker has not registered.
TEST_F(AbsentTest, WhatCannotBeToldYetIsAskedAgain) {
  Decision decision = Beat(std::nullopt, {report_});
  EXPECT_TRUE(ChangesOf<AttemptRow>(decision).empty());
  EXPECT_TRUE(GcOf(decision).empty());
  Append event = Lines(1, 2);
  event.recorded.reset();
  EXPECT_EQ(world_.Do(event).status.code(), Code::kUnavailable);
  RunRow row;
  row.id = World::RunOf(500);
  event.run = row.id;
  event.recorded = RecordedAttempt{.run = {{row, {.id = row.id, .state = RunState::kActive}}}};
  EXPECT_EQ(world_.Do(event).status.code(), Code::kUnavailable);
  event = Lines(1, 2);
  event.worker = World::Worker(9);
  EXPECT_EQ(world_.Do(event).status.code(), Code::kUnavailable);
  EXPECT_EQ(world_.state().FindAttempt(lost_), nullptr);
}

// Numbers that no coordinator can have given.
TEST_F(AbsentTest, ImpossibleNamesAreUnknown) {
  MemberReport rank = report_;
  rank.rank = 1;
  MemberReport ordinal = report_;
  ordinal.ordinal = 0;
  MemberReport generation = report_;
  generation.epoch = {5};
  MemberReport future = report_;
  future.epoch = {kSecond + 50};
  for (const MemberReport& report : {rank, ordinal, generation, future}) {
    const Decision decision = Beat(RecordedAttempt{}, {report});
    EXPECT_TRUE(ChangesOf<AttemptRow>(decision).empty());
    EXPECT_TRUE(GcOf(decision).empty());
    EXPECT_EQ(decision.stale.size(), 1u);
  }
}

TEST_F(AbsentTest, NamedTwiceInOneHeartbeatItComesBackOnce) {
  const Decision decision = Beat(RecordedAttempt{}, {report_, report_});
  EXPECT_EQ(ChangesOf<AttemptRow>(decision).size(), 1u);
}

// While it runs there, it is not wanted: the worker is woken to stop it.
TEST_F(AbsentTest, OneThatRunsIsStopped) {
  report_.state = RecordState::kRunning;
  const Decision decision = Beat(RecordedAttempt{}, {report_});
  EXPECT_EQ(ChangesOf<WantChanged>(decision).size(), 1u);
  EXPECT_TRUE(WantedOf(world_.state(), worker_).empty());
  EXPECT_TRUE(world_.state().FindWorker(worker_)->held.empty());
}

}  // namespace
}  // namespace switchyard::scheduler
