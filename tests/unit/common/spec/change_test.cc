#include "common/spec/change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

pb::SweepSpec Read(const std::string& text) {
  pb::SweepSpec sweep;
  EXPECT_THAT(ReadSweepYaml("sweep.yaml", text, {}, &sweep), IsEmpty());
  return sweep;
}

std::string Grid(std::string_view batches, std::string_view seeds = "[1, 2]") {
  return StrCat(Replaced(kSmallSweep, "[1]", seeds), "space: {grid: {train.batch: [", batches,
                "]}}\n");
}

std::string Faults(const std::string& old, const std::string& extended) {
  std::vector<Fault> faults;
  const auto extension = PlanExtension(Read(old), Read(extended), &faults);
  EXPECT_EQ(extension.has_value(), faults.empty());
  return ToString(faults);
}

// Cells that were there keep their numbers wherever the new ones stand in the file.
TEST(PlanExtension, KeepsTheNumbersOfCells) {
  std::vector<Fault> faults;
  const auto extension =
      PlanExtension(Read(Grid("8, 16")), Read(Grid("4, 16, 8, 32", "[1, 2, 5]")), &faults);
  ASSERT_TRUE(extension.has_value()) << ToString(faults);
  ASSERT_EQ(extension->size(), 1U);
  EXPECT_THAT(extension->front().numbers, ElementsAre(3, 2, 1, 4));
  EXPECT_EQ(extension->front().added_cells, 2U);
  EXPECT_THAT(extension->front().added_seeds, ElementsAre(5));
}

// A new axis whose first value says what the base said goes on from the old cells.
TEST(PlanExtension, KnowsACellUnderNewColumns) {
  std::vector<Fault> faults;
  const auto extension = PlanExtension(
      Read(Grid("8, 16")),
      Read(StrCat(Replaced(kSmallSweep, "[1]", "[1, 2]"),
                  "space: {grid: {train.batch: [16, 8], train.memory_len: [64, 128]}}\n")),
      &faults);
  ASSERT_TRUE(extension.has_value()) << ToString(faults);
  EXPECT_THAT(extension->front().numbers, ElementsAre(3, 2, 4, 1));
}

// It only adds.
TEST(PlanExtension, RefusesWhatIsMissingOrOther) {
  EXPECT_EQ(Faults(Grid("8, 16"), Grid("8, 16")), "");
  EXPECT_THAT(Faults(Grid("8, 16"), Grid("8, 32")),
              HasSubstr("cell 2 is missing (train.batch=16); an extension only adds"));
  EXPECT_THAT(Faults(Grid("8, 16"), Grid("8, 16", "[1, 3]")), HasSubstr("the seed 2 is missing"));
  EXPECT_THAT(Faults(Grid("8"), Replaced(Grid("8, 16"), "steps: 100", "steps: 200")),
              HasSubstr("base: differs"));
  EXPECT_THAT(Faults(Grid("8"), Grid("8, 16") + "objective: {metric: valid/loss}\n"),
              HasSubstr("objective: differs"));
  EXPECT_THAT(Faults(Grid("8"), Replaced(Grid("8"), "name: small", "name: other")),
              HasSubstr("other is not the name of the sweep, small"));
  const std::string choice =
      StrCat(kSmallSweep, "space: {choice: {arm: {a: {set: {train.batch: 4}}}}}\n");
  EXPECT_THAT(Faults(choice, Replaced(choice, "train.batch: 4", "train.batch: 2")),
              HasSubstr("cell 1 is another one now (arm=a)"));
}

// A strategy goes on with its state: more cells, and nothing else.
TEST(PlanExtension, GivesAStrategyMoreCells) {
  const std::string drawn = StrCat(
      kSmallSweep,
      "space: {int: {train.warmup_steps: [0, 9]}}\nstrategy: {random: {cells: 10, seed: 1}}\n");
  EXPECT_EQ(Faults(drawn, Replaced(drawn, "cells: 10", "cells: 20")), "");
  EXPECT_THAT(Faults(drawn, Replaced(drawn, "cells: 10", "cells: 9")),
              HasSubstr("strategy: differs"));
  EXPECT_THAT(Faults(drawn, Replaced(drawn, "seed: 1}", "seed: 2}")),
              HasSubstr("strategy: differs"));
  EXPECT_THAT(Faults(drawn, Replaced(drawn, "random", "sobol")), HasSubstr("strategy: differs"));
}

TEST(AddReplicates, TakesTheSmallestUnused) {
  pb::SweepSpec sweep = Read(Grid("8", "[2, 5, 1]"));
  AddReplicates({2, 5, 1}, 3, &sweep);
  EXPECT_THAT(sweep.replicates().seeds(), ElementsAre(2, 5, 1, 3, 4, 6));
}

PathValue Set(std::string path, std::string value) {
  Node node;
  node.scalar = std::move(value);
  return {.path = std::move(path), .value = std::move(node)};
}

// A fork is a run of its own that goes on from a checkpoint with everything.
TEST(MakeFork, GoesOnFromACheckpoint) {
  const PlannedRun parent = RunOf(kSmallSweep);
  const std::string digest = StrCat("sha256:", std::string(64, 'a'));
  pb::RunSpec fork;
  std::vector<Fault> faults;
  ASSERT_TRUE(MakeFork(*parent.run, "run-1", 50, digest,
                       {Set("train.optimizer.adam.lr", "1e-5"), Set("train.steps", "400")}, &fork,
                       &faults))
      << ToString(faults);
  EXPECT_EQ(fork.init().restore(), pb::RESTORE_ALL);
  EXPECT_EQ(fork.init().step(), 50U);
  EXPECT_EQ(fork.train().steps(), 400U);
  EXPECT_EQ(fork.train().optimizer().adam().lr(), 1e-5);
  EXPECT_EQ(fork.seed(), parent.seed);
  EXPECT_NE(RunKey(fork), parent.run_key);

  const auto refused = [&](PathValue set) {
    std::vector<Fault> found;
    EXPECT_FALSE(MakeFork(*parent.run, "run-1", 50, digest, {std::move(set)}, &fork, &found));
    return ToString(found);
  };
  EXPECT_THAT(refused(Set("train.stps", "4")),
              AllOf(HasSubstr("--set train.stps=4"), HasSubstr("nearest: steps")));
  EXPECT_THAT(refused(Set("train.steps", "50")), HasSubstr("ends at 50, not after the fork"));
  EXPECT_THAT(refused(Set("init.restore", "none")), HasSubstr("cannot be set"));
  EXPECT_THAT(refused(Set("train.batch", "0")), HasSubstr("train.batch"));
}

}  // namespace
}  // namespace switchyard::spec
