#include "client/output/text.h"

#include <algorithm>
#include <iterator>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

struct Range {
  uint32_t first;
  uint32_t last;
};

// Sorted. Marks that join the character before them, and characters without width.
constexpr Range kZeroWidth[] = {
    {0x0300, 0x036f},  {0x0483, 0x0489}, {0x0591, 0x05bd}, {0x0610, 0x061a}, {0x064b, 0x065f},
    {0x06d6, 0x06dc},  {0x0900, 0x0902}, {0x093a, 0x093a}, {0x093c, 0x093c}, {0x0941, 0x0948},
    {0x094d, 0x094d},  {0x0e31, 0x0e31}, {0x0e34, 0x0e3a}, {0x0e47, 0x0e4e}, {0x1ab0, 0x1aff},
    {0x1dc0, 0x1dff},  {0x200b, 0x200d}, {0x20d0, 0x20ff}, {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f},
    {0xe0100, 0xe01ef}};
// Sorted. East Asian Wide and Fullwidth, and emoji that terminals draw two cells wide.
constexpr Range kWide[] = {
    {0x1100, 0x115f},   {0x231a, 0x231b},  {0x23e9, 0x23ec}, {0x2614, 0x2615},   {0x2648, 0x2653},
    {0x26a1, 0x26a1},   {0x2705, 0x2705},  {0x270a, 0x270b}, {0x2728, 0x2728},   {0x274c, 0x274c},
    {0x2753, 0x2755},   {0x2795, 0x2797},  {0x2e80, 0x303e}, {0x3041, 0x33ff},   {0x3400, 0x4dbf},
    {0x4e00, 0x9fff},   {0xa000, 0xa4cf},  {0xa960, 0xa97f}, {0xac00, 0xd7a3},   {0xf900, 0xfaff},
    {0xfe30, 0xfe6f},   {0xff00, 0xff60},  {0xffe0, 0xffe6}, {0x1f300, 0x1f64f}, {0x1f680, 0x1f6ff},
    {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};

template <size_t N>
bool Contains(const Range (&ranges)[N], uint32_t value) {
  const Range* found =
      std::partition_point(std::begin(ranges), std::end(ranges),
                           [value](const Range& range) { return range.last < value; });
  return found != std::end(ranges) && found->first <= value;
}

size_t WidthOf(const CodePoint& point) {
  if (!point.is_valid) return 1;
  if (Contains(kZeroWidth, point.value)) return 0;
  return Contains(kWide, point.value) ? 2 : 1;
}

}  // namespace

CodePoint DecodeUtf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {.value = lead, .bytes = 1, .is_valid = true};
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || at + length > text.size()) return {};
  uint32_t value = lead & (0x7fU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = (value << 6) | (byte(i) & 0x3fU);
  }
  constexpr uint32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
    return {};
  }
  return {.value = value, .bytes = length, .is_valid = true};
}

bool IsUnsafeOnTerminal(uint32_t value) {
  return value < 0x20 || (value >= 0x7f && value <= 0x9f) || value == 0x061c ||
         (value >= 0x200e && value <= 0x200f) || (value >= 0x2028 && value <= 0x202e) ||
         (value >= 0x2066 && value <= 0x2069) || value == 0xfeff;
}

size_t CellWidth(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = DecodeUtf8(text, at);
    width += WidthOf(point);
    at += point.bytes;
  }
  return width;
}

std::string CutToWidth(std::string_view text, size_t width) {
  if (CellWidth(text) <= width) return std::string(text);
  if (width == 0) return {};
  size_t used = 0;
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint point = DecodeUtf8(text, at);
    if (used + WidthOf(point) > width - 1) break;
    used += WidthOf(point);
    at += point.bytes;
  }
  return StrCat(text.substr(0, at), "…");
}

std::string PadToWidth(std::string_view text, size_t width, Align align) {
  const size_t own = CellWidth(text);
  const std::string blanks(own < width ? width - own : 0, ' ');
  return align == Align::kLeft ? StrCat(text, blanks) : StrCat(blanks, text);
}

std::string EscapeLine(std::string_view line) {
  std::string out;
  size_t begin = 0;
  while (begin <= line.size()) {
    const size_t tab = std::min(line.find('\t', begin), line.size());
    out += EscapeForTerminal(line.substr(begin, tab - begin));
    if (tab < line.size()) out += '\t';
    begin = tab + 1;
  }
  return out;
}

}  // namespace switchyard::client
