#include "common/spec/scalar.h"

#include <bit>
#include <cstdint>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::spec {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

uint64_t Whole(std::string_view text) {
  const Result<uint64_t> value = ReadUnsigned(text, kMax);
  EXPECT_TRUE(value.ok()) << text << ": " << value.status().ToString();
  return value.ok() ? *value : 0;
}

// CF3: the four ways to write one learning rate are one number, so their runs are one run.
TEST(ReadDouble, ReadsEveryFormOfANumberToTheSameBits) {
  for (const char* text : {"3e-4", "3.0e-4", "3E-04", "0.0003", ".0003", "30e-5"}) {
    const Result<double> value = ReadDouble(text);
    ASSERT_TRUE(value.ok()) << text;
    EXPECT_EQ(std::bit_cast<uint64_t>(*value), std::bit_cast<uint64_t>(3e-4)) << text;
  }
}

// CF3: what is no number is refused whole; no prefix of it is taken.
TEST(ReadDouble, RefusesWhatIsNotANumber) {
  for (const char* text :
       {"3e-4x", "off",   "no",    "",       " 1",     "1 ",  "1,5",        "0x10",  "+1",
        "nan",   "NaN",   ".nan",  "inf",    "-.inf",  "1e",  "1e+",        ".",     "-",
        "--1",   "1_000", "1e400", "-1e400", "1e-400", "010", "2026-11-30", "0x1p3", "1:30"}) {
    EXPECT_FALSE(ReadDouble(text).ok()) << text;
  }
}

// A negative zero would give equal runs two identities.
TEST(ReadDouble, MakesNegativeZeroZero) {
  EXPECT_EQ(std::bit_cast<uint64_t>(*ReadDouble("-0.0")), 0U);
}

// Whole numbers may look like doubles and carry units, as long as they are exactly whole.
TEST(ReadUnsigned, ReadsExactWholeNumbers) {
  EXPECT_EQ(Whole("0"), 0U);
  EXPECT_EQ(Whole("2e6"), 2'000'000U);
  EXPECT_EQ(Whole("1.5e3"), 1500U);
  EXPECT_EQ(Whole("100e-2"), 1U);
  EXPECT_EQ(Whole("1.000"), 1U);
  EXPECT_EQ(Whole("64Ki"), 65536U);
  EXPECT_EQ(Whole("1.5Ki"), 1536U);
  EXPECT_EQ(Whole("2Ti"), uint64_t{2} << 40);
  // Beyond 2^53: through a double these would lose their last digits.
  EXPECT_EQ(Whole("9007199254740993"), 9007199254740993U);
  EXPECT_EQ(Whole("18446744073709551615"), kMax);
  EXPECT_EQ(Whole("1.8446744073709551615e19"), kMax);
}

// Out of range, fractional, negative and octal-looking numbers are errors, never another number.
TEST(ReadUnsigned, RefusesWhatIsNotExactlyAWholeNumberInRange) {
  for (const char* text : {"1.5",       "1e-1",  "18446744073709551616",
                           "1e400",     "1e20",  "0755",
                           "00",        "0x10",  "0o7",
                           "0b1",       "1_000", "64K",
                           "64kb",      "64 Ki", "-5",
                           "-0",        "+5",    "yes",
                           "",          "0.1Ki", "1e-999999999999999999999",
                           "16777216Ti"}) {
    EXPECT_FALSE(ReadUnsigned(text, kMax).ok()) << text;
  }
  EXPECT_FALSE(ReadUnsigned("4294967296", std::numeric_limits<uint32_t>::max()).ok());
  EXPECT_THAT(ReadUnsigned("-5", kMax).status().message(), HasSubstr("must not be negative"));
  EXPECT_EQ(*ReadUnsigned("9223372036854775808", kMax), uint64_t{1} << 63);
}

// The edges of signed fields.
TEST(ReadSigned, ReadsTheWholeRange) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kTop = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(*ReadSigned("-9223372036854775808", kMin, kTop), kMin);
  EXPECT_EQ(*ReadSigned("9223372036854775807", kMin, kTop), kTop);
  EXPECT_FALSE(ReadSigned("9223372036854775808", kMin, kTop).ok());
  EXPECT_FALSE(ReadSigned("-9223372036854775809", kMin, kTop).ok());
  EXPECT_EQ(*ReadSigned("-1e3", kMin, kTop), -1000);
  EXPECT_THAT(ReadSigned("-200", -128, 127).status().message(), HasSubstr("at least -128"));
}

// CF3: only true and false are booleans; YAML 1.1's other words are not.
TEST(ReadBool, TakesTrueAndFalseOnly) {
  for (const char* text : {"true", "True", "TRUE"}) EXPECT_TRUE(*ReadBool(text)) << text;
  for (const char* text : {"false", "False", "FALSE"}) EXPECT_FALSE(*ReadBool(text)) << text;
  for (const char* text : {"yes", "no", "on", "off", "y", "n", "1", "0", "", "truee"}) {
    EXPECT_FALSE(ReadBool(text).ok()) << text;
  }
}

// Durations need a unit, so that nobody has to guess between seconds and milliseconds.
TEST(ReadDurationMs, ReadsUnits) {
  EXPECT_EQ(*ReadDurationMs("250ms"), 250U);
  EXPECT_EQ(*ReadDurationMs("1.5s"), 1500U);
  EXPECT_EQ(*ReadDurationMs("10m"), 600'000U);
  EXPECT_EQ(*ReadDurationMs("2h"), 7'200'000U);
  EXPECT_EQ(*ReadDurationMs("1d"), 86'400'000U);
  EXPECT_EQ(*ReadDurationMs("0"), 0U);
  for (const char* text : {"10", "10 m", "10min", "-1s", "1e400h", "0.1ms", "m", "", "40000d"}) {
    EXPECT_FALSE(ReadDurationMs(text).ok()) << text;
  }
}

}  // namespace
}  // namespace switchyard::spec
