#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// The codec of chunk blobs: seq, step and millisecond columns and the raw value bits. Regular
// columns (constant stride) cost a few bytes. Pure, thread-safe.
namespace switchyard::store {

// `values`: little-endian float64, or float32 times the product of the shape for vectors, in order
// of the points. The columns have equal length, at least 1; seqs rise strictly, steps do not fall.
std::string EncodeChunk(std::span<const uint64_t> seqs, std::span<const uint64_t> steps,
                        std::span<const uint64_t> ms, std::string_view values);

struct DecodedChunk {
  std::vector<uint64_t> seqs;
  std::vector<uint64_t> steps;
  std::vector<uint64_t> ms;
  std::string values;
};
// kDataLoss when the blob is not one of EncodeChunk's.
Result<DecodedChunk> DecodeChunk(std::string_view blob);

}  // namespace switchyard::store
