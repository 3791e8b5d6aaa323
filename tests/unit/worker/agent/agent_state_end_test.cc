#include "worker/agent/agent_state_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

using ::testing::HasSubstr;

FoundRecord Complete() { return {.code = 0, .end_class = "ok", .complete = true, .final_step = 9}; }

// A complete exit.json wins over everything, a crash in the teardown of libraries included.
TEST(JudgeEnd, TakesACompleteRecordAgainstACrash) {
  const AttemptEnd end = JudgeEnd({.agent_reason = "hang",
                                   .record = Complete(),
                                   .wait = WaitStatus{.signalled = true, .value = 11},
                                   .last_seq = 5});
  EXPECT_EQ(end.end_class, "ok");
  EXPECT_TRUE(end.complete);
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_EQ(end.last_seq, 5u);
  EXPECT_EQ(end.final_step, 9u);
  EXPECT_THAT(end.evidence, HasSubstr("exit_mismatch: signal 11"));
}

// Exit status 0 without the record is no success: the last lines may be missing.
TEST(JudgeEnd, DoesNotBelieveABareZero) {
  const AttemptEnd end = JudgeEnd({.wait = WaitStatus{.value = 0}});
  EXPECT_EQ(end.end_class, "unknown");
  EXPECT_FALSE(end.complete);
}

// The agent's own reason stands where the trainer did not finish.
TEST(JudgeEnd, TakesTheAgentsReason) {
  FoundRecord partial = Complete();
  partial.complete = false;
  const AttemptEnd end = JudgeEnd({.agent_reason = "hang", .record = partial});
  EXPECT_EQ(end.end_class, "infra");
  EXPECT_EQ(end.reason, "hang");
}

// A trainer that went back in its steps and calls itself done has not kept to the contract: the run
// has not succeeded. What failed by itself keeps its own class.
TEST(JudgeEnd, DoesNotTakeAFaultyRecordForASuccess) {
  const AttemptEnd end =
      JudgeEnd({.record = Complete(), .record_fault = "step 1 is recorded behind step 9"});
  EXPECT_EQ(end.end_class, "internal");
  EXPECT_EQ(end.exit_code, 70);
  EXPECT_FALSE(end.complete);
  EXPECT_EQ(end.reason, "step 1 is recorded behind step 9");
  EXPECT_EQ(end.evidence, "event file");
  const FoundRecord guard{.code = 77, .end_class = "guard", .reason = "non_finite"};
  EXPECT_EQ(JudgeEnd({.record = guard, .record_fault = "step"}).end_class, "guard");
}

// Kind 11, 15: a trainer's reason of any length reaches the coordinator cut, between characters; a
// report that the coordinator refuses would cost the worker its contact.
TEST(JudgeEnd, CutsALongReasonBetweenCharacters) {
  std::string reason = "x";
  while (reason.size() < 60'000) reason += "\u00e4";
  const AttemptEnd end = JudgeEnd({.record = FoundRecord{.code = 64, .reason = reason}});
  EXPECT_LE(end.reason.size(), kReasonBytesMax);
  EXPECT_GT(end.reason.size(), kReasonBytesMax - 8);
  EXPECT_TRUE(IsValidUtf8(end.reason));
  EXPECT_THAT(end.reason, ::testing::EndsWith(" ..."));
  EXPECT_EQ(CutText("short", 5), "short");
  EXPECT_EQ(CutText("\u00e4\u00e4\u00e4\u00e4", 7), "\u00e4 ...");
}

// Classes follow the table of exit codes.
TEST(JudgeEnd, ClassifiesExitCodes) {
  const std::pair<int, const char*> table[] = {
      {64, "spec"},    {65, "data"},   {69, "infra"}, {70, "internal"}, {71, "oom"},
      {75, "stopped"}, {76, "fenced"}, {77, "guard"}, {1, "user"},      {255, "user"}};
  for (const auto& [code, name] : table) {
    EXPECT_EQ(JudgeEnd({.wait = WaitStatus{.value = code}}).end_class, name) << code;
    FoundRecord record;
    record.code = code;
    EXPECT_EQ(JudgeEnd({.record = record}).end_class, name) << code;
  }
}

// Signals: a stop of ours is a stop, a crash is unknown, the kernel's kill with evidence is oom.
TEST(JudgeEnd, TellsSignalsApart) {
  const WaitStatus killed{.signalled = true, .value = 9};
  EXPECT_EQ(JudgeEnd({.wait = killed, .stop_requested = true}).end_class, "stopped");
  EXPECT_EQ(JudgeEnd({.wait = killed}).end_class, "unknown");
  EXPECT_EQ(JudgeEnd({.oom_evidence = true, .wait = killed}).end_class, "oom");
  const WaitStatus crashed{.signalled = true, .value = 11};
  EXPECT_EQ(JudgeEnd({.wait = crashed, .stop_requested = true}).end_class, "unknown");
  EXPECT_EQ(JudgeEnd({.wait = crashed}).signal, 11);
  const WaitStatus terminated{.signalled = true, .value = 15};
  EXPECT_EQ(JudgeEnd({.wait = terminated}).end_class, "stopped");
}

// Without a parent to wait, boot id and lease page are what is left.
TEST(JudgeEnd, InfersFromWhatIsLeft) {
  EXPECT_EQ(JudgeEnd({.host_restarted = true, .lease_past = true}).end_class, "infra");
  EXPECT_EQ(JudgeEnd({.lease_past = true}).end_class, "fenced");
  const AttemptEnd end = JudgeEnd({.record_is_broken = true});
  EXPECT_EQ(end.end_class, "unknown");
  EXPECT_THAT(end.evidence, HasSubstr("exit.json is not valid"));
}

}  // namespace
}  // namespace switchyard::agent
