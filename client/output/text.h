#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard::client {

struct CodePoint {
  uint32_t value = 0;
  size_t bytes = 1;
  bool is_valid = false;  // false: one byte that begins no well-formed sequence
};

// The code point at byte `at` of `text`; `at` < text.size().
CodePoint DecodeUtf8(std::string_view text, size_t at);

// Controls (C0, C1, DEL), line and paragraph separators, bidirectional and invisible format
// characters.
bool IsUnsafeOnTerminal(uint32_t code_point);

// Terminal cells that `text` fills: 0 for combining marks, 2 for wide East Asian characters and
// emoji, else 1. Escape sequences must not be in it.
size_t CellWidth(std::string_view text);

// At most `width` cells; a cut is shown by a final "…".
std::string CutToWidth(std::string_view text, size_t width);

enum class Align { kLeft, kRight };
// Blanks added up to `width` cells; longer text stays whole.
std::string PadToWidth(std::string_view text, size_t width, Align align);

// Foreign text made harmless: EscapeForTerminal that keeps tabs, for whole lines without their end.
std::string EscapeLine(std::string_view line);

}  // namespace switchyard::client
