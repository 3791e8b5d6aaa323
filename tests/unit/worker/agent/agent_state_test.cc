#include "worker/agent/agent_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kIncarnation = 7;
constexpr uint64_t kFirst = uint64_t{1} << 48;  // epoch of generation 1
constexpr AttemptKey kA{.epoch = kFirst + 100};
constexpr AttemptKey kB{.epoch = kFirst + 101};

class AgentStateTest : public ::testing::Test {
 protected:
  static Wanted Want(AttemptKey key, std::vector<uint32_t> slots = {0}) {
    return {.key = key,
            .run_id = "run",
            .ordinal = 1,
            .slots = std::move(slots),
            .grace_ms = 60'000,
            .lease_ms = 600'000,
            .has_spec = true};
  }
  Desired Reply(std::vector<Wanted> want, std::vector<AttemptKey> gc = {}) {
    return {.rev = {.generation = 1, .boot = 1, .n = ++rev_},
            .echo_incarnation = kIncarnation,
            .echo_sent_boottime_ns = now_ - kSecond,
            .want = std::move(want),
            .gc = std::move(gc)};
  }
  Actions Desire(std::vector<Wanted> want, std::vector<AttemptKey> gc = {}) {
    return state_.OnDesired(Reply(std::move(want), std::move(gc)), now_);
  }
  void Run(AttemptKey key) {
    Desire({Want(key)});
    state_.OnSpawned(key, "", now_);
    ASSERT_EQ(state_.Find(key)->state, RecordState::kRunning);
  }

  AgentState state_{{.slots = 2, .incarnation = kIncarnation}};
  uint64_t now_ = 1000 * kSecond;
  uint64_t rev_ = 0;
};

// A wanted attempt is recorded, prepared and spawned in one go, with a lease from the send time.
TEST_F(AgentStateTest, LaunchesAWantedAttempt) {
  const Actions actions = Desire({Want(kA)});
  ASSERT_EQ(actions.records.size(), 1u);
  EXPECT_EQ(actions.records[0].state, RecordState::kLaunching);
  ASSERT_EQ(actions.prepare.size(), 1u);
  EXPECT_EQ(actions.prepare[0].deadline_ns, now_ - kSecond + 600 * kSecond);
  EXPECT_THAT(actions.spawn, ElementsAre(kA));
  EXPECT_TRUE(actions.heartbeat);
  EXPECT_TRUE(actions.seen_changed);
  EXPECT_EQ(state_.applied().n, 1u);
}

// The same wanted set again changes nothing: an attempt is launched once.
TEST_F(AgentStateTest, NeverLaunchesTwice) {
  Run(kA);
  EXPECT_THAT(Desire({Want(kA)}).spawn, IsEmpty());
  state_.OnEnded(kA, {.end_class = "ok"}, now_);
  EXPECT_THAT(Desire({Want(kA)}).records, IsEmpty());
  state_.OnSpooled(kA);
  const Actions gone = Desire({}, {kA});
  EXPECT_THAT(gone.drop, ElementsAre(kA));
  // The tombstone stands when a late message wants it once more.
  const Actions late = Desire({Want(kA)});
  EXPECT_THAT(late.records, IsEmpty());
  EXPECT_THAT(late.spawn, IsEmpty());
}

// Replies to an earlier start of this agent must not act on it.
TEST_F(AgentStateTest, DropsRepliesToAnotherIncarnation) {
  Desired reply = Reply({Want(kA)});
  reply.echo_incarnation = kIncarnation - 1;
  const Actions actions = state_.OnDesired(reply, now_);
  EXPECT_THAT(actions.records, IsEmpty());
  EXPECT_EQ(state_.applied().n, 0u);
}

// An old reply launches nothing, but proves contact: leases are prolonged.
TEST_F(AgentStateTest, TakesTheEchoOfAnOldReply) {
  Desired old = Reply({Want(kB)});
  Run(kA);
  old.rev.n = 1;
  old.echo_sent_boottime_ns = now_;
  const Actions actions = state_.OnDesired(old, now_);
  EXPECT_THAT(actions.records, IsEmpty());
  ASSERT_EQ(actions.leases.size(), 1u);
  EXPECT_EQ(actions.leases[0].deadline_ns, now_ + 600 * kSecond);
}

// Hundreds of replies a second do not write the lease page hundreds of times.
TEST_F(AgentStateTest, ProlongsALeaseInStepsOfASecond) {
  Run(kA);
  now_ += kSecond / 2;
  EXPECT_THAT(Desire({Want(kA)}).leases, IsEmpty());
  now_ += kSecond / 2;
  EXPECT_EQ(Desire({Want(kA)}).leases.size(), 1u);
}

