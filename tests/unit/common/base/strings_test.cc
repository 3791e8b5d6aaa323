#include "common/base/strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace switchyard {
namespace {

using ::testing::ElementsAre;

TEST(Strings, CatSplitJoin) {
  EXPECT_EQ(StrCat("a", 1, 'c', true, 0.5, std::string("x")), "a1ctrue0.5x");
  EXPECT_THAT(StrSplit("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_EQ(StrJoin({"a", "b"}, ", "), "a, b");
  EXPECT_EQ(StripWhitespace(" \t x y\r\n"), "x y");
}

// A number is the whole text or none: -7.539e-05 is not -7.5, and 3x is nothing (cases.md ME2).
TEST(Strings, NumbersAreParsedWhole) {
  EXPECT_EQ(ParseDouble("-7.539e-05"), -7.539e-05);
  EXPECT_EQ(ParseDouble("3e-4"), 0.0003);
  EXPECT_FALSE(ParseDouble("3e-4x"));
  EXPECT_FALSE(ParseDouble(""));
  EXPECT_FALSE(ParseDouble(" 1"));
  EXPECT_EQ(ParseInt64("-5"), -5);
  EXPECT_FALSE(ParseInt64("9223372036854775808"));
  EXPECT_FALSE(ParseUint64("-1"));
}

// Finite doubles read back to the same bits.
TEST(Strings, DoublesRoundTrip) {
  for (const double value : {0.1, 1e300, 5e-324, -0.0, 1.0, 123456789.125}) {
    const auto back = ParseDouble(FormatDouble(value));
    ASSERT_TRUE(back);
    EXPECT_EQ(std::signbit(*back), std::signbit(value));
    EXPECT_EQ(*back, value);
  }
  EXPECT_EQ(FormatDouble(std::nan("")), "NaN");
  EXPECT_EQ(FormatDouble(-std::numeric_limits<double>::infinity()), "-Inf");
  EXPECT_EQ(FormatDouble(-0.0), "-0.0");
}

// A hint only where it is plausible.
TEST(Strings, NearestWord) {
  EXPECT_EQ(NearestWord("top_kk", {"top_k", "experts"}), "top_k");
  EXPECT_EQ(NearestWord("lrr", {"lr", "eps"}), "lr");
  EXPECT_EQ(NearestWord("zebra", {"top_k", "experts"}), "");
}

// What could act on a terminal is written out; ordinary text of any language stays.
TEST(Strings, EscapesForTerminals) {
  EXPECT_EQ(EscapeForTerminal("a\x1b[2Jb\n"), "a\\x1b[2Jb\\x0a");
  EXPECT_EQ(EscapeForTerminal("\u202eabc"), "\\u{202e}abc");
  EXPECT_EQ(EscapeForTerminal("h\u00e9 \u65e5\u672c"), "h\u00e9 \u65e5\u672c");
  EXPECT_EQ(EscapeForTerminal("\xff\xc3"), "\\xff\\xc3");
}

TEST(Strings, Utf8) {
  EXPECT_TRUE(IsValidUtf8("h\u00e9\U0001F600"));
  EXPECT_FALSE(IsValidUtf8("\xc0\xaf"));
  EXPECT_FALSE(IsValidUtf8("\xed\xa0\x80"));
  EXPECT_FALSE(IsValidUtf8("a\xe2\x82"));
  EXPECT_EQ(DisplayWidth("h\u00e9"), 2u);
}

}  // namespace
}  // namespace switchyard
