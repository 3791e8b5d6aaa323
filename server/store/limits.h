#pragma once

#include <algorithm>
#include <cstdint>

// Sizes of what is stored.
namespace switchyard::store {

// Chunks are merged to about this many points; vectors to this many bytes.
inline constexpr uint32_t kChunkPoints = 512;
inline constexpr uint64_t kVectorChunkBytes = 64 << 10;

inline constexpr uint64_t kLogHeadBytes = uint64_t{1} << 20;
inline constexpr uint64_t kLogTailBytes = uint64_t{32} << 20;
inline constexpr uint64_t kLogChunkBytes = 64 << 10;
// Smaller pieces are stored as they come.
inline constexpr uint64_t kLogCompressBytes = 4 << 10;
inline constexpr int kCodecPlain = 1;
inline constexpr int kCodecZstd = 2;

// The write-ahead log is copied into the main file when it is longer.
inline constexpr uint64_t kWalBytes = uint64_t{16} << 20;

// Points of a full chunk of a series with `width` values a point.
constexpr uint32_t MergePoints(bool is_vector, uint64_t width) {
  if (!is_vector) return kChunkPoints;
  const uint64_t point_bytes = std::max<uint64_t>(width, 1) * sizeof(float);
  return static_cast<uint32_t>(std::clamp<uint64_t>(kVectorChunkBytes / point_bytes, 1, 512));
}

}  // namespace switchyard::store