// Every wanted attempt that cannot run gets a durable refusal: silence would look like a loss.
TEST_F(AgentStateTest, RefusesExplicitly) {
  const auto refusal = [&](Wanted wanted) {
    const Actions actions = Desire({wanted});
    EXPECT_THAT(actions.spawn, IsEmpty());
    EXPECT_THAT(actions.prepare, IsEmpty());
    return actions.records.size() == 1 && actions.records[0].state == RecordState::kRefused
               ? actions.records[0].end.reason
               : std::string("not refused");
  };
  Wanted wanted = Want({.epoch = kFirst + 1});
  wanted.intent = Intent::kCancel;
  EXPECT_EQ(refusal(wanted), "intent");
  wanted = Want({.epoch = kFirst + 2});
  wanted.has_spec = false;
  EXPECT_EQ(refusal(wanted), "no_spec");
  EXPECT_EQ(refusal(Want({.epoch = kFirst + 3}, {2})), "no_such_slot: 2 of 2");
  wanted = Want({.epoch = kFirst + 4});
  wanted.lease_ms = 500;
  EXPECT_EQ(refusal(wanted), "lease_too_short");
  EXPECT_EQ(refusal(Want({.epoch = kFirst - 1})),
            "old_generation: 0, the coordinator is of generation 1");
  wanted = Want({.epoch = kFirst + 6});
  wanted.unknown = "run_spec is not a RunSpec";
  EXPECT_EQ(refusal(wanted), "format_unknown: run_spec is not a RunSpec");
  state_.SetDiskLow(true);
  EXPECT_EQ(refusal(Want({.epoch = kFirst + 5})), "disk");
  EXPECT_TRUE(state_.IsIdle());
}

// The spawn waits until the old trainer of its slot is reaped.
TEST_F(AgentStateTest, WaitsForItsSlot) {
  Run(kA);
  Actions actions = Desire({Want(kA), Want(kB)});
  EXPECT_EQ(actions.records.size(), 1u);
  EXPECT_THAT(actions.spawn, IsEmpty());
  EXPECT_THAT(state_.OnTick(now_ + kSecond).spawn, IsEmpty());
  actions = state_.OnEnded(kA, {.end_class = "ok"}, now_ + 2 * kSecond);
  EXPECT_THAT(actions.spawn, ElementsAre(kB));
}

// A slot that stays busy ends the attempt as an infrastructure failure, never executed.
TEST_F(AgentStateTest, GivesUpOnABusySlot) {
  Run(kA);
  Desire({Want(kA), Want(kB)});
  EXPECT_EQ(state_.NextTick(), now_ + 60 * kSecond);
  const Actions actions = state_.OnTick(now_ + 60 * kSecond);
  ASSERT_EQ(actions.records.size(), 1u);
  EXPECT_EQ(actions.records[0].key, kB);
  EXPECT_EQ(actions.records[0].end.end_class, "infra");
  EXPECT_THAT(actions.records[0].end.reason, HasSubstr("slot_busy"));
}

// Two attempts that wait for one slot get it in order of epoch.
TEST_F(AgentStateTest, GivesAFreeSlotToTheOlderAttempt) {
  Run(kA);
  const AttemptKey c{.epoch = kFirst + 102};
  Desire({Want(kA), Want(c), Want(kB)});
  EXPECT_THAT(state_.OnEnded(kA, {}, now_).spawn, ElementsAre(kB));
  EXPECT_THAT(state_.OnSpawned(kB, "", now_).spawn, IsEmpty());
  EXPECT_THAT(state_.OnEnded(kB, {}, now_).spawn, ElementsAre(c));
}

// A cancel goes through lease page, SIGTERM and SIGKILL at their times.
TEST_F(AgentStateTest, StopsInThreeSteps) {
  Run(kA);
  Wanted wanted = Want(kA);
  wanted.intent = Intent::kCancel;
  Actions actions = Desire({wanted});
  ASSERT_EQ(actions.stops.size(), 1u);
  EXPECT_EQ(actions.stops[0].intent, Intent::kCancel);
  EXPECT_EQ(actions.stops[0].deadline_ns, now_ + 60 * kSecond);
  EXPECT_THAT(actions.kill, IsEmpty());
  EXPECT_EQ(state_.NextTick(), now_ + 50 * kSecond);
  EXPECT_THAT(state_.OnTick(now_ + 49 * kSecond).terminate, IsEmpty());
  EXPECT_THAT(state_.OnTick(now_ + 50 * kSecond).terminate, ElementsAre(kA));
  EXPECT_THAT(state_.OnTick(now_ + 51 * kSecond).terminate, IsEmpty());
  EXPECT_THAT(state_.OnTick(now_ + 60 * kSecond).kill, ElementsAre(kA));
  EXPECT_THAT(state_.OnTick(now_ + 61 * kSecond).kill, IsEmpty());
}

