#include "worker/data/text.h"

namespace switchyard::data {
namespace {

// Bytes of the code point at `i`; 1 where there is none.
size_t CodePointBytes(std::string_view text, size_t i) {
  const auto byte = [&](size_t at) {
    return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
  };
  const auto continues = [&](size_t at, unsigned low = 0x80, unsigned high = 0xbf) {
    return byte(at) >= low && byte(at) <= high;
  };
  const unsigned lead = byte(i);
  if (lead < 0xc2 || lead > 0xf4) return 1;
  if (lead < 0xe0) return continues(i + 1) ? 2 : 1;
  if (lead < 0xf0) {
    // Neither overlong forms nor surrogates.
    const unsigned low = lead == 0xe0 ? 0xa0 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : 0xbf;
    return continues(i + 1, low, high) && continues(i + 2) ? 3 : 1;
  }
  const unsigned low = lead == 0xf0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xf4 ? 0x8f : 0xbf;
  return continues(i + 1, low, high) && continues(i + 2) && continues(i + 3) ? 4 : 1;
}

}  // namespace

TextCounts CountText(std::string_view text) {
  TextCounts counts;
  counts.bytes = text.size();
  bool in_word = false;
  for (size_t i = 0; i < text.size();) {
    const bool is_blank = IsBlank(text[i]);
    if (!is_blank && !in_word) ++counts.words;
    in_word = !is_blank;
    ++counts.chars;
    i += static_cast<unsigned char>(text[i]) < 0x80 ? 1 : CodePointBytes(text, i);
  }
  return counts;
}

std::string_view WithoutBom(std::string_view text) {
  constexpr std::string_view kBom = "\xef\xbb\xbf";
  return text.substr(0, kBom.size()) == kBom ? text.substr(kBom.size()) : text;
}

TextCounts CountCleanText(std::string_view text) {
  text = WithoutBom(text);
  TextCounts counts = CountText(text);
  for (const char c : text) {
    if (c != '\r') continue;
    --counts.bytes;
    --counts.chars;
  }
  return counts;
}

bool LooksLikeUtf16(std::string_view text) {
  const std::string_view start = text.substr(0, 2);
  return start == "\xff\xfe" || start == "\xfe\xff";
}

}  // namespace switchyard::data
