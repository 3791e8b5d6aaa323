#pragma once

#include <cstdint>

#include "common/base/ids.h"
#include "common/base/status.h"
#include "server/store/row_writer.h"
#include "server/store/sqlite.h"

// Bringing small pieces together, inside the caller's transaction. Readers see the same points and
// bytes before and after.
namespace switchyard::store {

enum class MergeEnd {
  kMoreComes,  // a last piece below the full size is left for the next time
  kFinal,      // the series or output has ended: merged to the last piece
};

// Chunks behind the last full one, to about 512 points or 64 KiB of vectors each.
Status MergeSeries(Connection& writer, int64_t series, MergeEnd end);

// Output behind the last full piece, to zstd pieces of 64 KiB.
Status MergeLog(Connection& writer, const RowWriter::LogKey& key, MergeEnd end);

// Everything of a sealed stream, which is then marked as merged.
Status MergeStream(Connection& writer, Epoch epoch, uint32_t rank);

}  // namespace switchyard::store
