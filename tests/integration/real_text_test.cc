// Every kind of router learns real text for 300 steps without a value that is not finite, and a run
// killed on the way ends with the same bits. Needs the shared data and SWITCHYARD_LONG_TESTS.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "tests/integration/forked_training.h"
#include "tests/router_cases.h"

namespace switchyard {
namespace {

constexpr uint64_t kSteps = 300;

// The folder of real texts, or "" where it is not there.
std::string SharedText() {
  const char* given = std::getenv("SWITCHYARD_SHARED");
  const std::string folder = given != nullptr ? given : SWITCHYARD_SOURCE_DIR "/../shared";
  const std::string path = folder + "/data/tinyshakespeare";
  return std::filesystem::is_directory(path) ? path : "";
}

// A set of one file has no validation split; and the last evaluation scores all of it.
void HoldOutTheEnd(data::Corpus* corpus) {
  constexpr size_t kHeldOut = 8192;
  std::vector<uint32_t>& train = corpus->train.ids;
  corpus->valid.ids.assign(train.end() - kHeldOut, train.end());
  corpus->valid.domains = {{.domain = 0, .begin = 0, .end = kHeldOut}};
  corpus->valid.bytes = corpus->valid.chars = corpus->valid.words = kHeldOut;
  train.resize(train.size() - kHeldOut);
  corpus->train.domains = {{.domain = 0, .begin = 0, .end = train.size()}};
}

class RealText : public testing::TestWithParam<RouterCase> {};

TEST_P(RealText, TrainsAndResumes) {
  const std::string text = SharedText();
  if (text.empty()) GTEST_SKIP() << "no shared data; SWITCHYARD_SHARED names its folder";
  if (!IsLong()) GTEST_SKIP() << "SWITCHYARD_LONG_TESTS is not set";
  v1::DataSpec data;
  auto* domain = data.mutable_files()->add_domains();
  domain->set_id("shakespeare");
  domain->add_globs(text + "/*.txt");
  const auto corpus = data::LoadCorpus(data);
  ASSERT_TRUE(corpus.ok()) << corpus.status().message();

  const bool is_xl = GetParam().kind.size() % 2 == 0;
  AttemptPlan whole{.corpus = corpus->get(), .checkpoint_every_ms = 600'000};
  whole.run = RunFrom(StrCat(
      "kind: RUN_KIND_TRAIN seed: 3 model { ",
      is_xl
          ? "transformer_xl { layers: 2 d_model: 64 heads: 4 d_head: 16 d_inner: 64 dropout: 0.1 }"
          : "decoder { layers: 2 d_model: 64 heads: 4 d_inner: 64 dropout: 0.1 }",
      Moe(GetParam(), {.experts = 8}), "} train { steps: ", kSteps,
      " batch: 8 micro_batch: 4 target_len: 32 ", is_xl ? "memory_len: 32 " : "",
      "optimizer { adam { lr: 2e-3 } } warmup_steps: 20 schedule: SCHEDULE_COSINE clip_norm: 0.25 "
      "} "
      "eval { every_steps: 100 splits: SPLIT_VALID max_tokens: 4096 }"));
  HoldOutTheEnd(corpus->get());

  std::string folder = testing::TempDir() + "/real-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  whole.checkpoint_dir = folder + "/whole";
  client::ReportedCurves expected, seen;
  const AttemptOutcome uninterrupted = RunAttempt(whole, &expected);
  ASSERT_TRUE(uninterrupted.is_complete) << uninterrupted.exit_code << " " << uninterrupted.log;
  const auto loss = expected.Scalars("train/nats_per_token");
  ASSERT_EQ(loss.size(), kSteps);
  for (const auto& [step, value] : loss) ASSERT_TRUE(std::isfinite(value)) << "step " << step;
  const auto valid = expected.Scalars("valid/bits_per_byte");
  ASSERT_EQ(valid.size(), 3U);
  // 8 bits without any training.
  EXPECT_LT(valid.at(kSteps), 4.5);
  EXPECT_LT(valid.at(kSteps), valid.at(100));

  AttemptPlan killed = whole;
  killed.checkpoint_dir = folder + "/killed";
  killed.checkpoint_every_ms = 50;
  killed.kill = KillPoint::kWindow;
  killed.count = 60 + RandomBelow(RandomKey::For(17, GetParam().kind), 0, 200);
  const AttemptOutcome cut = RunAttempt(killed, &seen);
  ASSERT_TRUE(cut.was_killed) << cut.log;
  killed.kill = KillPoint::kNone;
  killed.epoch = 2;
  ASSERT_TRUE(RunAttempt(killed, &seen).is_complete);
  EXPECT_EQ(seen.contradiction(), "");
  EXPECT_EQ(expected.FirstDifference(seen), "");
  const auto compared =
      client::CompareCheckpoints(NewestCheckpoint(whole.checkpoint_dir, whole.run),
                                 NewestCheckpoint(killed.checkpoint_dir, killed.run));
  ASSERT_TRUE(compared.ok()) << compared.status().message();
  EXPECT_EQ(compared->first_difference, "");
  std::cout << "  " << (is_xl ? "transformer_xl" : "decoder") << ": train " << loss.at(1) << " -> "
            << loss.at(kSteps) << " nats, valid " << valid.at(kSteps)
            << " bits per byte; killed at " << killed.count << "\n";
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Kinds, RealText, testing::ValuesIn(kRouterCases),
                         [](const auto& info) { return info.param.kind; });

}  // namespace
}  // namespace switchyard
