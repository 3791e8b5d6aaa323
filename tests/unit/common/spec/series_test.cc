#include "common/spec/series.h"

#include <gtest/gtest.h>

namespace switchyard::spec {
namespace {

// ME3: what is better is known by name, and never guessed for what has no direction.
TEST(SeriesDirection, KnowsLossesAndScoresOnly) {
  for (const char* series :
       {"valid/bits_per_byte", "valid/word_ppl", "train/loss", "test/nats_per_token",
        "valid/primary", "valid/domain/c/bits_per_byte"}) {
    EXPECT_EQ(SeriesDirection(series), Direction::kMinimize) << series;
  }
  for (const char* series : {"valid/accuracy", "test/mcc", "valid/f1"}) {
    EXPECT_EQ(SeriesDirection(series), Direction::kMaximize) << series;
  }
  for (const char* series :
       {"train/lr", "valid/entropy", "", "valid/", "loss/lr", "valid/loss_scale"}) {
    EXPECT_EQ(SeriesDirection(series), std::nullopt) << series;
  }
}

// `primary` stands for the data kind's metric in any split, and only as the whole metric.
TEST(ResolvePrimary, ReplacesTheMetricOnly) {
  EXPECT_EQ(ResolvePrimary("valid/primary", "bits_per_byte"), "valid/bits_per_byte");
  EXPECT_EQ(ResolvePrimary("test/primary", "word_ppl"), "test/word_ppl");
  EXPECT_EQ(ResolvePrimary("valid/word_ppl", "bits_per_byte"), "valid/word_ppl");
  EXPECT_EQ(ResolvePrimary("valid/primary_x", "bits_per_byte"), "valid/primary_x");
}

}  // namespace
}  // namespace switchyard::spec