// A repeated intent does not start the grace anew; a higher one may shorten it.
TEST_F(AgentStateTest, HigherIntentsShortenTheGrace) {
  Run(kA);
  Wanted wanted = Want(kA);
  wanted.intent = Intent::kDrain;
  Desire({wanted});
  now_ += 10 * kSecond;
  EXPECT_THAT(Desire({wanted}).stops, IsEmpty());
  wanted.intent = Intent::kCancel;
  wanted.grace_ms = 600'000;
  Actions actions = Desire({wanted});
  ASSERT_EQ(actions.stops.size(), 1u);
  EXPECT_EQ(actions.stops[0].deadline_ns, now_ + 50 * kSecond);
  wanted.intent = Intent::kKill;
  wanted.grace_ms = 0;
  EXPECT_THAT(Desire({wanted}).kill, ElementsAre(kA));
}

// A drain with a deadline while the attempt is drained already: the earlier end counts, and is not
// moved by wanted sets that say the same later.
TEST_F(AgentStateTest, AShorterGraceOfTheSameIntentCounts) {
  Run(kA);
  Wanted wanted = Want(kA);
  wanted.intent = Intent::kDrain;
  Desire({wanted});
  now_ += 10 * kSecond;
  wanted.grace_ms = 20'000;
  const Actions actions = Desire({wanted});
  ASSERT_EQ(actions.stops.size(), 1u);
  EXPECT_EQ(actions.stops[0].deadline_ns, now_ + 20 * kSecond);
  EXPECT_THAT(Desire({wanted}).stops, IsEmpty());
  EXPECT_THAT(state_.OnTick(now_ + 19 * kSecond).kill, IsEmpty());
  EXPECT_THAT(state_.OnTick(now_ + 20 * kSecond).kill, ElementsAre(kA));
}

// What the coordinator no longer wants is killed at once.
TEST_F(AgentStateTest, KillsUnwantedAttempts) {
  Run(kA);
  EXPECT_THAT(Desire({}).kill, ElementsAre(kA));
}

// A kill that overtakes the launch is repeated when the process is there.
TEST_F(AgentStateTest, KillsAProcessThatAppearsLate) {
  Desire({Want(kA)});
  EXPECT_THAT(Desire({}).kill, ElementsAre(kA));
  EXPECT_THAT(state_.OnSpawned(kA, "", now_).kill, ElementsAre(kA));
}

// A stop before the launch leaves an end on record and no process.
TEST_F(AgentStateTest, StopsAnAttemptThatWaits) {
  Run(kA);
  Desire({Want(kA), Want(kB)});
  Wanted wanted = Want(kB);
  wanted.intent = Intent::kCancel;
  const Actions actions = Desire({Want(kA), wanted});
  ASSERT_EQ(actions.records.size(), 1u);
  EXPECT_EQ(actions.records[0].end.end_class, "stopped");
  EXPECT_THAT(actions.kill, IsEmpty());
  EXPECT_THAT(state_.OnEnded(kA, {}, now_).spawn, IsEmpty());
}

// A launch that fails is an infrastructure end at once.
TEST_F(AgentStateTest, RecordsAFailedLaunch) {
  Desire({Want(kA)});
  const Actions actions = state_.OnSpawned(kA, "cannot execute", now_);
  ASSERT_EQ(actions.records.size(), 1u);
  EXPECT_EQ(actions.records[0].end.end_class, "infra");
  EXPECT_EQ(actions.records[0].end.reason, "never executed: cannot execute");
  EXPECT_TRUE(actions.heartbeat);
}

