#include "server/store/merge.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "common/base/failpoint.h"
#include "common/base/log.h"
#include "server/store/chunks.h"
#include "server/store/limits.h"
#include "server/store/pack.h"

namespace switchyard::store {
namespace {

struct Piece {
  int64_t id = 0;
  uint64_t first = 0;  // seq or offset
  uint64_t size = 0;   // points or bytes
};

// Runs of consecutive pieces that together reach `full`; a shorter run at the end only when final.
std::vector<std::span<const Piece>> Group(std::span<const Piece> pieces, uint64_t full,
                                          MergeEnd end) {
  std::vector<std::span<const Piece>> groups;
  size_t start = 0;
  uint64_t size = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    size += pieces[i].size;
    if (size < full && !(end == MergeEnd::kFinal && i + 1 == pieces.size())) continue;
    if (i > start) groups.push_back(pieces.subspan(start, i + 1 - start));
    start = i + 1;
    size = 0;
  }
  return groups;
}

Status DeletePieces(Connection& writer, std::string_view sql, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    SWITCHYARD_RETURN_IF_ERROR(writer.Prepare(sql).Bind(1, piece.id).Run());
  }
  return OkStatus();
}

Status MergeChunks(Connection& writer, int64_t series, std::span<const Piece> pieces) {
  ChunkColumns columns;
  uint64_t last_seq = 0;
  for (const Piece& piece : pieces) {
    Statement read = writer.Prepare("SELECT blob, last_seq FROM chunks WHERE id = ?1");
    read.Bind(1, piece.id);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return Internal("a chunk vanished while it was merged");
    if (const Status damage = DecodeChunkInto(read.Bytes(0), &columns); !damage.ok()) {
      // Left as it is: readers are told, and the idle work must come to its end.
      LogError("series ", series, " is not merged: ", damage.message());
      return OkStatus();
    }
    last_seq = read.Uint(1);
  }
  SWITCHYARD_RETURN_IF_ERROR(DeletePieces(writer, "DELETE FROM chunks WHERE id = ?1", pieces));
  SWITCHYARD_FAILPOINT("merge.pieces_deleted");
  std::string blob;
  EncodeChunk(columns, &blob);
  Statement insert = writer.Prepare(
      "INSERT INTO chunks(series, first_seq, last_seq, first_step, last_step, n, is_sorted, blob) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)");
  insert.Bind(1, series).Bind(2, pieces.front().first).Bind(3, last_seq);
  const auto [first_step, last_step] = std::ranges::minmax(columns.steps);
  insert.Bind(4, first_step).Bind(5, last_step);
  insert.Bind(6, uint64_t{columns.size()}).Bind(7, HasSortedSteps(blob)).BindBlob(8, blob);
  return insert.Run();
}

Status MergePieces(Connection& writer, const RowWriter::LogKey& key,
                   std::span<const Piece> pieces) {
  std::string text;
  for (const Piece& piece : pieces) {
    Statement read = writer.Prepare("SELECT codec, blob FROM logs WHERE id = ?1");
    read.Bind(1, piece.id);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    if (!has_row) return Internal("output vanished while it was merged");
    if (read.Int(0) == kCodecZstd) {
      const Result<std::string> plain = Decompress(read.Bytes(1));
      if (!plain.ok()) {
        LogError("output is not merged: ", plain.status().message());
        return OkStatus();
      }
      text += *plain;
    } else {
      text += read.Bytes(1);
    }
  }
  SWITCHYARD_RETURN_IF_ERROR(DeletePieces(writer, "DELETE FROM logs WHERE id = ?1", pieces));
  SWITCHYARD_FAILPOINT("merge.log_deleted");
  Statement insert = writer.Prepare(
      "INSERT INTO logs(epoch, rank, stream, \"offset\", n, codec, blob) "
      "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)");
  const auto& [epoch, rank, stream] = key;
  const std::string packed = Compress(text);
  insert.Bind(1, epoch).Bind(2, rank).Bind(3, static_cast<int64_t>(stream));
  insert.Bind(4, pieces.front().first).Bind(5, uint64_t{text.size()});
  return insert.Bind(6, kCodecZstd).BindBlob(7, packed).Run();
}

}  // namespace

