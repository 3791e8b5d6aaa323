#include "common/events/line.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/crc32c.h"
#include "common/base/strings.h"

namespace switchyard::events {
namespace {

using ::testing::HasSubstr;

std::string WithoutNewline(std::string line) {
  EXPECT_EQ(line.back(), '\n');
  line.pop_back();
  return line;
}

// A line around `body` (without its closing brace) with a right checksum.
std::string Sealed(const std::string& body) {
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", Crc32c(body));
  return StrCat(body, ",\"crc32c\":\"", static_cast<const char*>(digits), "\"}");
}

double RoundTrip(double value) {
  std::string line;
  const Scalar scalar{"x", value};
  AppendScalarLine(1, 2, 3, std::span(&scalar, 1), &line);
  const Result<ParsedLine> parsed = ParseLine(WithoutNewline(line));
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString() << " for " << line;
  return parsed.ok() && parsed->scalars.size() == 1 ? parsed->scalars[0].second : 0.0;
}

// The form in the documentation is the form on disk, down to the byte.
TEST(EventLine, HasTheDocumentedForm) {
  std::string out;
  const std::vector<Scalar> scalars = {{"train/nats_per_token", 2.3125}, {"train/lr", 0.125}};
  AppendScalarLine(3, 501, 8123, scalars, &out);
  EXPECT_THAT(out, ::testing::StartsWith(
                       "{\"v\":1,\"seq\":3,\"t\":\"m\",\"step\":501,\"ms\":8123,\"s\":{\"train/"
                       "nats_per_token\":2.3125,\"train/lr\":0.125},\"crc32c\":\""));
  out.clear();
  const std::vector<uint32_t> shape = {2, 2};
  const std::vector<float> values = {1.02F, std::numeric_limits<float>::quiet_NaN(),
                                     std::numeric_limits<float>::infinity(), -0.0F};
  AppendVectorLine(4, 501, 8123, "routing/expert_load", shape, values, &out);
  EXPECT_THAT(out, HasSubstr("\"vec\":{\"routing/expert_load\":{\"shape\":[2,2],\"f32\":[1.02,"
                             "\"NaN\",\"Inf\",-0.0]}},\"crc32c\":\""));
}

// Doubles of all kinds keep every bit through the text: curves are compared bit by bit.
TEST(EventLine, KeepsTheBitsOfRandomDoubles) {
  std::mt19937_64 random(20261130);
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t bits = random();
    const double value = std::bit_cast<double>(bits);
    ASSERT_EQ(std::bit_cast<uint64_t>(RoundTrip(value)), bits) << "bits " << bits;
  }
}

// The values that formats usually lose: signed zero, infinities, denormals, NaN payloads.
TEST(EventLine, KeepsTheBitsOfSpecialDoubles) {
  for (const uint64_t bits :
       {0x0000000000000000ULL, 0x8000000000000000ULL, 0x7ff0000000000000ULL, 0xfff0000000000000ULL,
        0x7ff8000000000000ULL, 0xfff8000000000000ULL, 0x7ff8000000000001ULL, 0x7ff0000000000001ULL,
        0xffffffffffffffffULL, 0x0000000000000001ULL, 0x800fffffffffffffULL, 0x0010000000000000ULL,
        0x7fefffffffffffffULL, 0x4340000000000001ULL}) {
    EXPECT_EQ(std::bit_cast<uint64_t>(RoundTrip(std::bit_cast<double>(bits))), bits);
  }
}

// The same for the floats of vectors, signalling NaNs among them.
TEST(EventLine, KeepsTheBitsOfRandomFloats) {
  std::mt19937 random(7);
  std::vector<float> values = {
      std::bit_cast<float>(0x7fc00000u), std::bit_cast<float>(0x7f800001u),
      std::bit_cast<float>(0xffffffffu), std::bit_cast<float>(0x80000000u),
      std::bit_cast<float>(0x00000001u), std::bit_cast<float>(0xff800000u)};
  while (values.size() < 50'000)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  const std::vector<uint32_t> shape = {static_cast<uint32_t>(values.size())};
  std::string line;
  AppendVectorLine(1, 1, 1, "v", shape, values, &line);
  const Result<ParsedLine> parsed = ParseLine(WithoutNewline(line));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  ASSERT_EQ(parsed->vectors.size(), 1u);
  EXPECT_EQ(parsed->vectors[0].shape, shape);
  ASSERT_EQ(parsed->vectors[0].values.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(parsed->vectors[0].values[i]),
              std::bit_cast<uint32_t>(values[i]));
  }
}

// Other types keep their JSON text, so that the store shows what the trainer wrote.
TEST(EventLine, KeepsTheTextOfOtherLines) {
  std::string line;
  AppendOtherLine(5, "ckpt", "\"step\":1000,\"digest\":\"sha256:ab\",\"bytes\":48211233", &line);
  const Result<ParsedLine> parsed = ParseLine(WithoutNewline(line));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->type, "ckpt");
  EXPECT_EQ(parsed->seq, 5u);
  EXPECT_EQ(parsed->step, 1000u);
  EXPECT_EQ(parsed->json,
            "{\"v\":1,\"seq\":5,\"t\":\"ckpt\",\"step\":1000,\"digest\":\"sha256:ab\",\"bytes\":"
            "48211233}");
}

