// Resume is continuation, for every kind of router in both backbones: a run that is killed again
// and again at its worst moments ends with the parameters, the optimizer state, the segment memory
// and the curve of the uninterrupted one, bit for bit. Two kills each; SWITCHYARD_LONG_TESTS:
// twenty.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <map>

#include "common/base/check.h"
#include "common/base/rng.h"
#include "common/base/strings.h"
#include "tests/integration/forked_training.h"
#include "tests/router_cases.h"

namespace switchyard {
namespace {

constexpr uint32_t kVocab = 96;

// Two domains, so that blocks are shuffled; a text that can be learned.
data::Corpus Text() {
  data::Corpus corpus;
  corpus.vocab_size = kVocab;
  corpus.domain_names = {"rising", "noise"};
  corpus.domain_weights = {1, 1};
  corpus.primary_metric = "bits_per_byte";
  corpus.digest = "sha256:0";
  corpus.train_frequency.assign(kVocab, 1);
  const auto fill = [](data::SplitTokens* split, uint64_t tokens) {
    for (uint64_t i = 0; i < tokens; ++i) {
      const uint64_t id = i < tokens / 2 ? (i * i / 7) % kVocab : RandomBelow({11}, i, kVocab);
      split->ids.push_back(static_cast<uint32_t>(id));
    }
    split->domains = {{.domain = 0, .begin = 0, .end = tokens / 2},
                      {.domain = 1, .begin = tokens / 2, .end = tokens}};
    split->bytes = split->chars = split->words = tokens;
  };
  fill(&corpus.train, 4000);
  fill(&corpus.valid, 400);
  return corpus;
}

// Two micro-batches a window, memory, dropout, a schedule, evaluations between checkpoints.
v1::RunSpec SpecOf(bool is_xl, const RouterCase& router) {
  const char* backbone =
      is_xl ? "transformer_xl { layers: 2 d_model: 16 heads: 2 d_head: 8 d_inner: 16 dropout: 0.1 }"
            : "decoder { layers: 2 d_model: 16 heads: 2 d_inner: 16 dropout: 0.1 }";
  return RunFrom(StrCat("kind: RUN_KIND_TRAIN seed: 7 model { ", backbone, " ", Moe(router),
                        "} train { steps: 120 batch: 4 micro_batch: 2 target_len: 8 ",
                        is_xl ? "memory_len: 8 " : "",
                        "optimizer { adam { lr: 3e-3 } } warmup_steps: 10 "
                        "schedule: SCHEDULE_COSINE clip_norm: 0.25 } "
                        "eval { every_steps: 6 splits: SPLIT_VALID max_tokens: 64 }"));
}

class ResumeMatrix : public testing::TestWithParam<std::tuple<bool, RouterCase>> {
 protected:
  ResumeMatrix() {
    std::string pattern = testing::TempDir() + "/resume-XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~ResumeMatrix() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_P(ResumeMatrix, KilledRunsEqualUninterruptedOnes) {
  const data::Corpus corpus = Text();
  AttemptPlan whole{.run = SpecOf(std::get<0>(GetParam()), std::get<1>(GetParam())),
                    .corpus = &corpus,
                    .checkpoint_dir = folder_ + "/whole",
                    .checkpoint_every_ms = 600'000};
  client::ReportedCurves expected;
  const AttemptOutcome uninterrupted = RunAttempt(whole, &expected);
  ASSERT_TRUE(uninterrupted.is_complete) << uninterrupted.exit_code << " " << uninterrupted.log;

  const uint64_t wanted = IsLong() ? 20 : 2;
  constexpr KillPoint kPoints[] = {KillPoint::kWindow, KillPoint::kAfterEvaluation,
                                   KillPoint::kPublish, KillPoint::kAnywhere};
  const RandomKey key = RandomKey::For(13, std::get<1>(GetParam()).kind);
  // The short form takes turns over the routers.
  const uint64_t first = RandomBelow(key, 999, 4);
  std::map<KillPoint, int> kills;
  client::ReportedCurves seen;
  AttemptPlan plan = whole;
  plan.checkpoint_dir = folder_ + "/killed";
  plan.checkpoint_every_ms = 1;
  uint64_t killed = 0;
  for (uint64_t draw = 0; killed < wanted; ++draw) {
    ASSERT_LT(draw, 10 * wanted) << "attempts that were to be killed came through";
    plan.epoch = draw + 1;
    plan.kill = kPoints[(first + draw) % 4];
    plan.count = 1 + RandomBelow(key, draw, plan.kill == KillPoint::kAfterEvaluation ? 1 : 5);
    plan.after_us = RandomBelow(key, 1000 + draw, 12'000);
    const AttemptOutcome outcome = RunAttempt(plan, &seen);
    if (!outcome.was_killed) {
      ASSERT_TRUE(outcome.is_complete) << outcome.exit_code << " " << outcome.log;
      break;  // it reached its end first
    }
    ++killed;
    ++kills[plan.kill];
  }
  EXPECT_GE(killed, wanted / 2);
  plan.kill = KillPoint::kNone;
  plan.epoch = 1000;
  const AttemptOutcome last = RunAttempt(plan, &seen);
  ASSERT_TRUE(last.is_complete) << last.exit_code << " " << last.log;

  EXPECT_EQ(seen.contradiction(), "");
  EXPECT_EQ(expected.FirstDifference(seen), "");
  EXPECT_GT(expected.points(), 600U);
  const auto compared =
      client::CompareCheckpoints(NewestCheckpoint(whole.checkpoint_dir, whole.run),
                                 NewestCheckpoint(plan.checkpoint_dir, plan.run));
  ASSERT_TRUE(compared.ok()) << compared.status().message();
  EXPECT_EQ(compared->first_difference, "");
  std::string text = StrCat(killed, " kills");
  for (const auto& [point, count] : kills) text += StrCat(", ", count, " ", KillPointName(point));
  std::cout << "  " << text << "; " << compared->tensors << " tensors, " << expected.points()
            << " points equal\n";
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResumeMatrix,
                         testing::Combine(testing::Bool(), testing::ValuesIn(kRouterCases)),
                         [](const auto& info) {
                           return StrCat(std::get<1>(info.param).kind,
                                         std::get<0>(info.param) ? "_xl" : "_decoder");
                         });

}  // namespace
}  // namespace switchyard
