#pragma once

#include <cstdint>
#include <string_view>

namespace switchyard::data {

// Size of a text in the units that metrics are given in.
struct TextCounts {
  uint64_t bytes = 0;
  uint64_t chars = 0;  // code points; each byte that belongs to none counts as one
  uint64_t words = 0;  // runs of bytes between ASCII white space

  TextCounts& operator+=(const TextCounts& other) {
    bytes += other.bytes;
    chars += other.chars;
    words += other.words;
    return *this;
  }
};

// Space, TAB, LF, VT, FF, CR. No other character splits words, and LF alone ends a line: U+2028,
// U+0085 or a no-break space are part of a word.
constexpr bool IsBlank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

TextCounts CountText(std::string_view text);

// What word readers do with a text: no byte order mark, and CR does not count (it separates words
// like any blank, so that a bare CR glues nothing together).
std::string_view WithoutBom(std::string_view text);
// CountText of the text without byte order mark and CRs.
TextCounts CountCleanText(std::string_view text);
// Begins with the byte order mark of UTF-16 in either order.
bool LooksLikeUtf16(std::string_view text);

// Calls `on_line(std::string_view)` for each line, without its LF; a last line without LF counts,
// an empty one does not.
template <typename OnLine>
void ForEachLine(std::string_view text, OnLine on_line) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    on_line(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

// Calls `on_word(std::string_view)` for each word of a line.
template <typename OnWord>
void ForEachWord(std::string_view line, OnWord on_word) {
  size_t i = 0;
  while (i < line.size()) {
    while (i < line.size() && IsBlank(line[i])) ++i;
    const size_t begin = i;
    while (i < line.size() && !IsBlank(line[i])) ++i;
    if (i > begin) on_word(line.substr(begin, i - begin));
  }
}

}  // namespace switchyard::data
