#include "common/events/batch.h"

#include <zstd.h>

#include <bit>
#include <cstring>
#include <unordered_map>

#include "common/base/check.h"
#include "common/base/crc32c.h"
#include "common/base/strings.h"
#include "switchyard/v1/event.pb.h"

namespace switchyard::events {
namespace pb = ::switchyard::v1;
namespace {

constexpr uint64_t kUnpackedBytesMax = 16 << 20;
constexpr uint64_t kBatchLinesMax = 1 << 20;
constexpr size_t kNameBytesMax = 256;
constexpr int kZstdLevel = 1;
// Below this a frame's overhead eats the gain.
constexpr size_t kCompressFrom = 256;

static_assert(std::endian::native == std::endian::little, "values travel as little-endian bits");

}  // namespace

struct BatchBuilder::State {
  struct Open {
    pb::Column* column = nullptr;
    uint64_t seq = 0;
    int64_t step = 0;
    int64_t ms = 0;
  };

  pb::EventBatch batch;
  std::unordered_map<std::string, Open> open;  // by name, kind and shape
  uint64_t first_seq = 0;
  uint64_t lines = 0;
  std::string key;

  void Cover(uint64_t seq, uint64_t covers) {
    if (lines == 0) first_seq = seq;
    SWITCHYARD_CHECK(seq == first_seq + lines)
        << "line " << seq << " added behind " << first_seq + lines;
    lines += covers;
  }