// A payload goes only when the coordinator is through with it and everything is acknowledged.
TEST_F(AgentStateTest, DropsAfterGcAndSpool) {
  Run(kA);
  EXPECT_THAT(Desire({Want(kA)}, {kA}).drop, IsEmpty());
  state_.OnEnded(kA, {}, now_);
  EXPECT_THAT(Desire({}, {kA}).drop, IsEmpty());
  EXPECT_THAT(state_.OnSpooled(kA).drop, ElementsAre(kA));
  EXPECT_THAT(state_.records(), IsEmpty());

  Run(kB);
  state_.OnEnded(kB, {}, now_);
  EXPECT_THAT(state_.OnSpooled(kB).drop, IsEmpty());
  // Also by a reply whose revision is not new: gc is repeated until it is heard.
  Desired again = Reply({}, {kB});
  again.rev = state_.applied();
  EXPECT_THAT(state_.OnDesired(again, now_).drop, ElementsAre(kB));
}

// After a restart a running trainer is kept, and its end frees the slot.
TEST_F(AgentStateTest, GoesOnAfterARestart) {
  state_.Restore({.key = kA, .run_id = "run", .slots = {0}, .state = RecordState::kRunning});
  EXPECT_THAT(Desire({Want(kA), Want(kB)}).spawn, IsEmpty());
  EXPECT_THAT(state_.OnEnded(kA, {}, now_).spawn, ElementsAre(kB));
}

// Without a lease length there is no deadline.
TEST_F(AgentStateTest, LeavesLocalAttemptsWithoutADeadline) {
  Wanted wanted = Want(kA);
  wanted.lease_ms = 0;
  const Actions actions = Desire({wanted});
  ASSERT_EQ(actions.prepare.size(), 1u);
  EXPECT_EQ(actions.prepare[0].deadline_ns, AgentState::kNoDeadline);
  EXPECT_THAT(Desire({wanted}).leases, IsEmpty());
}

// A process that outlives its kill by K is wedged: it is told, and keeps its slot.
TEST_F(AgentStateTest, ReportsAWedgedTrainer) {
  Run(kA);
  Desire({});
  EXPECT_EQ(state_.NextTick(), now_ + 10 * kSecond);
  EXPECT_FALSE(state_.OnTick(now_ + 9 * kSecond).heartbeat);
  const Actions actions = state_.OnTick(now_ + 10 * kSecond);
  EXPECT_TRUE(actions.heartbeat);
  EXPECT_TRUE(state_.Find(kA)->wedged);
  EXPECT_THAT(Desire({Want(kB)}).spawn, IsEmpty());
  EXPECT_THAT(state_.OnEnded(kA, {}, now_ + 20 * kSecond).spawn, ElementsAre(kB));
  EXPECT_FALSE(state_.Find(kA)->wedged);
}

// No step for 5 minutes: a stack dump, then the stop sequence, and the agent's own reason.
TEST_F(AgentStateTest, StopsAHungTrainer) {
  Run(kA);
  state_.OnProgress(kA, {.step = 1, .ms = 1000, .has_line = true, .has_step = true}, now_);
  state_.OnProgress(kA, {.step = 2, .ms = 2000, .has_line = true, .has_step = true},
                    now_ + kSecond);
  now_ += kSecond + HangWatch::kLeastNs;
  EXPECT_EQ(state_.NextTick(), now_);
  EXPECT_THAT(state_.OnTick(now_ - 1).dump, IsEmpty());
  const Actions actions = state_.OnTick(now_);
  EXPECT_THAT(actions.dump, ElementsAre(kA));
  EXPECT_THAT(actions.kill, IsEmpty());
  EXPECT_EQ(state_.Find(kA)->agent_reason, "hang: no step for 300 s behind step 2");
  EXPECT_THAT(state_.OnTick(now_ + 2 * kSecond).kill, ElementsAre(kA));
}

