#include "worker/data/text.h"

#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace switchyard::data {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  ForEachLine(text, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

std::vector<std::string> Words(std::string_view line) {
  std::vector<std::string> words;
  ForEachWord(line, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

// Only LF ends a line (DA1): a reader that breaks at rare separators invents examples.
TEST(Lines, BreakAtLineFeedsOnly) {
  const std::string odd = "b\u2028c\u2029d\u0085e\vf\fg";
  EXPECT_THAT(Lines("a\n" + odd + "\nz\n"), ElementsAre("a", odd, "z"));
  EXPECT_THAT(Lines("a\n\nb"), ElementsAre("a", "", "b"));
  EXPECT_THAT(Lines(""), ElementsAre());
  EXPECT_THAT(Lines("\n"), ElementsAre(""));
}

// Words split at ASCII white space alone, so that the count does not depend on a locale.
TEST(Words, SplitAtAsciiBlanksOnly) {
  EXPECT_THAT(Words(" a  b\tc\vd\fe\r"), ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_THAT(Words("a\u00a0b c\u3000d"), ElementsAre("a\u00a0b", "c\u3000d"));
  EXPECT_THAT(Words(" \t "), ElementsAre());
}

// Characters are code points and an ill-formed byte is one: sizes that per-character metrics divide
// by (data.md 9.1).
TEST(CountText, CountsBytesCharactersAndWords) {
  TextCounts counts = CountText("h\u00e9llo w\u00f6rld \U0001f600\n");
  EXPECT_EQ(counts.bytes, 19U);
  EXPECT_EQ(counts.chars, 14U);
  EXPECT_EQ(counts.words, 3U);
  counts = CountText("\xff\xfe\x80 \xe2\x82 \xc0\xaf \xed\xa0\x80 \xf4\x90\x80\x80");
  EXPECT_EQ(counts.chars, counts.bytes);
  EXPECT_EQ(CountText("\U0001f600").chars, 1U);
  EXPECT_EQ(CountText(std::string_view("a\0b", 3)).words, 1U);
  EXPECT_EQ(CountText("").bytes, 0U);
}

// Unit of two characters in three bytes: bits per character are exactly 1.5 times bits per byte
// (EV3), whatever the loss.
TEST(CountText, GivesBitsPerCharacterOneAndAHalfTimesBitsPerByte) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "a\u00e9";
  const TextCounts counts = CountText(text);
  const double nats = 123.25;
  const double per_byte = nats / std::log(2.0) / static_cast<double>(counts.bytes);
  const double per_char = nats / std::log(2.0) / static_cast<double>(counts.chars);
  EXPECT_DOUBLE_EQ(per_char, 1.5 * per_byte);
}

// Byte order mark and CR do not count as text of word readers.
TEST(CountCleanText, LeavesOutBomAndCarriageReturns) {
  const TextCounts clean = CountText("a b\nc\n");
  const TextCounts counts = CountCleanText(
      "\xef\xbb\xbf"
      "a b\r\nc\r\n");
  EXPECT_EQ(counts.bytes, clean.bytes);
  EXPECT_EQ(counts.chars, clean.chars);
  EXPECT_EQ(counts.words, clean.words);
}

}  // namespace
}  // namespace switchyard::data