  pb::Column* Point(const std::string& name, const std::vector<uint32_t>* shape,
                    const ParsedLine& line) {
    key.assign(shape == nullptr ? "s" : "v").append(name);
    if (shape != nullptr) {
      for (const uint32_t extent : *shape) {
        key.push_back('\0');
        key.append(std::to_string(extent));
      }
    }
    Open& entry = open[key];
    const auto step = static_cast<int64_t>(line.step);
    const auto ms = static_cast<int64_t>(line.ms);
    if (entry.column == nullptr) {
      entry.column = batch.add_columns();
      entry.column->set_name(name);
      entry.column->set_kind(shape == nullptr ? pb::COLUMN_KIND_SCALAR : pb::COLUMN_KIND_VECTOR);
      if (shape != nullptr) entry.column->mutable_shape()->Assign(shape->begin(), shape->end());
    }
    entry.column->add_seq_deltas(line.seq - entry.seq);
    entry.column->add_step_deltas(step - entry.step);
    entry.column->add_ms_deltas(ms - entry.ms);
    entry.seq = line.seq;
    entry.step = step;
    entry.ms = ms;
    return entry.column;
  }
};

BatchBuilder::BatchBuilder() : state_(std::make_unique<State>()) {}
BatchBuilder::~BatchBuilder() = default;

void BatchBuilder::Add(const ParsedLine& line) {
  State& state = *state_;
  state.Cover(line.seq, 1);
  if (line.type != "m" || (line.scalars.empty() && line.vectors.empty())) {
    pb::OtherLine* other = state.batch.add_lines();
    other->set_seq(line.seq);
    other->set_type(line.type);
    other->set_json(line.json);
    other->set_covers(1);
    return;
  }
  for (const Scalar& scalar : line.scalars) {
    pb::Column* column = state.Point(scalar.first, nullptr, line);
    column->mutable_values()->append(reinterpret_cast<const char*>(&scalar.second), 8);
  }
  for (const VectorPoint& vector : line.vectors) {
    pb::Column* column = state.Point(vector.name, &vector.shape, line);
    column->mutable_values()->append(reinterpret_cast<const char*>(vector.values.data()),
                                     vector.values.size() * 4);
  }
}

void BatchBuilder::AddGap(uint64_t first_seq, uint64_t covers, std::string_view reason) {
  state_->Cover(first_seq, covers);
  pb::OtherLine* other = state_->batch.add_lines();
  other->set_seq(first_seq);
  other->set_type("gap");
  other->set_covers(covers);
  other->set_json(StrCat("{\"v\":1,\"seq\":", first_seq, ",\"t\":\"gap\",\"from\":", first_seq,
                         ",\"to\":", first_seq + covers - 1, ",\"reason\":\"", reason, "\"}"));
}

uint64_t BatchBuilder::first_seq() const { return state_->first_seq; }
uint64_t BatchBuilder::line_count() const { return state_->lines; }

BatchBuilder::Blob BatchBuilder::Finish() {
  Blob blob{.first_seq = state_->first_seq, .n = state_->lines};
  state_->batch.SerializeToString(&blob.bytes);
  if (blob.bytes.size() >= kCompressFrom) {
    std::string packed(ZSTD_compressBound(blob.bytes.size()), '\0');
    const size_t size = ZSTD_compress(packed.data(), packed.size(), blob.bytes.data(),
                                      blob.bytes.size(), kZstdLevel);
    if (ZSTD_isError(size) == 0 && size < blob.bytes.size()) {
      packed.resize(size);
      blob.bytes = std::move(packed);
      blob.is_zstd = true;
    }
  }
  blob.crc32c = Crc32c(blob.bytes);
  state_->batch.Clear();
  state_->open.clear();
  state_->first_seq = 0;
  state_->lines = 0;
  return blob;
}

namespace {

Result<std::string> Unpack(std::string_view blob) {
  const unsigned long long size = ZSTD_getFrameContentSize(blob.data(), blob.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
    return InvalidArgument("batch is not one zstd frame with its size");
  }
  if (size > kUnpackedBytesMax) {
    return InvalidArgument(StrCat("batch unpacks to ", static_cast<uint64_t>(size),
                                  " bytes, at most ", kUnpackedBytesMax));
  }
  std::string out(static_cast<size_t>(size), '\0');
  const size_t got = ZSTD_decompress(out.data(), out.size(), blob.data(), blob.size());
  if (ZSTD_isError(got) != 0 || got != out.size()) {
    return InvalidArgument("batch does not unpack with zstd");
  }
  return out;
}

// Running sums that must stay within [0, 2^62).
bool Accumulate(const google::protobuf::RepeatedField<int64_t>& deltas,
                std::vector<uint64_t>* out) {
  int64_t sum = 0;
  out->reserve(static_cast<size_t>(deltas.size()));
  for (const int64_t delta : deltas) {
    if (__builtin_add_overflow(sum, delta, &sum) || sum < 0 || sum >= int64_t{1} << 62)
      return false;
    out->push_back(static_cast<uint64_t>(sum));
  }
  return true;
}

}  // namespace

Result<DecodedBatch> DecodeBatch(std::string_view blob, bool is_zstd, uint32_t crc32c,
                                 uint64_t first_seq, uint64_t n) {
  if (Crc32c(blob) != crc32c) return InvalidArgument("checksum of the batch does not match");
  if (first_seq == 0 || n == 0 || n > kBatchLinesMax || first_seq > UINT64_MAX - n) {
    return InvalidArgument(StrCat("batch covers ", n, " lines from ", first_seq, ", expected 1 to ",
                                  kBatchLinesMax, " from 1 or later"));
  }
  if (blob.size() > kUnpackedBytesMax) return InvalidArgument("batch has more than 16 MiB");
  std::string unpacked;
  if (is_zstd) {
    SWITCHYARD_ASSIGN_OR_RETURN(unpacked, Unpack(blob));
    blob = unpacked;
  }
  pb::EventBatch message;
  if (!message.ParseFromArray(blob.data(), static_cast<int>(blob.size()))) {
    return InvalidArgument("batch is not an EventBatch");
  }

  DecodedBatch out;
  enum : uint8_t { kFree = 0, kMetric = 1, kOther = 2 };
  std::vector<uint8_t> covered(n, kFree);
  out.columns.reserve(static_cast<size_t>(message.columns_size()));
  for (pb::Column& column : *message.mutable_columns()) {
    const std::string shown = EscapeForTerminal(column.name().substr(0, 64));
    if (column.name().empty() || column.name().size() > kNameBytesMax ||
        EscapeForTerminal(column.name()) != column.name()) {
      return InvalidArgument(StrCat("column name '", shown, "' is not 1 to 256 printable bytes"));
    }
    DecodedColumn decoded;
    uint64_t value_bytes = 8;
    if (column.kind() == pb::COLUMN_KIND_VECTOR) {
      decoded.is_vector = true;
      value_bytes = 4;
      for (const uint32_t extent : column.shape()) {
        if (extent == 0 || value_bytes > kUnpackedBytesMax / extent) {
          return InvalidArgument(StrCat("column ", shown, " has an impossible shape"));
        }
        value_bytes *= extent;
      }
      decoded.shape.assign(column.shape().begin(), column.shape().end());
    } else if (column.kind() != pb::COLUMN_KIND_SCALAR || column.shape_size() != 0) {
      return InvalidArgument(StrCat("column ", shown, " is neither a scalar nor a vector"));
    }
    const auto points = static_cast<uint64_t>(column.seq_deltas_size());
    if (points == 0 || points != static_cast<uint64_t>(column.step_deltas_size()) ||
        points != static_cast<uint64_t>(column.ms_deltas_size()) ||
        column.values().size() != points * value_bytes) {
      return InvalidArgument(StrCat("column ", shown, " has parts of different lengths"));
    }
    if (!Accumulate(column.step_deltas(), &decoded.steps) ||
        !Accumulate(column.ms_deltas(), &decoded.ms)) {
      return InvalidArgument(StrCat("column ", shown, " has a step or time out of range"));
    }
    uint64_t seq = 0;
    decoded.seqs.reserve(points);
    for (const uint64_t delta : column.seq_deltas()) {
      if (delta == 0 || __builtin_add_overflow(seq, delta, &seq) || seq < first_seq ||
          seq - first_seq >= n) {
        return InvalidArgument(StrCat("column ", shown, " has a line outside of the batch"));
      }
      covered[seq - first_seq] = kMetric;
      decoded.seqs.push_back(seq);
    }
    decoded.name = std::move(*column.mutable_name());
    decoded.values = std::move(*column.mutable_values());
    out.columns.push_back(std::move(decoded));
  }
  out.lines.reserve(static_cast<size_t>(message.lines_size()));
  for (pb::OtherLine& line : *message.mutable_lines()) {
    if (line.seq() < first_seq || line.seq() - first_seq >= n || line.covers() == 0 ||
        line.covers() > n - (line.seq() - first_seq) ||
        (line.covers() > 1 && line.type() != "gap")) {
      return InvalidArgument(StrCat("line ", line.seq(), " does not lie in the batch"));
    }
    for (uint64_t i = 0; i < line.covers(); ++i) {
      uint8_t& mark = covered[line.seq() - first_seq + i];
      if (mark != kFree) return InvalidArgument(StrCat("line ", line.seq() + i, " comes twice"));
      mark = kOther;
    }
    out.lines.push_back({.seq = line.seq(),
                         .covers = line.covers(),
                         .type = std::move(*line.mutable_type()),
                         .json = std::move(*line.mutable_json())});
  }
  for (uint64_t i = 0; i < n; ++i) {
    if (covered[i] == kFree) return InvalidArgument(StrCat("line ", first_seq + i, " is missing"));
  }
  return out;
}

}  // namespace switchyard::events
