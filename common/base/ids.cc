#include "common/base/ids.h"

#include <sys/random.h>

#include <cstdio>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace switchyard {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

uint64_t KernelRandom() {
  uint64_t value = 0;
  SWITCHYARD_CHECK(getrandom(&value, sizeof(value), 0) == sizeof(value)) << "no random numbers";
  return value;
}

}  // namespace

std::string Uuid::ToString() const {
  char text[37];
  std::snprintf(text, sizeof(text), "%08x-%04x-%04x-%04x-%012llx",
                static_cast<unsigned>(high >> 32), static_cast<unsigned>((high >> 16) & 0xffff),
                static_cast<unsigned>(high & 0xffff), static_cast<unsigned>(low >> 48),
                static_cast<unsigned long long>(low & 0xffffffffffffULL));
  return text;
}

Result<Uuid> Uuid::Parse(std::string_view text) {
  Uuid id;
  int digits = 0;
  if (text.size() != 36) return InvalidArgument(StrCat("'", text.substr(0, 64), "' is not a uuid"));
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      if (text[i] != '-') return InvalidArgument(StrCat("'", text, "' is not a uuid"));
      continue;
    }
    const int digit = HexDigit(text[i]);
    if (digit < 0) return InvalidArgument(StrCat("'", text, "' is not a uuid"));
    uint64_t& half = digits < 16 ? id.high : id.low;
    half = (half << 4) | static_cast<uint64_t>(digit);
    ++digits;
  }
  return id;
}

Uuid Uuid::V7(int64_t unix_ms, uint64_t random_high, uint64_t random_low) {
  return {.high = (static_cast<uint64_t>(unix_ms) << 16) | 0x7000 | (random_high & 0x0fff),
          .low = (random_low & 0x3fffffffffffffffULL) | 0x8000000000000000ULL};
}

Uuid Uuid::V4(uint64_t random_high, uint64_t random_low) {
  return {.high = (random_high & ~0xf000ULL) | 0x4000,
          .low = (random_low & 0x3fffffffffffffffULL) | 0x8000000000000000ULL};
}

Uuid NewUuidV7() { return Uuid::V7(UnixMilliseconds(), KernelRandom(), KernelRandom()); }
Uuid NewUuidV4() { return Uuid::V4(KernelRandom(), KernelRandom()); }

}  // namespace switchyard
