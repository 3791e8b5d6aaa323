#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::HasSubstr;

// The small sweep with other lines for `kind: train`, and `train` left out unless it is trained.
std::string OfKind(std::string_view kind_lines, bool is_trained = true) {
  std::string text = Replaced(kSmallSweep, "  kind: train\n", kind_lines);
  if (is_trained) return text;
  const size_t train = text.find("  train:");
  text.erase(train, text.find("replicates:") - train);
  return text;
}

constexpr std::string_view kInit = "  init: {run: abc}\n";

// Every kind that is complete, and what it lacks otherwise.
TEST(CheckKind, KnowsWhatEachKindNeeds) {
  EXPECT_EQ(PlanFaults(OfKind(StrCat("  kind: finetune\n", kInit))), "");
  EXPECT_THAT(PlanFaults(OfKind("  kind: finetune\n")), HasSubstr("init: is required"));
  EXPECT_EQ(PlanFaults(OfKind(StrCat("  kind: evaluate\n", kInit,
                                     "  eval: {target_len: 64, memory_len: 0, batch: 4}\n"),
                              false)),
            "");
  EXPECT_THAT(PlanFaults(OfKind(StrCat("  kind: evaluate\n", kInit), false)),
              HasSubstr("eval.target_len"));
  EXPECT_THAT(PlanFaults(OfKind("  kind: evaluate\n  eval: {target_len: 64, batch: 4}\n", false)),
              HasSubstr("init: is required"));
  EXPECT_EQ(PlanFaults(OfKind(StrCat("  kind: analyze\n", kInit,
                                     "  analyze: {jobs: [usage_entropy, {essi: {rank: 128}}]}\n"),
                              false)),
            "");
  EXPECT_THAT(PlanFaults(OfKind(StrCat("  kind: analyze\n", kInit), false)),
              HasSubstr("analyze.jobs: at least one job is required"));
  EXPECT_EQ(PlanFaults(OfKind("  kind: benchmark\n  benchmark: {jobs: [latency]}\n", false)), "");
  EXPECT_THAT(PlanFaults(OfKind("  kind: analyse\n")), HasSubstr("nearest: analyze"));
}

// A field that the kind cannot use has no effect, and says so (kind 4).
TEST(CheckKind, RefusesFieldsOfOtherKinds) {
  EXPECT_THAT(PlanFaults(OfKind(
                  StrCat("  kind: evaluate\n", kInit, "  eval: {target_len: 64, batch: 4}\n"))),
              HasSubstr("train: is set but has no effect in any cell: a run of this kind trains "
                        "nothing"));
  EXPECT_THAT(PlanFaults(OfKind("  kind: train\n  analyze: {jobs: [essi]}\n")),
              HasSubstr("only a run of kind analyze has jobs of it"));
  EXPECT_THAT(PlanFaults(OfKind("  kind: train\n  benchmark: {jobs: [latency]}\n")),
              HasSubstr("only a run of kind benchmark has jobs of it"));
  EXPECT_THAT(
      PlanFaults(OfKind("  kind: finetune\n  init: {run: a, restore: none, fresh: ['*']}\n")),
      HasSubstr("every tensor is drawn anew"));
  EXPECT_THAT(PlanFaults(Replaced(OfKind("  kind: train\n  guards: {router_collapse: {}}\n"),
                                  "router: smoe", "router: dense")),
              HasSubstr("has no router to watch"));
}

