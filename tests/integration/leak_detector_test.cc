// EE-4: trained on symbols without any structure, a causal language model cannot score below their
// entropy on a held-out text; one that sees what it is to predict can. One-sided: over 32 symbols,
// expert choice per sequence was still at 3.997 bits after 3,000 steps, over two it is caught in
// 100; the audit tells both at once (tests/unit/worker/analysis).
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "common/base/rng.h"
#include "common/base/strings.h"
#include "tests/integration/forked_training.h"

namespace switchyard {
namespace {

constexpr uint32_t kAlphabet = 16;  // 4 bits
constexpr double kLeakBits = 3.95;

data::Corpus IidSymbols() {
  data::Corpus corpus;
  corpus.vocab_size = kAlphabet;
  corpus.domain_names = {""};
  corpus.domain_weights = {1};
  corpus.primary_metric = "bits_per_token";
  corpus.has_bytes = false;
  corpus.digest = "sha256:0";
  corpus.train_frequency.assign(kAlphabet, 1);
  const auto fill = [](const char* purpose, uint64_t tokens, data::SplitTokens* split) {
    const RandomKey key = RandomKey::For(21, purpose);
    for (uint64_t i = 0; i < tokens; ++i) {
      split->ids.push_back(static_cast<uint32_t>(RandomBelow(key, i, kAlphabet)));
    }
    split->domains = {{.domain = 0, .begin = 0, .end = tokens}};
    split->bytes = split->chars = split->words = tokens;
  };
  // Enough that no text is seen twice often enough to be learned by heart.
  fill("train", 2'000'000, &corpus.train);
  fill("valid", 40'000, &corpus.valid);
  return corpus;
}

struct Case {
  const char* name;
  const char* router;
  int length, batch, steps;
  bool leaks;
  bool is_long;  // not in the short form
};

class LeakDetector : public testing::TestWithParam<Case> {};

TEST_P(LeakDetector, TellsLeakingRoutersFromCausalOnes) {
  const Case& c = GetParam();
  if (c.is_long && !IsLong()) GTEST_SKIP() << "SWITCHYARD_LONG_TESTS is not set";
  const data::Corpus corpus = IidSymbols();
  std::string folder = testing::TempDir() + "/leak-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  AttemptPlan plan{.corpus = &corpus,
                   .checkpoint_dir = folder + "/run",
                   .checkpoint_every_ms = 600'000,
                   .stop_below_bits = c.leaks ? kLeakBits - 0.02 : 0};
  plan.run = RunFrom(StrCat(
      "kind: RUN_KIND_TRAIN seed: 5 model { decoder { layers: 2 d_model: 64 heads: 2 d_inner: 64 "
      "position: POSITION_KIND_LEARNED } moe { layers: [0, 1] experts: 8 top_k: 2 router { ",
      c.router, " } } } train { steps: ", c.steps, " batch: ", c.batch, " target_len: ", c.length,
      " optimizer { adam { lr: 3e-3 } } clip_norm: 1 } "
      "eval { every_steps: 50 splits: SPLIT_VALID max_tokens: 8192 batch: 64 }"));
  client::ReportedCurves curves;
  const AttemptOutcome outcome = RunAttempt(plan, &curves);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(outcome.is_complete) << outcome.exit_code << " " << outcome.log;
  const auto bits = curves.Scalars("valid/bits_per_token");
  ASSERT_FALSE(bits.empty());
  double lowest = bits.begin()->second;
  for (const auto& [step, value] : bits) lowest = std::min(lowest, value);
  std::cout << "  " << bits.rbegin()->second << " bits at step " << bits.rbegin()->first
            << ", lowest " << lowest << "\n";
  if (c.leaks) {
    EXPECT_LT(lowest, kLeakBits);
  } else {
    EXPECT_GT(lowest, kLeakBits);
    EXPECT_EQ(bits.rbegin()->first, static_cast<uint64_t>(c.steps));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Routers, LeakDetector,
    testing::Values(
        Case{"mcf_two_sided",
             "mcf { local_dir: LOCAL_DIRECTION_BOTH r: 1 k_loc: 2 heads: 2 d_kv: 16 }", 32, 32, 600,
             true, false},
        Case{"mcf_causal", "mcf { r: 1 k_loc: 1 heads: 2 d_kv: 16 }", 32, 32, 100, false, false},
        Case{"mcf_causal_long", "mcf { r: 1 k_loc: 1 heads: 2 d_kv: 16 }", 32, 32, 600, false,
             true},
        // A sequence of two, of which each expert takes one: what it takes compares
        // the first symbol with the next.
        Case{"expert_choice_sequence", "expert_choice { group: EXPERT_CHOICE_GROUP_SEQUENCE }", 2,
             512, 600, true, false},
        Case{"expert_choice_position_pairs",
             "expert_choice { group: EXPERT_CHOICE_GROUP_BATCH_AT_POSITION }", 2, 512, 150, false,
             false},
        Case{"expert_choice_position",
             "expert_choice { group: EXPERT_CHOICE_GROUP_BATCH_AT_POSITION }", 16, 64, 600, false,
             true},
        Case{"smoe", "smoe {}", 32, 32, 600, false, true}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace switchyard
