#include "server/api/batch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "common/events/batch.h"
#include "server/store/chunks.h"

namespace switchyard::api {
namespace {

std::string Doubles(std::initializer_list<double> values) {
  std::string out;
  for (const double value : values) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return out;
}

std::shared_ptr<events::DecodedBatch> Losses() {
  auto batch = std::make_shared<events::DecodedBatch>();
  batch->columns.push_back({.name = "valid/nats_per_token",
                            .is_vector = false,
                            .shape = {},
                            .seqs = {2, 3, 4},
                            .steps = {10, 20, 30},
                            .ms = {1, 2, 3},
                            .values = Doubles({3.0, std::nan(""), 2.5})});
  batch->lines.push_back({.seq = 1, .covers = 1, .type = "hello", .json = "{\"t\":\"hello\"}"});
  batch->lines.push_back({.seq = 5,
                          .covers = 1,
                          .type = "ckpt",
                          .json = R"({"step":30,"digest":"d","bytes":7,"path":"/c/30"})"});
  batch->lines.push_back({.seq = 6, .covers = 4, .type = "gap", .json = R"({"reason":"corrupt"})"});
  return batch;
}

// NaN is counted and stored, and is never the best.
TEST(PrepareBatch, SummarisesAndKeepsEveryPoint) {
  const auto batch = PrepareBatch(Losses(), Epoch{9}, 0, 0);
  ASSERT_TRUE(batch.ok()) << batch.status().ToString();
  EXPECT_EQ((*batch)->points, 3u);
  ASSERT_EQ((*batch)->deltas.size(), 1u);
  const SeriesDelta& delta = (*batch)->deltas[0];
  EXPECT_EQ(delta.count, 3u);
  EXPECT_EQ(delta.non_finite, 1u);
  EXPECT_EQ(delta.best, 2.5);
  EXPECT_EQ(delta.best_step, 30u);
  const auto chunk = store::DecodeChunk((*batch)->chunks[0].blob);
  ASSERT_TRUE(chunk.ok());
  EXPECT_EQ(chunk->values, Losses()->columns[0].values);
  EXPECT_EQ((*batch)->lost[2], 4u);
}

// Lines that the core looks at come out as facts.
TEST(PrepareBatch, ReadsCheckpointLines) {
  const auto batch = PrepareBatch(Losses(), Epoch{9}, 0, 0);
  ASSERT_TRUE(batch.ok());
  ASSERT_EQ((*batch)->facts.size(), 2u);
  EXPECT_EQ((*batch)->facts[1].step, 30u);
  EXPECT_EQ((*batch)->facts[1].path, "/c/30");
}

// ME3: a checkpoint goes with the newest value before its own line, not with the batch's last.
TEST(PrepareBatch, TellsTheValueAtEachLine) {
  const auto batch = PrepareBatch(Losses(), Epoch{9}, 0, 0);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(ValueBefore(**batch, "valid/nats_per_token", 2), std::nullopt);
  EXPECT_EQ(ValueBefore(**batch, "valid/nats_per_token", 3), 3.0);
  EXPECT_TRUE(std::isnan(*ValueBefore(**batch, "valid/nats_per_token", 4)));
  EXPECT_EQ(ValueBefore(**batch, "valid/nats_per_token", 100), 2.5);
  EXPECT_EQ(ValueBefore(**batch, "valid/accuracy", 100), std::nullopt);
}

// What was stored before is left out, down to single points.
TEST(PrepareBatch, SkipsTheStoredPrefix) {
  const auto batch = PrepareBatch(Losses(), Epoch{9}, 0, 3);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ((*batch)->points, 1u);
  EXPECT_EQ((*batch)->chunks[0].first_seq, 4u);
  EXPECT_EQ((*batch)->lines.size(), 2u);
}

// A vector counts as the mean of its finite elements.
TEST(PrepareBatch, SummarisesVectorsByTheirMean) {
  auto decoded = std::make_shared<events::DecodedBatch>();
  const float values[] = {1.0F, 3.0F, std::numeric_limits<float>::infinity(), 5.0F};
  decoded->columns.push_back(
      {.name = "routing/entropy_norm",
       .is_vector = true,
       .shape = {2},
       .seqs = {1, 2},
       .steps = {1, 2},
       .ms = {1, 2},
       .values = std::string(reinterpret_cast<const char*>(values), sizeof(values))});
  const auto batch = PrepareBatch(decoded, Epoch{9}, 0, 0);
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ((*batch)->deltas[0].last, 5.0);
  EXPECT_EQ((*batch)->deltas[0].non_finite, 1u);
  EXPECT_FALSE((*batch)->deltas[0].has_best);
  EXPECT_EQ((*batch)->deltas[0].last_vector.size(), 8u);
}

// Steps that fall inside a batch: its row says where its steps lie, its summary ends at the
// highest.
TEST(PrepareBatch, TakesStepsThatFall) {
  auto decoded = std::make_shared<events::DecodedBatch>();
  const float values[] = {1.0F, 2.0F, 3.0F};
  decoded->columns.push_back(
      {.name = "routing/load",
       .is_vector = true,
       .shape = {1},
       .seqs = {1, 2, 3},
       .steps = {7, 9, 4},
       .ms = {1, 2, 3},
       .values = std::string(reinterpret_cast<const char*>(values), sizeof(values))});
  const auto batch = PrepareBatch(decoded, Epoch{9}, 0, 0);
  ASSERT_TRUE(batch.ok());
  const scheduler::ChunkRow& chunk = (*batch)->chunks[0];
  EXPECT_EQ(chunk.first_step, 4u);
  EXPECT_EQ(chunk.last_step, 9u);
  EXPECT_FALSE(store::HasSortedSteps(chunk.blob));
  EXPECT_EQ((*batch)->deltas[0].last, 2.0);
  EXPECT_EQ((*batch)->deltas[0].last_step, 9u);
  float newest = 0;
  std::memcpy(&newest, (*batch)->deltas[0].last_vector.data(), sizeof(newest));
  EXPECT_EQ(newest, 2.0F);
}

// Values that do not cover the points are refused whole.
TEST(PrepareBatch, RefusesColumnsThatDoNotAddUp) {
  auto decoded = Losses();
  decoded->columns[0].values.resize(9);
  EXPECT_EQ(PrepareBatch(decoded, Epoch{9}, 0, 0).status().code(), Code::kInvalidArgument);
}

// Two batches give the summary of both.
TEST(Fold, JoinsBatches) {
  scheduler::SummaryRow row;
  const auto batch = PrepareBatch(Losses(), Epoch{9}, 0, 0);
  ASSERT_TRUE(batch.ok());
  SeriesDelta worse = (*batch)->deltas[0];
  worse.best = 4.0;
  worse.last_step = 50;
  Fold((*batch)->deltas[0], &row);
  Fold(worse, &row);
  EXPECT_EQ(row.count, 6u);
  EXPECT_EQ(row.best, 2.5);
  EXPECT_EQ(row.last_step, 50u);
}

}  // namespace
}  // namespace switchyard::api
