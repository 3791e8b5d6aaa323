#include "common/base/strings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace switchyard {
namespace {

// One code point at `text[i]`, advancing `i`; nullopt (and one byte on) where it is ill-formed.
std::optional<char32_t> NextCodePoint(std::string_view text, size_t& i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char lead = byte(i);
  int extra = 0;
  char32_t value = 0;
  char32_t least = 0;
  if (lead < 0x80) {
    ++i;
    return lead;
  }
  if ((lead & 0xe0) == 0xc0) {
    extra = 1, value = lead & 0x1f, least = 0x80;
  } else if ((lead & 0xf0) == 0xe0) {
    extra = 2, value = lead & 0x0f, least = 0x800;
  } else if ((lead & 0xf8) == 0xf0) {
    extra = 3, value = lead & 0x07, least = 0x10000;
  } else {
    ++i;
    return std::nullopt;
  }
  if (i + static_cast<size_t>(extra) >= text.size()) {
    ++i;
    return std::nullopt;
  }
  for (int k = 1; k <= extra; ++k) {
    const unsigned char next = byte(i + static_cast<size_t>(k));
    if ((next & 0xc0) != 0x80) {
      ++i;
      return std::nullopt;
    }
    value = (value << 6) | (next & 0x3f);
  }
  if (value < least || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) {
    ++i;
    return std::nullopt;
  }
  i += static_cast<size_t>(extra) + 1;
  return value;
}

bool IsHarmful(char32_t c) {
  if (c < 0x20 || (c >= 0x7f && c <= 0x9f)) return true;
  if (c == 0x61c || c == 0x200e || c == 0x200f || c == 0xfeff) return true;
  if (c >= 0x202a && c <= 0x202e) return true;
  return (c >= 0x2066 && c <= 0x2069) || c == 0x2028 || c == 0x2029;
}

template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc{} || stop != end) return std::nullopt;
  return value;
}

}  // namespace

namespace internal {
void AppendPiece(std::string& out, double piece) { out.append(FormatDouble(piece)); }
}  // namespace internal

std::vector<std::string> StrSplit(std::string_view text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (true) {
    const size_t end = text.find(separator, start);
    if (end == std::string_view::npos) break;
    parts.emplace_back(text.substr(start, end - start));
    start = end + 1;
  }
  parts.emplace_back(text.substr(start));
  return parts;
}

std::string StrJoin(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out.append(separator);
    out.append(parts[i]);
  }
  return out;
}

std::string_view StripWhitespace(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::optional<double> ParseDouble(std::string_view text) { return ParseWhole<double>(text); }
std::optional<int64_t> ParseInt64(std::string_view text) { return ParseWhole<int64_t>(text); }
std::optional<uint64_t> ParseUint64(std::string_view text) { return ParseWhole<uint64_t>(text); }

std::string FormatDouble(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Inf" : "-Inf";
  if (value == 0 && std::signbit(value)) return "-0.0";
  std::array<char, 32> buffer{};
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  (void)error;
  return {buffer.data(), end};
}

std::string NearestWord(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t best_distance = std::max<size_t>(1, (word.size() + 2) / 3) + 1;
  for (const std::string& candidate : known) {
    std::vector<size_t> row(candidate.size() + 1);
    for (size_t j = 0; j <= candidate.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = row[0];
      row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t above = row[j];
        const size_t change = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        row[j] = std::min({above + 1, row[j - 1] + 1, change});
        diagonal = above;
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

bool IsValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    if (!NextCodePoint(text, i)) return false;
  }
  return true;
}

std::string EscapeForTerminal(std::string_view text) {
  std::string out;
  char buffer[16];
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    const std::optional<char32_t> c = NextCodePoint(text, i);
    if (!c) {
      std::snprintf(buffer, sizeof(buffer), "\\x%02x",
                    static_cast<unsigned>(static_cast<unsigned char>(text[start])));
      out.append(buffer);
    } else if (*c == '\t' || !IsHarmful(*c)) {
      out.append(text.substr(start, i - start));
    } else if (*c < 0x100) {
      std::snprintf(buffer, sizeof(buffer), "\\x%02x", static_cast<unsigned>(*c));
      out.append(buffer);
    } else {
      std::snprintf(buffer, sizeof(buffer), "\\u{%x}", static_cast<unsigned>(*c));
      out.append(buffer);
    }
  }
  return out;
}

size_t DisplayWidth(std::string_view text) {
  size_t width = 0;
  for (size_t i = 0; i < text.size();) {
    NextCodePoint(text, i);
    ++width;
  }
  return width;
}

std::string HexEncode(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    out.push_back(kDigits[static_cast<unsigned char>(c) >> 4]);
    out.push_back(kDigits[static_cast<unsigned char>(c) & 15]);
  }
  return out;
}

}  // namespace switchyard