TEST(CheckKind, ChecksInit) {
  const auto faults = [](std::string_view init) {
    return PlanFaults(OfKind(StrCat("  kind: finetune\n  init: ", init, "\n")));
  };
  EXPECT_EQ(faults("{hf: {path: /models/x}, fresh: ['head.*']}"), "");
  EXPECT_EQ(faults("{run: abc, checkpoint: 4000, restore: all}"), "");
  EXPECT_THAT(faults("{}"), HasSubstr("init: is empty; hf or run is wanted"));
  EXPECT_THAT(faults("{run: abc, hf: {path: /x}}"), HasSubstr("has both hf and run"));
  EXPECT_THAT(faults("{hf: {}}"), HasSubstr("init.hf.path: is required"));
  EXPECT_THAT(faults("{hf: {path: /x}, restore: all}"), HasSubstr("has no optimizer or cursor"));
  EXPECT_THAT(faults("{hf: {path: /x}, checkpoint: best}"), HasSubstr("goes with run"));
  EXPECT_THAT(faults("{run: abc, checkpoint: bset}"),
              HasSubstr("'bset' is not best, last or a step"));
  EXPECT_THAT(faults("{run: abc, step: 3}"), HasSubstr("'step' is not a field of InitSpec"));
}

TEST(CheckKind, ChecksRanksStepsGuardsAndJobs) {
  const auto faults = [](std::string_view train, std::string_view top = "") {
    return PlanFaults(StrCat(
        Replaced(Replaced(kSmallSweep, "    steps: 100", StrCat("    steps: 100\n    ", train)),
                 "  train:\n", StrCat(top, "  train:\n"))));
  };
  EXPECT_EQ(faults("parallel: {data: 2, expert: 4}"), "");
  EXPECT_THAT(faults("parallel: {data: 3}"), HasSubstr("3 ranks do not divide the batch of 8"));
  EXPECT_THAT(faults("parallel: {data: 0}"), HasSubstr("0 is not between 1 and 1024"));
  EXPECT_THAT(faults("parallel: {expert: 16}"), HasSubstr("16 does not divide the 8 experts"));
  EXPECT_EQ(faults("keep_steps: [10, 100]"), "");
  EXPECT_THAT(faults("keep_steps: [101]"), HasSubstr("101 comes after the last step, 100"));
  EXPECT_THAT(faults("keep_steps: [5, 5]"), HasSubstr("5 is given twice"));
  EXPECT_THAT(faults("task: classification"), HasSubstr("needs data: glue"));
  EXPECT_EQ(faults("task: router_update"), "");
  EXPECT_EQ(faults("clip_norm: 1", "  guards: {divergence: {}, dead_expert: {steps: 10}}\n"), "");
  EXPECT_THAT(faults("clip_norm: 1", "  guards: {divergence: {factor: 1}}\n"),
              HasSubstr("guards.divergence.factor"));
  EXPECT_THAT(faults("clip_norm: 1", "  guards: {router_collapse: {min_usage_entropy: 2}}\n"),
              HasSubstr("is not above 0 and at most 1"));
  EXPECT_THAT(faults("clip_norm: 1", "  eval: {final: {splits: [test, test]}}\n"),
              HasSubstr("eval.final.splits: names a split twice"));
}

// FLOPs are rounded down to whole steps, where the vocabulary says how many a step takes.
TEST(FillDefaults, ConvertsActiveFlopsToSteps) {
  const auto steps = [](std::string_view flops) {
    return RunOf(Replaced(kSmallSweep, "steps: 100", StrCat("active_flops: ", flops)))
        .run->train()
        .steps();
  };
  const pb::RunSpec by_steps = *RunOf(kSmallSweep).run;
  const uint64_t one = steps("1e12");
  ASSERT_GT(one, 1U);
  EXPECT_NEAR(static_cast<double>(steps("2e12")), 2.0 * static_cast<double>(one), 1.0);
  EXPECT_FALSE(RunOf(Replaced(kSmallSweep, "steps: 100", "active_flops: 1e12"))
                   .run->train()
                   .has_active_flops());
  EXPECT_THAT(PlanFaults(Replaced(kSmallSweep, "steps: 100", "active_flops: 10")), HasSubstr("10"));
  EXPECT_THAT(PlanFaults(Replaced(kSmallSweep, "steps: 100", "active_flops: 10")),
              HasSubstr("less than one step"));
}

