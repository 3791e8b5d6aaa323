#include "server/store/curve.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "server/results/summaries.h"
#include "server/store/chunks.h"
#include "server/store/page_token.h"

namespace switchyard::store {
namespace {

using results::AttemptStart;
using results::Segment;

// Values of a page of vectors: a reader takes answers of 64 MiB.
constexpr size_t kCurvePageBytes = size_t{16} << 20;

// Behind the last point given.
struct Position {
  Epoch epoch;
  uint64_t step = 0;
  uint64_t seq = 0;
};

struct Window {
  uint64_t from_step = 0;
  uint64_t step_max = results::kStepMax;
  std::optional<Position> after;
};

bool IsInside(const Window& window, uint64_t step, uint64_t seq) {
  if (step < window.from_step || step > window.step_max) return false;
  return !window.after || step > window.after->step ||
         (step == window.after->step && seq > window.after->seq);
}

bool AreInOrder(std::span<const ChunkHead> heads) {
  for (size_t i = 0; i < heads.size(); ++i) {
    if (!heads[i].is_sorted) return false;
    if (i > 0 && heads[i].first_step < heads[i - 1].last_step) return false;
  }
  return true;
}

void AddCurvePoint(const ChunkColumns& columns, size_t i, uint32_t ordinal, CurvePage* page) {
  CurvePoint point{.step = columns.steps[i], .ms = columns.ms[i], .attempt = ordinal};
  if (columns.is_vector) {
    point.values.resize(columns.width);
    const size_t bytes = columns.width * sizeof(float);
    if (bytes > 0) std::memcpy(point.values.data(), columns.values.data() + i * bytes, bytes);
  } else {
    std::memcpy(&point.value, columns.values.data() + i * sizeof(double), sizeof(double));
  }
  page->points.push_back(std::move(point));
}

// Adds points of `columns`, whose steps rise, until the page is full. True when it is.
bool TakeInOrder(const ChunkColumns& columns, const Window& window, const Segment& segment,
                 size_t limit, CurvePage* page, Position* last) {
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!IsInside(window, columns.steps[i], columns.seqs[i])) continue;
    if (page->points.size() == limit) return true;
    AddCurvePoint(columns, i, segment.ordinal, page);
    *last = {.epoch = segment.epoch, .step = columns.steps[i], .seq = columns.seqs[i]};
  }
  return false;
}

// Keeps the first `count` points inside of the window, by step; `columns` are in order of seq.
void SortAndCut(const Window& window, size_t count, ChunkColumns* columns) {
  std::vector<size_t> order;
  for (size_t i = 0; i < columns->size(); ++i) {
    if (IsInside(window, columns->steps[i], columns->seqs[i])) order.push_back(i);
  }
  std::ranges::sort(order, {},
                    [columns](size_t i) { return std::pair(columns->steps[i], columns->seqs[i]); });
  order.resize(std::min(order.size(), count));
  const size_t bytes = columns->size() == 0 ? 0 : columns->values.size() / columns->size();
  ChunkColumns kept{.is_vector = columns->is_vector, .width = columns->width};
  for (const size_t i : order) {
    kept.seqs.push_back(columns->seqs[i]);
    kept.steps.push_back(columns->steps[i]);
    kept.ms.push_back(columns->ms[i]);
    kept.values.append(columns->values, i * bytes, bytes);
  }
  *columns = std::move(kept);
}

// The first `count` points inside of the window of a series whose steps fall somewhere, by step.
// Never more than about twice as many are in memory, and one chunk.
Result<ChunkColumns> ReadSorted(ChunkSource& source, std::span<const ChunkHead> heads,
                                const Window& window, size_t count) {
  ChunkColumns kept;
  for (const ChunkHead& head : heads) {
    if (head.is_sorted &&
        (head.last_step < window.from_step || head.first_step > window.step_max)) {
      continue;
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string blob, source.ReadChunk(head.id));
    SWITCHYARD_RETURN_IF_ERROR(DecodeChunkInto(blob, &kept));
    if (kept.size() > 2 * count) SortAndCut(window, count, &kept);
  }
  SortAndCut(window, count, &kept);
  return kept;
}

// True when the page is full and more is there.
Result<bool> TakeSegment(ChunkSource& source, int64_t series, const Segment& segment,
                         const Window& window, size_t limit, CurvePage* page, Position* last) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<ChunkHead> heads, source.ListChunks(series));
  if (!AreInOrder(heads)) {
    // One more than there is place for says that the page is full.
    SWITCHYARD_ASSIGN_OR_RETURN(const ChunkColumns columns,
                                ReadSorted(source, heads, window, limit + 1));
    return TakeInOrder(columns, window, segment, limit, page, last);
  }
  for (const ChunkHead& head : heads) {
    if (head.last_step < window.from_step) continue;
    if (window.after && head.last_seq <= window.after->seq) continue;
    if (head.first_step > window.step_max) break;
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string blob, source.ReadChunk(head.id));
    SWITCHYARD_ASSIGN_OR_RETURN(const ChunkColumns columns, DecodeChunk(blob));
    if (TakeInOrder(columns, window, segment, limit, page, last)) return true;
  }
  return false;
}

