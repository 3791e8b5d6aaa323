#include "common/spec/scalar.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "common/base/strings.h"

namespace switchyard::spec {
namespace {

using Wide = unsigned __int128;

constexpr uint64_t kUint64Max = std::numeric_limits<uint64_t>::max();

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// A decimal number without its sign: digits[.digits][e[+-]digits].
struct Decimal {
  std::string digits;  // of the whole and the fraction, without leading and trailing zeros
  int64_t exponent = 0;
  bool has_leading_zero = false;  // "007"
  std::string_view rest;          // behind the number
};

bool SplitDecimal(std::string_view text, Decimal* out) {
  size_t i = 0;
  while (i < text.size() && IsDigit(text[i])) ++i;
  const std::string_view whole = text.substr(0, i);
  std::string_view fraction;
  if (i < text.size() && text[i] == '.') {
    const size_t start = ++i;
    while (i < text.size() && IsDigit(text[i])) ++i;
    fraction = text.substr(start, i - start);
  }
  if (whole.empty() && fraction.empty()) return false;
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    size_t j = i + 1;
    const bool is_negative = j < text.size() && text[j] == '-';
    if (j < text.size() && (text[j] == '-' || text[j] == '+')) ++j;
    if (j >= text.size() || !IsDigit(text[j])) return false;
    for (; j < text.size() && IsDigit(text[j]); ++j) {
      out->exponent = std::min<int64_t>(out->exponent * 10 + (text[j] - '0'), 1'000'000);
    }
    if (is_negative) out->exponent = -out->exponent;
    i = j;
  }
  out->has_leading_zero = whole.size() > 1 && whole.front() == '0';
  out->exponent -= static_cast<int64_t>(fraction.size());
  out->digits = std::string(whole) + std::string(fraction);
  while (!out->digits.empty() && out->digits.back() == '0') {
    out->digits.pop_back();
    ++out->exponent;
  }
  out->digits.erase(0, std::min(out->digits.find_first_not_of('0'), out->digits.size()));
  out->rest = text.substr(i);
  return true;
}

enum class Exactness { kWhole, kFraction, kTooLarge };

// digits * 10^exponent * factor, factor < 2^41, if that is a whole number of at most 64 bits.
Exactness Exact(const Decimal& decimal, uint64_t factor, uint64_t* out) {
  *out = 0;
  if (decimal.digits.empty()) return Exactness::kWhole;
  const int64_t magnitude = static_cast<int64_t>(decimal.digits.size()) + decimal.exponent;
  if (magnitude > 20) return Exactness::kTooLarge;
  // More digits than a 64-bit number times a factor has: the last is not 0, so a fraction remains.
  if (decimal.digits.size() > 25 || decimal.exponent < -25) return Exactness::kFraction;
  Wide value = 0;
  for (const char c : decimal.digits) value = value * 10 + static_cast<Wide>(c - '0');
  value *= factor;
  for (int64_t i = 0; i < decimal.exponent; ++i) {
    value *= 10;
    if (value > kUint64Max) return Exactness::kTooLarge;
  }
  for (int64_t i = decimal.exponent; i < 0; ++i) {
    if (value % 10 != 0) return Exactness::kFraction;
    value /= 10;
  }
  if (value > kUint64Max) return Exactness::kTooLarge;
  *out = static_cast<uint64_t>(value);
  return Exactness::kWhole;
}

Status NotA(std::string_view text, std::string_view what) {
  constexpr size_t kShownMax = 80;
  const std::string shown =
      text.size() <= kShownMax ? std::string(text) : StrCat(text.substr(0, kShownMax), "...");
  return InvalidArgument(StrCat("'", EscapeForTerminal(shown), "' is not ", what));
}

using Unit = std::pair<std::string_view, uint64_t>;
constexpr std::array<Unit, 5> kSizes = {
    {{"", 1}, {"Ki", 1ULL << 10}, {"Mi", 1ULL << 20}, {"Gi", 1ULL << 30}, {"Ti", 1ULL << 40}}};
constexpr std::array<Unit, 5> kDurations = {
    {{"ms", 1}, {"s", 1000}, {"m", 60'000}, {"h", 3'600'000}, {"d", 86'400'000}}};

Result<uint64_t> ReadMagnitude(std::string_view text, std::string_view number, uint64_t max) {
  Decimal decimal;
  if (!SplitDecimal(number, &decimal)) return NotA(text, "a whole number");
  const auto* unit = std::ranges::find(kSizes, decimal.rest, &Unit::first);
  if (unit == kSizes.end()) return NotA(text, "a whole number");
  if (decimal.has_leading_zero) return NotA(text, "a decimal number: drop the leading zero");
  uint64_t value = 0;
  switch (Exact(decimal, unit->second, &value)) {
    case Exactness::kWhole:
      break;
    case Exactness::kFraction:
      return NotA(text, "a whole number");
    case Exactness::kTooLarge:
      return NotA(text, StrCat("in range: at most ", max));
  }
  if (value > max) return NotA(text, StrCat("in range: at most ", max));
  return value;
}

}  // namespace

Result<double> ReadDouble(std::string_view text) {
  Decimal decimal;
  const std::string_view number = text.starts_with('-') ? text.substr(1) : text;
  if (!SplitDecimal(number, &decimal) || !decimal.rest.empty()) return NotA(text, "a number");
  if (decimal.has_leading_zero) return NotA(text, "a decimal number: drop the leading zero");
  const std::optional<double> value = ParseDouble(text);
  if (!value || !std::isfinite(*value)) return NotA(text, "in the range of a double");
  return *value == 0 ? 0.0 : *value;
}

Result<uint64_t> ReadUnsigned(std::string_view text, uint64_t max) {
  if (text.starts_with('-')) {
    if (const Result<double> value = ReadDouble(text); value.ok()) {
      return InvalidArgument(StrCat(text, " must not be negative"));
    }
    return NotA(text, "a whole number");
  }
  return ReadMagnitude(text, text, max);
}

Result<int64_t> ReadSigned(std::string_view text, int64_t min, int64_t max) {
  const bool is_negative = text.starts_with('-');
  const uint64_t bound =
      is_negative ? uint64_t{0} - static_cast<uint64_t>(min) : static_cast<uint64_t>(max);
  const Result<uint64_t> magnitude =
      ReadMagnitude(text, is_negative ? text.substr(1) : text, bound);
  if (!magnitude.ok()) {
    if (is_negative && magnitude.status().message().find("in range") != std::string::npos) {
      return NotA(text, StrCat("in range: at least ", min));
    }
    return magnitude.status();
  }
  const uint64_t value = *magnitude;
  return static_cast<int64_t>(is_negative ? uint64_t{0} - value : value);
}

Result<bool> ReadBool(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  if (lower == "true") return true;
  if (lower == "false") return false;
  return NotA(text, "a boolean: write true or false");
}

Result<uint64_t> ReadDurationMs(std::string_view text) {
  static constexpr std::string_view kWanted = "a duration: write a number and ms, s, m, h or d";
  Decimal decimal;
  if (text.starts_with('-') || !SplitDecimal(text, &decimal)) return NotA(text, kWanted);
  if (decimal.has_leading_zero) return NotA(text, "a decimal number: drop the leading zero");
  if (decimal.rest.empty() && decimal.digits.empty()) return uint64_t{0};
  const auto* unit = std::ranges::find(kDurations, decimal.rest, &Unit::first);
  if (unit == kDurations.end()) return NotA(text, kWanted);
  uint64_t value = 0;
  switch (Exact(decimal, unit->second, &value)) {
    case Exactness::kWhole:
      break;
    case Exactness::kFraction:
      return NotA(text, "a whole number of milliseconds");
    case Exactness::kTooLarge:
      return NotA(text, "a duration in range");
  }
  // 100 years: sums of a few stay far from overflow.
  if (value > 3'155'760'000'000ULL) return NotA(text, "a duration in range: at most 36525d");
  return value;
}

}  // namespace switchyard::spec
