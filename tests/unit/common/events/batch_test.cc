#include "common/events/batch.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/strings.h"
#include "switchyard/v1/event.pb.h"

namespace switchyard::events {
namespace {

namespace pb = ::switchyard::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ParsedLine Metric(uint64_t seq, std::vector<Scalar> scalars) {
  return {.seq = seq, .type = "m", .step = seq * 10, .ms = seq * 7, .scalars = std::move(scalars)};
}

Result<DecodedBatch> Decode(const BatchBuilder::Blob& blob) {
  return DecodeBatch(blob.bytes, blob.is_zstd, blob.crc32c, blob.first_seq, blob.n);
}

Status DecodeStatus(const pb::EventBatch& batch, uint64_t first, uint64_t n) {
  const std::string bytes = batch.SerializeAsString();
  return DecodeBatch(bytes, false, Crc32c(bytes), first, n).status();
}

// Lines of all kinds come back as columns and lines that cover the range once.
TEST(EventBatch, RoundTripsColumnsVectorsLinesAndGaps) {
  BatchBuilder builder;
  EXPECT_TRUE(builder.empty());
  builder.Add({.seq = 5, .type = "hello", .json = "{\"v\":1}"});
  builder.Add(Metric(6, {{"a", 1.5}, {"b", -0.0}}));
  builder.Add(Metric(7, {{"a", 2.5}}));
  builder.AddGap(8, 3, "corrupt");
  builder.Add({.seq = 11,
               .type = "m",
               .step = 9,
               .ms = 9,
               .vectors = {{.name = "a", .shape = {1, 2}, .values = {1.0F, 2.0F}}}});
  builder.Add(Metric(12, {}));
  EXPECT_EQ(builder.first_seq(), 5u);
  EXPECT_EQ(builder.line_count(), 8u);
  const BatchBuilder::Blob blob = builder.Finish();
  EXPECT_TRUE(builder.empty());

  const Result<DecodedBatch> decoded = Decode(blob);
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  ASSERT_EQ(decoded->columns.size(), 3u);
  EXPECT_EQ(decoded->columns[0].name, "a");
  EXPECT_THAT(decoded->columns[0].seqs, ElementsAre(6, 7));
  EXPECT_THAT(decoded->columns[0].steps, ElementsAre(60, 70));
  EXPECT_THAT(decoded->columns[0].ms, ElementsAre(42, 49));
  double value = 0;
  std::memcpy(&value, decoded->columns[0].values.data() + 8, 8);
  EXPECT_EQ(value, 2.5);
  EXPECT_TRUE(decoded->columns[2].is_vector);
  EXPECT_THAT(decoded->columns[2].shape, ElementsAre(1, 2));
  ASSERT_EQ(decoded->lines.size(), 3u);
  EXPECT_EQ(decoded->lines[1].type, "gap");
  EXPECT_EQ(decoded->lines[1].covers, 3u);
  EXPECT_THAT(decoded->lines[1].json, HasSubstr("\"from\":8,\"to\":10,\"reason\":\"corrupt\""));
  EXPECT_EQ(decoded->lines[2].type, "m");
}

// A long batch is compressed, and a builder can be used again.
TEST(EventBatch, CompressesLongBatchesAndStartsAnew) {
  BatchBuilder builder;
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 1; i <= 2000; ++i) builder.Add(Metric(i, {{"train/loss", 3.0}}));
    const BatchBuilder::Blob blob = builder.Finish();
    EXPECT_TRUE(blob.is_zstd);
    EXPECT_LT(blob.bytes.size(), 4000u);
    const Result<DecodedBatch> decoded = Decode(blob);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    ASSERT_EQ(decoded->columns.size(), 1u);
    EXPECT_EQ(decoded->columns[0].seqs.size(), 2000u);
  }
}

// A wrong checksum, a bomb and garbage are refused before anything is stored.
TEST(EventBatch, RefusesDamagedBlobs) {
  BatchBuilder builder;
  for (uint64_t i = 1; i <= 100; ++i) builder.Add(Metric(i, {{"a", 1.0}}));
  const BatchBuilder::Blob blob = builder.Finish();
  EXPECT_FALSE(DecodeBatch(blob.bytes, true, blob.crc32c + 1, 1, 100).ok());
  EXPECT_FALSE(DecodeBatch(blob.bytes, false, blob.crc32c, 1, 100).ok());
  EXPECT_FALSE(DecodeBatch(blob.bytes, true, blob.crc32c, 1, 101).ok());
  EXPECT_FALSE(DecodeBatch(blob.bytes, true, blob.crc32c, 2, 100).ok());
  EXPECT_FALSE(DecodeBatch(blob.bytes, true, blob.crc32c, 0, 100).ok());
  EXPECT_FALSE(DecodeBatch(blob.bytes, true, blob.crc32c, UINT64_MAX - 10, 100).ok());
  EXPECT_FALSE(DecodeBatch("", true, Crc32c(""), 1, 1).ok());
  EXPECT_FALSE(DecodeBatch("garbage", true, Crc32c("garbage"), 1, 1).ok());
  // A frame that says it unpacks to 2^40 bytes.
  const std::string bomb("\x28\xb5\x2f\xfd\xe0\x00\x00\x00\x00\x00\x01\x00\x00\x01\x00\x00", 16);
  const Status status = DecodeBatch(bomb, true, Crc32c(bomb), 1, 1).status();
  EXPECT_THAT(status.message(), HasSubstr("at most"));
}

// A batch whose parts do not fit together is refused: it would break the record's arithmetic.
TEST(EventBatch, RefusesInconsistentStructure) {
  pb::EventBatch good;
  pb::Column* column = good.add_columns();
  column->set_name("a");
  column->set_kind(pb::COLUMN_KIND_SCALAR);
  for (const uint64_t delta : {1, 1}) column->add_seq_deltas(delta);
  for (int i = 0; i < 2; ++i) {
    column->add_step_deltas(1);
    column->add_ms_deltas(1);
  }
  column->set_values(std::string(16, '\0'));
  EXPECT_TRUE(DecodeStatus(good, 1, 2).ok());

  const auto refused = [&](auto change, uint64_t n = 2) {
    pb::EventBatch bad = good;
    change(bad);
    return DecodeStatus(bad, 1, n).code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_name(""); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_name("a\nb"); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_name(std::string(257, 'a')); }));
  EXPECT_TRUE(
      refused([](auto& b) { b.mutable_columns(0)->set_kind(pb::COLUMN_KIND_UNSPECIFIED); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->add_shape(2); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_seq_deltas(1, 0); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_seq_deltas(1, UINT64_MAX); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_step_deltas(0, -1); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_step_deltas(1, INT64_MAX); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->add_ms_deltas(1); }));
  EXPECT_TRUE(refused([](auto& b) { b.mutable_columns(0)->set_values("short"); }));
  EXPECT_TRUE(refused([](auto&) {}, 3));  // line 3 is missing
  EXPECT_TRUE(refused([](auto& b) {
    pb::OtherLine* line = b.add_lines();
    line->set_seq(2);
    line->set_covers(1);
  }));
  EXPECT_TRUE(refused(
      [](auto& b) {
        pb::OtherLine* line = b.add_lines();
        line->set_seq(3);
        line->set_type("log");
        line->set_covers(2);
      },
      4));
  EXPECT_TRUE(refused(
      [](auto& b) {
        pb::OtherLine* line = b.add_lines();
        line->set_seq(3);
        line->set_type("gap");
        line->set_covers(UINT64_MAX);
      },
      3));
}

}  // namespace
}  // namespace switchyard::events