// Points of a page: as asked, and no more than a message carries.
size_t PagePoints(size_t asked, const CurvePage& page) {
  size_t point_bytes = sizeof(float);
  for (const uint32_t extent : page.shape) point_bytes *= extent;
  const size_t most = page.is_vector ? std::max(kCurvePageBytes / point_bytes, size_t{1}) : asked;
  return std::clamp<size_t>(asked, 1, std::max<size_t>(most, 1));
}

Result<std::vector<Segment>> SegmentsOf(std::span<const AttemptStart> attempts,
                                        const CurveQuery& query, Epoch head) {
  if (query.attempt == 0) return results::CanonicalSegments(attempts, head);
  std::optional<Segment> newest;
  for (const AttemptStart& attempt : attempts) {
    if (attempt.ordinal != query.attempt || (newest && newest->epoch > attempt.epoch)) continue;
    newest = Segment{.epoch = attempt.epoch, .ordinal = attempt.ordinal};
  }
  if (!newest) {
    return NotFound(StrCat("run ", query.run.value.ToString(), " has no attempt ", query.attempt));
  }
  return std::vector<Segment>{*newest};
}

}  // namespace

Result<CurvePage> ReadCurve(ChunkSource& source, std::span<const AttemptStart> attempts,
                            const CurveQuery& query) {
  const std::string key = StrCat("curve ", query.run.value.ToString(), " ", query.attempt, " ",
                                 query.from_step, " ", query.series);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<uint64_t> token, ReadPageToken(query.page, key, 4));
  const Epoch head = token.empty() ? results::CanonicalHead(attempts) : Epoch{token[0]};
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<Segment> segments,
                              SegmentsOf(attempts, query, head));
  std::vector<std::optional<SeriesHead>> series;
  CurvePage page;
  bool is_found = false;
  for (const Segment& segment : segments) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::optional<SeriesHead> found,
                                source.FindSeries(segment.epoch, query.series));
    if (found) {
      is_found = true;
      page.is_vector = found->is_vector;
      page.shape = found->shape;
    }
    series.push_back(std::move(found));
  }
  if (!is_found) {
    return NotFound(StrCat("run ", query.run.value.ToString(), " has no series ",
                           EscapeForTerminal(query.series)));
  }
  std::optional<Position> after;
  if (!token.empty()) after = Position{.epoch = {token[1]}, .step = token[2], .seq = token[3]};
  Position last;
  const size_t limit = PagePoints(query.limit, page);
  for (size_t i = 0; i < segments.size(); ++i) {
    // Segments go by rising epoch.
    if (after && segments[i].epoch < after->epoch) continue;
    if (!series[i] || series[i]->is_vector != page.is_vector) continue;
    Window window{.from_step = query.from_step, .step_max = segments[i].step_max};
    if (after && segments[i].epoch == after->epoch) window.after = after;
    SWITCHYARD_ASSIGN_OR_RETURN(const bool is_full, TakeSegment(source, series[i]->id, segments[i],
                                                                window, limit, &page, &last));
    if (is_full) {
      page.next = MakePageToken(
          key, std::vector<uint64_t>{head.value, last.epoch.value, last.step, last.seq});
      break;
    }
  }
  return page;
}

Result<std::vector<SummaryRow>> Summarise(ChunkSource& source, RunId run,
                                          std::span<const Segment> segments) {
  std::map<std::string, SummaryRow> rows;
  // From the newest on: its kind of a series decides. Then in the order of the curve.
  std::vector<std::vector<SeriesHead>> series(segments.size());
  for (size_t i = segments.size(); i-- > 0;) {
    SWITCHYARD_ASSIGN_OR_RETURN(series[i], source.ListSeries(segments[i].epoch));
    for (const SeriesHead& head : series[i]) {
      rows.try_emplace(
          head.name,
          SummaryRow{
              .run = run, .series = head.name, .is_vector = head.is_vector, .shape = head.shape});
    }
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    for (const SeriesHead& head : series[i]) {
      SummaryRow& row = rows.at(head.name);
      if (row.is_vector != head.is_vector) continue;
      SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<ChunkHead> chunks, source.ListChunks(head.id));
      for (const ChunkHead& chunk : chunks) {
        if (chunk.is_sorted && chunk.first_step > segments[i].step_max) continue;
        SWITCHYARD_ASSIGN_OR_RETURN(const std::string blob, source.ReadChunk(chunk.id));
        SWITCHYARD_ASSIGN_OR_RETURN(const ChunkColumns columns, DecodeChunk(blob));
        results::AddPoints(columns.steps, columns.values, columns.width, segments[i].step_max,
                           &row);
      }
    }
  }
  std::vector<SummaryRow> summaries;
  for (auto& [name, row] : rows) {
    if (row.count > 0) summaries.push_back(std::move(row));
  }
  return summaries;
}

}  // namespace switchyard::store