// A worker that leaves drains what runs, refuses what is new, and does not fall back to running.
TEST_F(AgentStateTest, DrainsAsAWhole) {
  Run(kA);
  const Actions actions = state_.OnDrain(30'000, now_);
  ASSERT_EQ(actions.stops.size(), 1u);
  EXPECT_EQ(actions.stops[0].intent, Intent::kDrain);
  EXPECT_EQ(actions.stops[0].deadline_ns, now_ + 30 * kSecond);
  const Actions later = Desire({Want(kA), Want(kB)});
  EXPECT_THAT(later.stops, IsEmpty());
  ASSERT_EQ(later.records.size(), 1u);
  EXPECT_EQ(later.records[0].end.reason, "draining");
  EXPECT_FALSE(state_.IsIdle());
  state_.OnEnded(kA, {}, now_);
  EXPECT_TRUE(state_.IsIdle());
}

// L5: a signal leaves less time than the cancel that is under way: the attempt is still cancelled,
// and by the earlier end.
TEST_F(AgentStateTest, ADrainAsAWholeShortensAStopUnderWay) {
  Run(kA);
  Wanted wanted = Want(kA);
  wanted.intent = Intent::kCancel;
  Desire({wanted});
  EXPECT_THAT(state_.OnDrain(600'000, now_).stops, IsEmpty());
  const Actions actions = state_.OnDrain(20'000, now_);
  ASSERT_EQ(actions.stops.size(), 1u);
  EXPECT_EQ(actions.stops[0].intent, Intent::kCancel);
  EXPECT_EQ(actions.stops[0].deadline_ns, now_ + 20 * kSecond);
}

// A coordinator that was restored to an older state must say anew what it is through with.
TEST_F(AgentStateTest, KeepsPayloadsForARestoredCoordinator) {
  Run(kA);
  state_.OnEnded(kA, {}, now_);
  Desire({}, {kA});
  Desired restored = Reply({});
  restored.rev = {.generation = 2, .boot = 1, .n = 1};
  state_.OnDesired(restored, now_);
  EXPECT_THAT(state_.OnSpooled(kA).drop, IsEmpty());
  restored.rev.n = 2;
  restored.gc = {kA};
  EXPECT_THAT(state_.OnDesired(restored, now_).drop, ElementsAre(kA));
}

// Lines that an earlier life of the coordinator had acknowledged may be gone with a restore: what
// has any is sent again, once per restore, and not before it is acknowledged anew may it go.
TEST_F(AgentStateTest, SendsAgainToARestoredCoordinator) {
  EXPECT_THAT(Desire({Want(kA), Want(kB, {1})}).resend, IsEmpty());
  state_.OnSpawned(kA, "", now_);
  state_.OnSpawned(kB, "", now_);
  state_.OnEnded(kA, {.last_seq = 5}, now_);
  state_.OnSpooled(kA);
  Desired restored = Reply({Want(kB, {1})}, {kA});
  restored.rev = {.generation = 2, .boot = 1, .n = 1};
  const Actions actions = state_.OnDesired(restored, now_);
  EXPECT_THAT(actions.resend, ElementsAre(kA, kB));
  EXPECT_THAT(actions.drop, IsEmpty());
  EXPECT_THAT(state_.OnSpooled(kA).drop, ElementsAre(kA));
  restored.rev.n = 2;
  EXPECT_THAT(state_.OnDesired(restored, now_).resend, IsEmpty());
}

// The registration tells of the restore before the first wanted set does. An agent that had just
// started, and had seen no wanted set yet, sends again as well: it may have sent lines since.
TEST_F(AgentStateTest, LearnsOfARestoreFromItsRegistration) {
  state_.Restore({.key = kA, .state = RecordState::kExited, .end = {.last_seq = 5}});
  EXPECT_THAT(state_.OnRegistered(1).resend, IsEmpty()) << "nothing was sent before";
  EXPECT_THAT(state_.OnRegistered(1).resend, IsEmpty());
  EXPECT_THAT(state_.OnRegistered(2).resend, ElementsAre(kA));
  Desired restored = Reply({});
  restored.rev = {.generation = 2, .boot = 1, .n = 1};
  EXPECT_THAT(state_.OnDesired(restored, now_).resend, IsEmpty()) << "once per restore";
}

// What the coordinator before the restore had said comes late: it neither starts anything nor lets
// a payload go, but its echo is still proof of contact.
TEST_F(AgentStateTest, FollowsNoEarlierGeneration) {
  Run(kA);
  state_.OnEnded(kA, {.last_seq = 5}, now_);
  Run(kB);
  Desired late = Reply({Want({.epoch = kFirst + 102}), Want(kB)}, {kA});
  late.echo_sent_boottime_ns = now_ + 10 * kSecond;
  state_.OnRegistered(2);
  const Actions actions = state_.OnDesired(late, now_ + 20 * kSecond);
  EXPECT_THAT(actions.spawn, IsEmpty());
  EXPECT_THAT(actions.records, IsEmpty());
  EXPECT_EQ(actions.leases.size(), 1u);
  EXPECT_THAT(state_.OnSpooled(kA).drop, IsEmpty());
}

// What never ran has no lines, and a fresh agent has sent none yet.
TEST_F(AgentStateTest, HasNothingToSendAgain) {
  Run(kA);
  state_.OnEnded(kA, {}, now_);
  Desired restored = Reply({});
  restored.rev = {.generation = 2, .boot = 1, .n = 1};
  EXPECT_THAT(state_.OnDesired(restored, now_).resend, IsEmpty());
}

}  // namespace
}  // namespace switchyard::agent
