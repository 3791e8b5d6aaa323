#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/check.h"
#include "common/base/status.h"

// The codec of chunk blobs: seq, step and millisecond columns and the raw value bits. Regular
// columns (constant stride), constant values and doubles that are floats are stored short; every
// bit comes back. Pure, thread-safe.
namespace switchyard::store {

// Points of one series, column by column, in order of seq.
struct ChunkColumns {
  std::vector<uint64_t> seqs;
  std::vector<uint64_t> steps;
  std::vector<uint64_t> ms;  // milliseconds since the attempt's start
  bool is_vector = false;
  uint32_t width = 1;  // values of a point: product of the shape, 1 for scalars
  // Little-endian: float64 for scalars, float32 for vectors.
  std::string values;

  size_t size() const { return seqs.size(); }
  bool operator==(const ChunkColumns&) const = default;
};

// Appends the blob to `out`. The columns must have equal length (checked). About 4 to 9 bytes a
// scalar.
void EncodeChunk(const ChunkColumns& columns, std::string* out);

// Whether the steps of an encoded chunk never fall; true for what is no chunk.
bool HasSortedSteps(std::string_view blob);

// Appends the points of `blob` to `columns`. kDataLoss: damaged, or of another kind or width than
// the points that are there.
Status DecodeChunkInto(std::string_view blob, ChunkColumns* columns);
Result<ChunkColumns> DecodeChunk(std::string_view blob);

}  // namespace switchyard::store
