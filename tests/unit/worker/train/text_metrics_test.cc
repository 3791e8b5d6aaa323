#include "worker/eval/text_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace switchyard::eval {
namespace {

// A small last batch must weigh by its tokens, and the exponential comes last.
TEST(TextMetrics, SumsOverTokensNotMeansOfBatches) {
  TextTotals totals;
  totals.Add({.nats = 100 * 3.0, .tokens = 100});
  totals.Add({.nats = 10 * 5.0, .tokens = 10});
  EXPECT_NEAR(NatsPerToken(totals), 3.1818, 5e-5);
  EXPECT_NEAR(TokenPpl(totals), 24.09, 5e-3);
}

// Nats are not bits.
TEST(TextMetrics, BitsAreNatsOverLnTwo) {
  EXPECT_NEAR(BitsPerToken({.nats = 0.693147, .tokens = 1}), 1.0, 1e-6);
  EXPECT_NEAR(BitsPerByte({.nats = 2.0, .tokens = 1, .bytes = 1}), 2.885, 5e-4);
}

// Bytes are not characters: a two-character unit of three bytes makes them differ by exactly 1.5.
TEST(TextMetrics, BitsPerCharacterAndPerByteDifferByTheText) {
  const TextTotals totals{.nats = 7.3, .tokens = 3000, .bytes = 3000, .chars = 2000};
  EXPECT_DOUBLE_EQ(BitsPerChar(totals) / BitsPerByte(totals), 1.5);
}

// Word and piece perplexities are different numbers with different names.
TEST(TextMetrics, PerplexityPerWordAndPerTokenAreApart) {
  const TextTotals totals{.nats = 390, .tokens = 130, .words = 100};
  EXPECT_NEAR(TokenPpl(totals), 20.09, 5e-3);
  EXPECT_NEAR(WordPpl(totals), 49.40, 5e-3);
}

// What a tokenisation does not define is not written at all.
TEST(TextMetrics, SeriesFollowTheTokens) {
  const auto names = [](TextUnits units) {
    std::vector<std::string> out;
    for (const auto& [name, value] : TextSeries("valid", units, {.nats = 1, .tokens = 1})) {
      out.push_back(name);
    }
    return out;
  };
  EXPECT_THAT(
      names(TextUnits::kBytes),
      testing::ElementsAre("valid/nats_per_token", "valid/bits_per_byte", "valid/bits_per_token",
                           "valid/bits_per_char", "valid/scored_tokens"));
  EXPECT_THAT(
      names(TextUnits::kTokens),
      testing::ElementsAre("valid/nats_per_token", "valid/bits_per_token", "valid/scored_tokens"));
  EXPECT_THAT(names(TextUnits::kWords),
              testing::ElementsAre("valid/nats_per_token", "valid/word_ppl", "valid/token_ppl",
                                   "valid/scored_tokens"));
}

}  // namespace
}  // namespace switchyard::eval
