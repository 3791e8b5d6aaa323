#include "server/api/batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/strings.h"
#include "common/events/batch.h"
#include "server/results/lineage.h"
#include "server/results/summaries.h"
#include "server/store/chunks.h"

namespace switchyard::api {
namespace {

using nlohmann::json;
using scheduler::LineFact;

constexpr size_t kSeriesNameMax = 256;
constexpr size_t kReasons = 5;
constexpr std::string_view kReasonNames[kReasons] = {"spool_full", "disk_full", "corrupt", "quota",
                                                     "shed"};

uint64_t UintOf(const json& object, const char* key) {
  const auto member = object.find(key);
  if (member == object.end()) return 0;
  if (member->is_number_unsigned()) return member->get<uint64_t>();
  if (member->is_string()) {
    return ParseUint64(member->get_ref<const std::string&>()).value_or(0);
  }
  return 0;
}
std::string StringOf(const json& object, const char* key) {
  const auto member = object.find(key);
  return member != object.end() && member->is_string() ? member->get<std::string>() : std::string();
}

// Values of a point.
size_t WidthOf(const events::DecodedColumn& column) {
  return column.is_vector ? std::accumulate(column.shape.begin(), column.shape.end(), size_t{1},
                                            [](size_t a, uint32_t b) { return a * b; })
                          : 1;
}

size_t BytesOf(const events::DecodedColumn& column, size_t width) {
  return column.is_vector ? width * sizeof(float) : sizeof(double);
}

Status AddColumn(const events::DecodedColumn& column, Epoch epoch, uint32_t rank, size_t from,
                 PreparedBatch* out) {
  const size_t n = column.seqs.size();
  const size_t width = WidthOf(column);
  const size_t point_bytes = BytesOf(column, width);
  if (column.values.size() != n * point_bytes) {
    return InvalidArgument(StrCat("column ", EscapeForTerminal(column.name), " has ",
                                  column.values.size(), " bytes for ", n, " points"));
  }
  store::ChunkColumns chunk;
  chunk.seqs.assign(column.seqs.begin() + static_cast<ptrdiff_t>(from), column.seqs.end());
  chunk.steps.assign(column.steps.begin() + static_cast<ptrdiff_t>(from), column.steps.end());
  chunk.ms.assign(column.ms.begin() + static_cast<ptrdiff_t>(from), column.ms.end());
  chunk.is_vector = column.is_vector;
  chunk.width = static_cast<uint32_t>(width);
  chunk.values = column.values.substr(from * point_bytes);

  scheduler::ChunkRow row;
  row.epoch = epoch;
  row.rank = rank;
  row.series = column.name;
  row.is_vector = column.is_vector;
  row.shape = column.shape;
  row.first_seq = chunk.seqs.front();
  row.last_seq = chunk.seqs.back();
  const auto [low, high] = std::ranges::minmax(chunk.steps);
  row.first_step = low;
  row.last_step = high;
  row.n = static_cast<uint32_t>(n - from);
  store::EncodeChunk(chunk, &row.blob);

  SeriesDelta delta;
  delta.series = column.name;
  delta.is_vector = column.is_vector;
  delta.shape = column.shape;
  results::AddPoints(chunk.steps, chunk.values, chunk.width, results::kStepMax, &delta);
  if (column.is_vector) {
    const auto newest = std::ranges::find(chunk.steps.rbegin(), chunk.steps.rend(), high);
    const auto at = static_cast<size_t>(chunk.steps.rend() - newest) - 1;
    delta.last_vector = chunk.values.substr(at * point_bytes, point_bytes);
  }
  out->points += n - from;
  out->chunks.push_back(std::move(row));
  out->deltas.push_back(std::move(delta));
  return OkStatus();
}

Status AddLine(const events::DecodedLine& line, Epoch epoch, uint32_t rank, PreparedBatch* out) {
  const json object = json::parse(line.json, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    return InvalidArgument(StrCat("line ", line.seq, " is not a JSON object"));
  }
  LineFact fact;
  fact.seq = line.seq;
  if (line.type == "hello") {
    fact.kind = LineFact::Kind::kHello;
    out->facts.push_back(fact);
  } else if (line.type == "resume") {
    fact.kind = LineFact::Kind::kResume;
    fact.from = {UintOf(object, "from")};
    fact.step = UintOf(object, "step");
    out->facts.push_back(fact);
  } else if (line.type == "ckpt") {
    fact.kind = LineFact::Kind::kCheckpoint;
    fact.step = UintOf(object, "step");
    fact.digest = StringOf(object, "digest");
    fact.bytes = UintOf(object, "bytes");
    fact.path = StringOf(object, "path");
    out->facts.push_back(fact);
    const auto seconds = object.find("seconds");
    // Less than nothing would take away from the sum of the others.
    if (seconds != object.end() && seconds->is_number() && seconds->get<double>() >= 0) {
      out->checkpoint_seconds.push_back(seconds->get<double>());
    }
  } else if (line.type == "gap" || line.type == "drop") {
    std::string reason = StringOf(object, line.type == "gap" ? "reason" : "class");
    const auto known = std::ranges::find(kReasonNames, reason);
    const size_t index =
        known != std::end(kReasonNames) ? static_cast<size_t>(known - kReasonNames) : 2;
    out->lost[index] +=
        line.type == "gap" ? line.covers : std::max<uint64_t>(1, UintOf(object, "n"));
  }
  out->lines.push_back({.epoch = epoch,
                        .rank = rank,
                        .seq = line.seq,
                        .covers = line.covers,
                        .kind = line.type,
                        .json = line.json});
  return OkStatus();
}

}  // namespace

Result<std::shared_ptr<const PreparedBatch>> PrepareBatch(
    std::shared_ptr<const events::DecodedBatch> decoded, Epoch epoch, uint32_t rank,
    uint64_t skip_through) {
  auto out = std::make_shared<PreparedBatch>();
  for (const events::DecodedColumn& column : decoded->columns) {
    if (column.name.empty() || column.name.size() > kSeriesNameMax || !IsValidUtf8(column.name)) {
      return InvalidArgument("a series name must be 1 to 256 bytes of UTF-8");
    }
    const size_t from = static_cast<size_t>(std::ranges::upper_bound(column.seqs, skip_through) -
                                            column.seqs.begin());
    if (from == column.seqs.size()) continue;
    SWITCHYARD_RETURN_IF_ERROR(AddColumn(column, epoch, rank, from, out.get()));
  }
  for (const events::DecodedLine& line : decoded->lines) {
    if (line.seq + line.covers - 1 <= skip_through) continue;
    SWITCHYARD_RETURN_IF_ERROR(AddLine(line, epoch, rank, out.get()));
  }
  out->decoded = std::move(decoded);
  return std::shared_ptr<const PreparedBatch>(std::move(out));
}

std::optional<double> ValueBefore(const PreparedBatch& batch, std::string_view series,
                                  uint64_t seq) {
  const auto& columns = batch.decoded->columns;
  const auto column = std::ranges::find(columns, series, &events::DecodedColumn::name);
  if (column == columns.end()) return std::nullopt;
  const auto end = std::ranges::lower_bound(column->seqs, seq);
  if (end == column->seqs.begin()) return std::nullopt;
  const size_t bytes = BytesOf(*column, WidthOf(*column));
  const auto point = static_cast<size_t>(end - column->seqs.begin()) - 1;
  return results::ValueOf(std::string_view(column->values).substr(point * bytes, bytes),
                          column->is_vector)
      .value;
}

void Fold(const SeriesDelta& delta, scheduler::SummaryRow* summary) {
  summary->is_vector = delta.is_vector;
  summary->shape = delta.shape;
  results::Join(delta, summary);
}

}  // namespace switchyard::api