Status MergeSeries(Connection& writer, int64_t series, MergeEnd end) {
  uint32_t full = 0;
  {
    Statement read = writer.Prepare("SELECT is_vector, shape FROM series WHERE id = ?1");
    read.Bind(1, series);
    SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
    // Asked for by a commit that was rolled back.
    if (!has_row) return OkStatus();
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint32_t> shape, UnpackUints32(read.Bytes(1)));
    uint64_t width = 1;
    for (const uint32_t extent : shape) width *= extent;
    full = MergePoints(read.Int(0) != 0, width);
  }
  std::vector<Piece> tail;
  {
    Statement read = writer.Prepare(
        "SELECT id, first_seq, n FROM chunks WHERE series = ?1 ORDER BY first_seq DESC");
    read.Bind(1, series);
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row || read.Uint(2) >= full) break;
      tail.push_back({.id = read.Int(0), .first = read.Uint(1), .size = read.Uint(2)});
    }
  }
  std::ranges::reverse(tail);
  for (const std::span<const Piece> group : Group(tail, full, end)) {
    SWITCHYARD_RETURN_IF_ERROR(MergeChunks(writer, series, group));
  }
  return OkStatus();
}

Status MergeLog(Connection& writer, const RowWriter::LogKey& key, MergeEnd end) {
  const auto& [epoch, rank, stream] = key;
  std::vector<Piece> tail;
  {
    Statement read = writer.Prepare(
        "SELECT id, \"offset\", n FROM logs WHERE epoch = ?1 AND rank = ?2 AND stream = ?3 "
        "ORDER BY \"offset\" DESC");
    read.Bind(1, epoch).Bind(2, rank).Bind(3, static_cast<int64_t>(stream));
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row || read.Uint(2) >= kLogChunkBytes) break;
      tail.push_back({.id = read.Int(0), .first = read.Uint(1), .size = read.Uint(2)});
    }
  }
  std::ranges::reverse(tail);
  // Pieces with a gap between them stay apart: the gap is told to readers.
  size_t start = 0;
  for (size_t i = 1; i <= tail.size(); ++i) {
    const bool is_last = i == tail.size();
    if (!is_last && tail[i].first == tail[i - 1].first + tail[i - 1].size) continue;
    const std::span<const Piece> run = std::span(tail).subspan(start, i - start);
    const MergeEnd run_end = is_last ? end : MergeEnd::kFinal;
    for (const std::span<const Piece> group : Group(run, kLogChunkBytes, run_end)) {
      SWITCHYARD_RETURN_IF_ERROR(MergePieces(writer, key, group));
    }
    start = i;
  }
  return OkStatus();
}

Status MergeStream(Connection& writer, Epoch epoch, uint32_t rank) {
  std::vector<int64_t> series;
  {
    Statement read = writer.Prepare("SELECT id FROM series WHERE epoch = ?1 AND rank = ?2");
    read.Bind(1, epoch.value).Bind(2, rank);
    while (true) {
      SWITCHYARD_ASSIGN_OR_RETURN(const bool has_row, read.Step());
      if (!has_row) break;
      series.push_back(read.Int(0));
    }
  }
  for (const int64_t id : series) {
    SWITCHYARD_RETURN_IF_ERROR(MergeSeries(writer, id, MergeEnd::kFinal));
  }
  for (const scheduler::LogStream stream :
       {scheduler::LogStream::kStdout, scheduler::LogStream::kStderr}) {
    SWITCHYARD_RETURN_IF_ERROR(
        MergeLog(writer, {epoch.value, rank, static_cast<uint8_t>(stream)}, MergeEnd::kFinal));
  }
  SWITCHYARD_FAILPOINT("merge.stream_rewritten");
  Statement mark =
      writer.Prepare("UPDATE streams SET is_merged = 1 WHERE epoch = ?1 AND rank = ?2");
  return mark.Bind(1, epoch.value).Bind(2, rank).Run();
}

}  // namespace switchyard::store
