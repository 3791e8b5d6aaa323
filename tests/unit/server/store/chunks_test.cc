#include "server/store/chunks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace switchyard::store {
namespace {

ChunkColumns Scalars(const std::vector<double>& values) {
  ChunkColumns columns;
  for (size_t i = 0; i < values.size(); ++i) {
    columns.seqs.push_back(i + 1);
    columns.steps.push_back(10 * i + 7);
    columns.ms.push_back(1000 + i * i);
  }
  columns.values.assign(reinterpret_cast<const char*>(values.data()), values.size() * 8);
  return columns;
}

std::string Encode(const ChunkColumns& columns) {
  std::string blob;
  EncodeChunk(columns, &blob);
  return blob;
}

// Random columns of every regularity, kind and value class come back equal, so that no curve
// depends on how it happened to be packed. Seed 7.
TEST(Chunks, GiveBackRandomColumns) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    ChunkColumns columns;
    columns.is_vector = random() % 3 == 0;
    columns.width = columns.is_vector ? static_cast<uint32_t>(random() % 9) : 1;
    const size_t n = 1 + random() % 40;
    const auto fill = [&](std::vector<uint64_t>* column) {
      uint64_t value = random() >> (random() % 64);
      const uint64_t kind = random() % 3;
      const uint64_t stride = random() % 100;
      for (size_t i = 0; i < n; ++i) {
        column->push_back(value);
        value += kind == 0 ? stride : kind == 1 ? random() % 50 : random();
      }
    };
    fill(&columns.seqs);
    fill(&columns.steps);
    fill(&columns.ms);
    const size_t values = n * (columns.is_vector ? columns.width : 1);
    const uint64_t kind = random() % 3;
    for (size_t i = 0; i < values; ++i) {
      if (columns.is_vector) {
        const auto bits = static_cast<uint32_t>(kind == 0 ? 0x3f800000 : random());
        columns.values.append(reinterpret_cast<const char*>(&bits), 4);
      } else {
        const uint64_t bits =
            kind == 0   ? 0x3ff8000000000000
            : kind == 1 ? std::bit_cast<uint64_t>(static_cast<double>(
                              std::bit_cast<float>(static_cast<uint32_t>(random() & 0xbfffffff))))
                        : random();
        columns.values.append(reinterpret_cast<const char*>(&bits), 8);
      }
    }
    const std::string blob = Encode(columns);
    const Result<ChunkColumns> decoded = DecodeChunk(blob);
    ASSERT_TRUE(decoded.ok()) << round << " " << decoded.status().ToString();
    ASSERT_EQ(*decoded, columns) << round;
    EXPECT_EQ(HasSortedSteps(blob), std::ranges::is_sorted(columns.steps));
  }
}

// Values of float32 origin take about four bytes a point, others about eight, at regular steps: a
// database of millions of points depends on it.
TEST(Chunks, AreCompactAtRegularSteps) {
  std::vector<double> narrow(512);
  std::vector<double> wide(512);
  for (size_t i = 0; i < narrow.size(); ++i) {
    narrow[i] = static_cast<double>(1.0F / static_cast<float>(i + 3));
    wide[i] = 1.0 / static_cast<double>(i + 3);
  }
  ChunkColumns columns = Scalars(narrow);
  for (size_t i = 0; i < columns.size(); ++i) columns.ms[i] = 1000 + 25 * i + i % 2;
  EXPECT_LT(Encode(columns).size(), 512u * 5 + 40);
  columns.values = Scalars(wide).values;
  EXPECT_LT(Encode(columns).size(), 512u * 9 + 40);
  columns.values = Scalars(std::vector<double>(512, 3e-4)).values;
  EXPECT_LT(Encode(columns).size(), 512u + 60);
}

// NaN payloads and -0.0 survive the narrow form's test for exactness.
TEST(Chunks, KeepSpecialBits) {
  const std::vector<double> values = {std::bit_cast<double>(0x7ff8000000000000),
                                      std::bit_cast<double>(0xfff0000000000001),
                                      -0.0,
                                      std::numeric_limits<double>::infinity(),
                                      5e-324,
                                      1.5};
  for (size_t i = 0; i < values.size(); ++i) {
    const ChunkColumns columns = Scalars({1.5, values[i]});
    EXPECT_EQ(*DecodeChunk(Encode(columns)), columns) << i;
  }
}

// Every truncation and every changed byte of a blob is an error or other values of the same size,
// never a crash or a huge allocation.
TEST(Chunks, SurviveDamage) {
  const std::string blob = Encode(Scalars({1, 2, 3, 4.25, 0.1}));
  for (size_t size = 0; size < blob.size(); ++size) {
    EXPECT_EQ(DecodeChunk(blob.substr(0, size)).status().code(), Code::kDataLoss) << size;
  }
  EXPECT_EQ(DecodeChunk(blob + "x").status().code(), Code::kDataLoss);
  for (size_t at = 0; at < blob.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = blob;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const Result<ChunkColumns> decoded = DecodeChunk(damaged);
      if (decoded.ok()) {
        EXPECT_LE(decoded->size(), 64u);
      }
    }
  }
}

// Chunks of another kind or width do not join a series.
TEST(Chunks, RefuseToJoinAnotherKind) {
  ChunkColumns columns = Scalars({1, 2});
  ChunkColumns vector = Scalars({1, 2});
  vector.is_vector = true;
  vector.width = 2;
  EXPECT_EQ(DecodeChunkInto(Encode(vector), &columns).code(), Code::kDataLoss);
  ChunkColumns joined = Scalars({1, 2});
  EXPECT_TRUE(DecodeChunkInto(Encode(Scalars({3})), &joined).ok());
  EXPECT_EQ(joined.size(), 3u);
}

}  // namespace
}  // namespace switchyard::store