TEST(ValidatePolicy, ChecksResourcesAndRetry) {
  const auto faults = [](std::string_view policy) {
    return PlanFaults(StrCat(kSmallSweep, policy, "\n"));
  };
  EXPECT_EQ(faults("resources: {memory: 8Gi, labels: [a100, pool=big], exclusive: true, "
                   "alternatives: [{gpus: 1}, {memory: 16Gi}]}"),
            "");
  EXPECT_THAT(faults("resources: {labels: ['A100!']}"), HasSubstr("is not NAME or NAME=VALUE"));
  EXPECT_THAT(faults("resources: {labels: [a, a]}"), HasSubstr("a is given twice"));
  EXPECT_THAT(faults("resources: {alternatives: [{}]}"), HasSubstr("changes nothing"));
  EXPECT_THAT(faults("resources: {alternatives: [{cpu_slots: 0}]}"),
              HasSubstr("takes neither cpu_slots nor gpus"));
  EXPECT_THAT(faults("resources: {alternatives: [{gpu: 1}]}"), HasSubstr("nearest: gpus"));
  EXPECT_EQ(faults("retry: {exit_codes: [1, 2], log_patterns: [Connection reset]}"), "");
  EXPECT_THAT(faults("retry: {max: 3}"), HasSubstr("names neither"));
  EXPECT_THAT(faults("retry: {exit_codes: [77]}"), HasSubstr("an end of the trainer's own"));
  EXPECT_THAT(faults("retry: {exit_codes: [256]}"), HasSubstr("not between 1 and 255"));
  EXPECT_THAT(faults("on_disconnect: always"), HasSubstr("is not a value of OnDisconnect"));
}

TEST(CheckSweepFields, ChecksStrategiesAndBudgets) {
  const auto faults = [](std::string_view text) {
    return PlanFaults(
        StrCat(kSmallSweep, "space: {int: {train.warmup_steps: [0, 9]}}\n", text, "\n"));
  };
  for (const std::string_view strategy :
       {"{random: {cells: 4}}", "{sobol: {cells: 4}}", "{tpe: {cells: 4, startup: 2}}",
        "{asha: {cells: 4, min: 10, eta: 3, rule: promote}}", "{hyperband: {min: 10}}",
        "{pbt: {population: 4, every: 10}}", "external"}) {
    EXPECT_EQ(faults(StrCat("strategy: ", strategy)), "") << strategy;
  }
  EXPECT_THAT(faults("strategy: random"), HasSubstr("strategy.random.cells: is required"));
  EXPECT_THAT(faults("strategy: {asha: {cells: 4}}"), HasSubstr("strategy.asha.min: is required"));
  EXPECT_THAT(faults("strategy: {asha: {cells: 4, min: 1, eta: 1}}"),
              HasSubstr("1 is not between 2 and 100"));
  EXPECT_THAT(faults("strategy: {pbt: {population: 1, every: 1}}"),
              HasSubstr("1 is not between 2"));
  EXPECT_THAT(faults("strategy: {pbt: {population: 2, every: 1, quantile: 0.6}}"),
              HasSubstr("at most 0.5"));
  EXPECT_THAT(faults("strategy: {random: {cells: 4, per: [arm]}}"),
              HasSubstr("'arm' is not an axis with values to tell apart; there is none"));
  EXPECT_THAT(faults("strategy: {rnadom: {cells: 4}}"), HasSubstr("nearest: random"));
  EXPECT_THAT(faults("strategy: {asha: {cells: 4, min: 1}}\nearly_stop: {median_stop: {grace: 1}}"),
              HasSubstr("goes with the strategies random, sobol and tpe only"));
  EXPECT_THAT(faults("strategy: {random: {cells: 4}}\nearly_stop: median_stop"),
              HasSubstr("early_stop.median_stop.grace: is required"));
  EXPECT_THAT(faults("strategy: {random: {cells: 4}}\nbudget: {tokens: 0}"),
              HasSubstr("budget.tokens: must be above 0"));
  EXPECT_THAT(faults("strategy: grid"), HasSubstr("a distribution needs a strategy"));
}

}  // namespace
}  // namespace switchyard::spec
