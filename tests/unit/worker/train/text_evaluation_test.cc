// The loss of a text does not depend on how it is fed, nor on what was scored before (TX1).
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/train/stub_model.h"
#include "worker/data/corpus.h"
#include "worker/eval/language_model.h"

namespace switchyard::eval {
namespace {

constexpr uint32_t kVocab = 16;

data::SplitTokens Split(uint64_t length, uint32_t factor) {
  data::SplitTokens split{.domains = {{.domain = 0, .begin = 0, .end = length}}, .bytes = length};
  for (uint64_t i = 0; i < length; ++i) {
    split.ids.push_back(static_cast<uint32_t>(i * factor % 7 + i / 3) % kVocab);
  }
  return split;
}

data::Corpus TextOf(uint64_t length) {
  return {.vocab_size = kVocab,
          .domain_names = {""},
          .domain_weights = {1},
          .valid = Split(length, 5),
          .test = Split(length / 2, 3)};
}

double Score(model::LanguageModel& model, const data::Corpus& corpus, data::Split split,
             uint32_t target_len, uint64_t* count = nullptr) {
  const TextEvaluation evaluation =
      EvaluateText(model, corpus, split, {.batch = 1, .target_len = target_len, .memory_len = 9},
                   c10::Device(c10::kCPU), [] { return true; });
  if (count != nullptr) *count = evaluation.totals.tokens;
  return evaluation.totals.nats / static_cast<double>(evaluation.totals.tokens);
}

// A model that knows nothing: 1,000 tokens of 16 symbols cost ln 16 nats each at any segment
// length, and 999 of them are scored.
TEST(EvaluateText, UniformModelCostsTheLogarithmOfTheVocabulary) {
  train::StubModel model(kVocab);
  model.table.set_data(at::zeros({kVocab, kVocab}));
  for (const uint32_t length : {7U, 64U, 1000U}) {
    uint64_t count = 0;
    EXPECT_NEAR(Score(model, TextOf(1000), data::Split::kValid, length, &count), 2.772589, 1e-6);
    EXPECT_EQ(count, 999U) << length;
  }
}

// A model with memory scores a split alike the second time, and behind another split.
TEST(EvaluateText, RemembersNothingOfWhatWasScoredBefore) {
  train::StubModel model(kVocab);
  model.gain.set_data(at::full({kVocab}, 3.0f));
  const data::Corpus corpus = TextOf(301);
  const double alone = Score(model, corpus, data::Split::kTest, 7);
  const double first = Score(model, corpus, data::Split::kValid, 7);
  EXPECT_EQ(Score(model, corpus, data::Split::kValid, 7), first);
  EXPECT_EQ(Score(model, corpus, data::Split::kTest, 7), alone);
  // The memory is in use: without its gain the loss is another.
  model.gain.set_data(at::zeros({kVocab}));
  EXPECT_NE(Score(model, corpus, data::Split::kValid, 7), first);
}

}  // namespace
}  // namespace switchyard::eval
