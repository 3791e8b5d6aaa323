#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "server/scheduler/event.h"
#include "server/scheduler/rows.h"

namespace switchyard::events {
struct DecodedBatch;
}

namespace switchyard::api {

// What one batch adds to the summary of a series: that of its own points (without a run).
struct SeriesDelta : scheduler::SummaryRow {
  std::string last_vector;  // vectors: the value of last_step, little-endian float32
};

// A batch of event lines made ready for the writer: chunk rows, other lines and summary deltas.
// Immutable once made.
struct PreparedBatch {
  std::vector<scheduler::ChunkRow> chunks;
  std::vector<scheduler::StreamEventRow> lines;
  std::vector<SeriesDelta> deltas;  // one per chunk, in the same order
  std::vector<scheduler::LineFact> facts;
  // "drop" and gap lines: lines lost, by the reasons of operations 8.2 (spool_full disk_full
  // corrupt quota shed).
  uint64_t lost[5] = {};
  // Seconds that trainers took for checkpoints, where they say so.
  std::vector<double> checkpoint_seconds;
  uint64_t points = 0;
  std::shared_ptr<const events::DecodedBatch> decoded;
};

// Checks and packs what is above seq `skip_through`. kInvalidArgument: lines that say nonsense.
Result<std::shared_ptr<const PreparedBatch>> PrepareBatch(
    std::shared_ptr<const events::DecodedBatch> decoded, Epoch epoch, uint32_t rank,
    uint64_t skip_through);

// The newest value of a series in the batch's lines before `seq`; none: it has none there.
std::optional<double> ValueBefore(const PreparedBatch& batch, std::string_view series,
                                  uint64_t seq);

// Adds a delta to the summary of its series.
void Fold(const SeriesDelta& delta, scheduler::SummaryRow* summary);

}  // namespace switchyard::api
