#include "server/app/series_kinds.h"

#include "common/base/strings.h"

namespace switchyard::app {
namespace {

constexpr size_t kSeriesMax = 10'000;  // per stream

}  // namespace

Status SeriesKinds::Check(std::span<const scheduler::ChunkRow> chunks) const {
  // Of this batch: several columns may name one series.
  std::unordered_map<std::string_view, const scheduler::ChunkRow*> own;
  for (const scheduler::ChunkRow& chunk : chunks) {
    if (!own.try_emplace(chunk.series, &chunk).second) {
      return InvalidArgument(
          StrCat("series ", EscapeForTerminal(chunk.series), " has two columns in a batch"));
    }
    const auto stream = streams_.find({chunk.epoch, chunk.rank});
    if (stream == streams_.end()) continue;
    const auto known = stream->second.find(chunk.series);
    if (known == stream->second.end()) continue;
    if (known->second != Kind{.is_vector = chunk.is_vector, .shape = chunk.shape}) {
      return InvalidArgument(StrCat("series ", EscapeForTerminal(chunk.series),
                                    " changes its kind or shape within an attempt"));
    }
  }
  return OkStatus();
}

void SeriesKinds::Remember(std::span<const scheduler::ChunkRow> chunks) {
  for (const scheduler::ChunkRow& chunk : chunks) {
    Series& series = streams_[{chunk.epoch, chunk.rank}];
    if (series.size() >= kSeriesMax) continue;
    series.try_emplace(chunk.series, Kind{.is_vector = chunk.is_vector, .shape = chunk.shape});
  }
}

void SeriesKinds::Forget(Epoch epoch, uint32_t rank) { streams_.erase({epoch, rank}); }

}  // namespace switchyard::app
