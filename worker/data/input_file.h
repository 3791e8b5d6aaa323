#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace switchyard::data {

// Largest text that one input file may hold, after unpacking.
inline constexpr uint64_t kMaxTextBytes = uint64_t{1} << 30;
// A gzip stream is refused as a bomb once it has given this much ...
inline constexpr uint64_t kBombFloorBytes = uint64_t{16} << 20;
// ... at more than this many bytes for each byte read. Real text packs 3 to 10 to one, tables of
// zeros up to 1,030.
inline constexpr uint64_t kBombRatio = 200;

// What a path stands for, links followed.
struct InputIdentity {
  enum class Kind { kRegular, kDirectory, kOther };
  Kind kind = Kind::kOther;
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  auto operator<=>(const InputIdentity&) const = default;
};
// kNotFound (also a link that leads nowhere), kPermissionDenied, kInternal.
Result<InputIdentity> IdentifyInput(const std::string& path);

// Whole content of a regular file of at most `max_bytes`; links are followed, but not the kernel's
// magic ones in /proc. kInvalidArgument for anything but a regular file; errors name the path.
Result<std::string> ReadInput(const std::string& path, uint64_t max_bytes = kMaxTextBytes);

// Unpacks a gzip file, its members taken as one stream; zero bytes behind the last member are
// padding. kDataLoss: not gzip, cut off, checksum or length wrong, other bytes behind the end.
// kResourceExhausted: more than kMaxTextBytes, or a bomb as above. Errors begin with `label`.
Result<std::string> Gunzip(std::string_view packed, std::string_view label);

// ReadInput, unpacked if the name ends in ".gz".
Result<std::string> ReadTextInput(const std::string& path);

}  // namespace switchyard::data