// A flipped bit anywhere is noticed: disks do flip bits.
TEST(EventLine, NoticesAFlippedBit) {
  std::string line;
  const Scalar scalar{"train/loss", 1.25};
  AppendScalarLine(9, 10, 11, std::span(&scalar, 1), &line);
  line = WithoutNewline(line);
  for (size_t i = 0; i < line.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = line;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      EXPECT_FALSE(ParseLine(bad).ok()) << bad;
    }
  }
  std::string other_sum = line;
  other_sum[line.size() - 3] = other_sum[line.size() - 3] == '0' ? '1' : '0';
  EXPECT_EQ(ParseLine(other_sum).status().code(), Code::kDataLoss);
}

// Members may come in another order with blanks and unknown companions: newer trainers add some.
TEST(EventLine, TakesAnotherOrderBlanksAndUnknownMembers) {
  const Result<ParsedLine> parsed =
      ParseLine(Sealed("{ \"t\" : \"m\", \"new\":{\"a\":[1,{\"b\":\"}\"}]}, \"s\": { \"a\\u002fb\" "
                       ": -0, \"c\":1e300 "
                       "},\"ms\":1,\"step\":2, \"seq\":3 ,\"v\":1"));
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  ASSERT_EQ(parsed->scalars.size(), 2u);
  EXPECT_EQ(parsed->scalars[0].first, "a/b");
  EXPECT_TRUE(std::signbit(parsed->scalars[0].second));
  EXPECT_EQ(parsed->scalars[1].second, 1e300);
}

// Lines that a tenant's program could forge are refused with a reason, not read half.
TEST(EventLine, RefusesForgedLines) {
  const std::string head = "{\"v\":1,\"seq\":3,\"t\":\"m\",\"step\":1,\"ms\":1";
  for (const std::string& body :
       {std::string("{\"v\":2,\"seq\":3,\"t\":\"hello\""),
        std::string("{\"v\":1,\"seq\":0,\"t\":\"log\""),
        std::string("{\"v\":1,\"seq\":18446744073709551616,\"t\":\"log\""),
        std::string("{\"v\":1,\"seq\":-1,\"t\":\"log\""),
        std::string("{\"v\":1,\"seq\":1.5,\"t\":\"log\""),
        std::string("{\"v\":1,\"seq\":3,\"t\":\"LOG\""),
        std::string("{\"v\":1,\"seq\":3"),
        std::string("{\"v\":1,\"seq\":3,\"t\":\"log\"}{\"x\":1"),
        head + ",\"seq\":4,\"s\":{}",
        head + ",\"s\":{\"a\":1,\"a\":2}",
        head + ",\"s\":{\"a\":\"NaN:zz\"}",
        head + ",\"s\":{\"a\":\"NaN:3ff0000000000000\"}",
        head + ",\"s\":{\"a\":\"nan\"}",
        head + ",\"s\":{\"a\":nan}",
        head + ",\"s\":{\"a\":inf}",
        head + ",\"s\":{\"a\":1e400}",
        head + ",\"s\":{\"\":1}",
        head + ",\"s\":{\"a\\u001b[2J\":1}",
        head + ",\"s\":{\"a\xff\":1}",
        head + ",\"s\":{\"a\":}",
        head + ",\"s\":{\"a\":1",
        head + ",\"vec\":{\"a\":{\"shape\":[2],\"f32\":[1]}}",
        head + ",\"vec\":{\"a\":{\"shape\":[0],\"f32\":[]}}",
        head + ",\"vec\":{\"a\":{\"shape\":[4294967295,4294967295,4294967295],\"f32\":[1]}}",
        head + ",\"vec\":{\"a\":{\"f32\":[1]}}",
        head + ",\"vec\":{\"a\":{\"shape\":[-1],\"f32\":[1]}}"}) {
    const Result<ParsedLine> parsed = ParseLine(Sealed(body));
    EXPECT_FALSE(parsed.ok()) << body;
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument) << body;
  }
  EXPECT_FALSE(ParseLine("").ok());
  EXPECT_FALSE(ParseLine("{}").ok());
  EXPECT_FALSE(ParseLine(std::string(kLineBytesMax + 1, '{')).ok());
  EXPECT_FALSE(
      ParseLine(Sealed("{\"v\":1,\"seq\":1,\"t\":\"log\",\"x\":" + std::string(500'000, '[')))
          .ok());
}

}  // namespace
}  // namespace switchyard::events
