#include "common/base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace switchyard {
namespace {

// Streams are part of every run's identity: these numbers may never change.
TEST(Rng, GoldenValues) {
  const RandomKey key = RandomKey::For(1, "init");
  EXPECT_EQ(key.value, 0xbc13f565defe7024ULL);
  EXPECT_EQ(RandomBits(key, 0), 0x9e88507dc9999ba9ULL);
  EXPECT_EQ(RandomBits(key.With(3), 5), 0x4cb8c5dcd0d294f8ULL);
  EXPECT_EQ(key.With("a").value, 0x321d4811537102ddULL);
}

// Seeds, purposes and indices all separate streams.
TEST(Rng, StreamsDiffer) {
  const RandomKey key = RandomKey::For(1, "init");
  EXPECT_NE(RandomBits(key, 0), RandomBits(key, 1));
  EXPECT_NE(RandomBits(key, 0), RandomBits(RandomKey::For(2, "init"), 0));
  EXPECT_NE(RandomBits(key, 0), RandomBits(RandomKey::For(1, "dropout"), 0));
  EXPECT_NE(RandomBits(key.With(0), 0), RandomBits(key.With(1), 0));
}

// Philox 4x32-10 with key 0 and counter 0, from the authors' known-answer file.
TEST(Rng, PhiloxKnownAnswer) {
  // Words 6627e8d5 e169c58d bc57ac4c 9b00dbd8; the first two make the value.
  EXPECT_EQ(RandomBits(RandomKey{0}, 0), 0xe169c58d6627e8d5ULL);
}

// Mean and variance within four standard errors of 100,000 draws (seed 7).
TEST(Rng, MomentsOfUniformAndNormal) {
  const RandomKey key = RandomKey::For(7, "moments");
  constexpr int kDraws = 100'000;
  double uniform = 0, normal = 0, normal_square = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = RandomUniform(key, static_cast<uint64_t>(i));
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    uniform += u;
    const double z = RandomNormal(key.With("z"), static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(z));
    normal += z;
    normal_square += z * z;
  }
  EXPECT_NEAR(uniform / kDraws, 0.5, 4 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(normal / kDraws, 0.0, 4 * std::sqrt(1.0 / kDraws));
  EXPECT_NEAR(normal_square / kDraws, 1.0, 4 * std::sqrt(2.0 / kDraws));
}

// Every value below the bound comes up, none above.
TEST(Rng, BelowCoversItsRange) {
  const RandomKey key = RandomKey::For(1, "below");
  std::set<uint64_t> seen;
  for (uint64_t i = 0; i < 1000; ++i) seen.insert(RandomBelow(key, i, 7));
  EXPECT_EQ(seen, (std::set<uint64_t>{0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace switchyard
