#include "client/output/number.h"

#include <cmath>
#include <cstdio>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

std::string Print(const char* format, double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, format, value);
  return buffer;
}

std::string Two(uint64_t value) { return StrCat(value < 10 ? "0" : "", value); }

}  // namespace

std::string FormatCount(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string FormatValue(double value) {
  if (!std::isfinite(value)) return FormatDouble(value);
  const double size = std::fabs(value);
  if (size >= 99999.5 && size < 1e15) {
    return StrCat(value < 0 ? "-" : "", FormatCount(static_cast<uint64_t>(std::llround(size))));
  }
  if (size >= 1e15) return Print("%.4g", value);
  if (size >= 999.95 && size == std::floor(size)) {
    return StrCat(value < 0 ? "-" : "", FormatCount(static_cast<uint64_t>(size)));
  }
  return Print("%.5g", value);
}

std::string FormatSi(double value) {
  if (!std::isfinite(value)) return FormatDouble(value);
  constexpr const char* kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  // 999.5 and not 1000: what would print as "1000k" is "1M".
  while (std::fabs(value) >= 999.5 && unit + 1 < std::size(kUnits)) {
    value /= 1000;
    ++unit;
  }
  return StrCat(Print("%.3g", value), kUnits[unit]);
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 9.95) return StrCat(Print("%.1f", seconds), "s");
  const auto s = static_cast<uint64_t>(std::llround(std::fmin(seconds, 1e15)));
  if (s < 60) return StrCat(s, "s");
  if (s < 3600) return StrCat(s / 60, "m", Two(s % 60), "s");
  if (s < 86400) return StrCat(s / 3600, "h", Two(s / 60 % 60), "m");
  return StrCat(s / 86400, "d", Two(s / 3600 % 24), "h");
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return StrCat(bytes, " B");
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1023.95 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return StrCat(Print("%.1f", value), " ", kUnits[unit]);
}

}  // namespace switchyard::client
