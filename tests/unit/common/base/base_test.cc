#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/clock.h"
#include "common/base/crc32c.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/base/status.h"

namespace switchyard {
namespace {

// The check value of the CRC-32C catalogue; a checksum in parts equals one of the whole.
TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c("456789", Crc32c("123")), 0xe3069283u);
}

// FIPS 180-2 example.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 parts;
  parts.Update("a");
  parts.Update("bc");
  EXPECT_EQ(parts.Finish().substr(0, 2), "\xba\x78");
}

// An id survives its text form, and sorts by time.
TEST(Uuid, RoundTripsAndSortsByTime) {
  const Uuid early = Uuid::V7(1000, ~0ULL, ~0ULL);
  const Uuid late = Uuid::V7(1001, 0, 0);
  EXPECT_LT(early, late);
  EXPECT_EQ(*Uuid::Parse(early.ToString()), early);
  EXPECT_EQ(late.ToString(), "00000000-03e9-7000-8000-000000000000");
  EXPECT_NE(NewUuidV7(), NewUuidV7());
}

// Anything but the one form is refused, so that a typo is not another id.
TEST(Uuid, RefusesOtherForms) {
  for (const char* text :
       {"", "x", "00000000-03e9-7000-8000-00000000000", "00000000003e9-7000-8000-000000000000",
        "g0000000-03e9-7000-8000-000000000000"}) {
    EXPECT_EQ(Uuid::Parse(text).status().code(), Code::kInvalidArgument) << text;
  }
}

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgument("odd");
  return x / 2;
}
Result<int> Quarter(int x) {
  SWITCHYARD_ASSIGN_OR_RETURN(const int half, Half(x));
  return Half(half);
}

// An error travels up unchanged.
TEST(Status, PropagatesErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status(), InvalidArgument("odd"));
  EXPECT_EQ(Quarter(6).status().ToString(), "INVALID_ARGUMENT: odd");
  EXPECT_TRUE(Unavailable("x").is_retryable());
  EXPECT_FALSE(Internal("x").is_retryable());
}

// Reading a value that is not there is a bug and ends the process.
TEST(StatusDeathTest, DereferencingAnErrorAborts) { EXPECT_DEATH((void)*Half(3), "odd"); }

// Times are for people, in UTC, whatever TZ says.
TEST(Clock, FormatsUnixTime) {
  char buffer[32];
  EXPECT_STREQ(FormatUnixMilliseconds(0, buffer), "1970-01-01T00:00:00.000Z");
  EXPECT_STREQ(FormatUnixMilliseconds(1764479603123, buffer), "2025-11-30T05:13:23.123Z");
}

}  // namespace
}  // namespace switchyard
