#include "common/spec/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

std::string Digest(char digit) { return StrCat("sha256:", std::string(64, digit)); }

// The table of docs/spec-reference.md, row by row.
TEST(ReuseOf, FollowsTheStateOfTheNewestRun) {
  const auto reuse = [](PriorState state, bool has_checkpoint = false,
                        pb::RunKind kind = pb::RUN_KIND_TRAIN) {
    return ReuseOf({.state = state, .has_checkpoint = has_checkpoint}, kind);
  };
  EXPECT_EQ(reuse(PriorState::kNone), Reuse::kNewRun);
  EXPECT_EQ(reuse(PriorState::kSucceeded), Reuse::kReused);
  EXPECT_EQ(reuse(PriorState::kFailedByGuard), Reuse::kReused);
  EXPECT_EQ(reuse(PriorState::kLive), Reuse::kShared);
  for (const PriorState state : {PriorState::kStoppedEarly, PriorState::kCancelled,
                                 PriorState::kQuarantined, PriorState::kFailed}) {
    EXPECT_EQ(reuse(state), Reuse::kNewRun);
    EXPECT_EQ(reuse(state, true), Reuse::kNewRunFromCheckpoint);
  }
  EXPECT_EQ(reuse(PriorState::kSucceeded, false, pb::RUN_KIND_BENCHMARK), Reuse::kNewRun);
  EXPECT_EQ(reuse(PriorState::kSucceeded, false, pb::RUN_KIND_ANALYZE), Reuse::kReused);
}

// Files that changed under one description: neither results nor checkpoints of the old ones count.
TEST(ReuseOf, RefusesOtherData) {
  for (const PriorState state : {PriorState::kSucceeded, PriorState::kFailedByGuard,
                                 PriorState::kLive, PriorState::kCancelled, PriorState::kFailed}) {
    EXPECT_EQ(ReuseOf({.state = state, .has_checkpoint = true, .is_data_current = false},
                      pb::RUN_KIND_TRAIN),
              Reuse::kNewRun);
  }
}

// A checkpoint is its step and its bytes: the run that it is of, and the word for it, are names.
TEST(RunKey, CountsCheckpointsByStepAndDigest) {
  pb::RunSpec run = *RunOf(kSmallSweep).run;
  const std::string without = RunKey(run);
  run.mutable_init()->set_run("a");
  run.mutable_init()->set_checkpoint("best");
  run.mutable_init()->set_step(100);
  run.mutable_init()->set_digest(Digest('1'));
  const std::string key = RunKey(run);
  EXPECT_NE(key, without);
  run.mutable_init()->set_run("b");
  run.mutable_init()->set_checkpoint("last");
  EXPECT_EQ(RunKey(run), key);
  run.mutable_init()->set_step(101);
  EXPECT_NE(RunKey(run), key);
  run.mutable_init()->set_step(100);
  run.mutable_init()->set_digest(Digest('2'));
  EXPECT_NE(RunKey(run), key);
  run.mutable_init()->set_digest(Digest('1'));
  run.mutable_init()->set_restore(pb::RESTORE_ALL);
  EXPECT_NE(RunKey(run), key);
  // Unresolved, the name is all there is.
  run.mutable_init()->clear_digest();
  const std::string named = RunKey(run);
  run.mutable_init()->set_run("c");
  EXPECT_NE(RunKey(run), named);
}

TEST(RunKey, CountsInputsByStepDigestAndSeed) {
  pb::RunSpec run = *RunOf(kSmallSweep).run;
  pb::InputSpec* input = run.add_inputs();
  input->set_run("a");
  input->set_cell("arm=smoe");
  input->set_step(100);
  input->set_seed(1);
  input->set_digest(Digest('1'));
  const std::string key = RunKey(run);
  run.mutable_inputs(0)->set_run("b");
  run.mutable_inputs(0)->set_cell("arm=other");
  EXPECT_EQ(RunKey(run), key);
  run.mutable_inputs(0)->set_seed(2);
  EXPECT_NE(RunKey(run), key);
}

// What says no more than leaving it out does leaves identities as they were.
TEST(RunKey, IsNotChangedByWritingDefaults) {
  const std::string key = RunOf(kSmallSweep).run_key;
  for (const std::string_view field : {"task: next_token", "trainable: [\"*\"]",
                                       "parallel: {data: 1, expert: 1}", "parallel: {expert: 1}"}) {
    EXPECT_EQ(RunOf(Replaced(kSmallSweep, "    steps: 100", StrCat("    steps: 100\n    ", field)))
                  .run_key,
              key)
        << field;
  }
  EXPECT_EQ(RunOf(StrCat(Replaced(kSmallSweep, "  train:\n",
                                  "  eval: {allow_noncausal: false}\n  train:\n")))
                .run_key,
            key);
}

// Policy, report, strategy and budget are no part of a run.
TEST(RunKey, LeavesOutWhatIsNotTheRun) {
  const std::string key = RunOf(kSmallSweep).run_key;
  EXPECT_EQ(RunOf(StrCat(kSmallSweep, R"(budget: {slot_hours: 3, runs: 10}
retry: {exit_codes: [3]}
on_disconnect: exclusive
resources: {cpu_slots: 2, memory: 8Gi, labels: [a100, pool=big], exclusive: true}
report: {plot: [{y: valid/bits_per_byte}]}
strategy: grid
)"))
                .run_key,
            key);
}

TEST(DataKey, IsTheDescription) {
  const pb::RunSpec run = *RunOf(kSmallSweep).run;
  pb::DataSpec other = run.data();
  EXPECT_EQ(DataKey(other), DataKey(run.data()));
  other.set_digest(Digest('3'));
  EXPECT_NE(DataKey(other), DataKey(run.data()));
}

}  // namespace
}  // namespace switchyard::spec
