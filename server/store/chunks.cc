#include "server/store/chunks.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/strings.h"

namespace switchyard::store {
namespace {

static_assert(std::endian::native == std::endian::little, "chunks are little-endian");

constexpr uint8_t kFormat = 1;
constexpr uint8_t kVector = 1;
constexpr uint8_t kSeqRegular = 2;
constexpr uint8_t kStepRegular = 4;
constexpr uint8_t kMsRegular = 8;
constexpr uint8_t kConstant = 16;
constexpr uint8_t kNarrow = 32;
constexpr uint8_t kUnsortedSteps = 64;
constexpr uint8_t kFlagsKnown = 127;

// A chunk unpacks to no more than this: a bound for damaged or hostile blobs.
constexpr uint64_t kPointsMax = uint64_t{1} << 22;
constexpr uint64_t kValueBytesMax = uint64_t{1} << 28;

void PutVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

uint64_t ZigZag(uint64_t difference) {
  const auto value = static_cast<int64_t>(difference);
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

uint64_t UnZigZag(uint64_t value) { return value >> 1 ^ (~(value & 1) + 1); }

// Differences wrap modulo 2^64, so every sequence has an encoding.
bool IsRegular(std::span<const uint64_t> column) {
  if (column.size() < 2) return true;
  const uint64_t stride = column[1] - column[0];
  for (size_t i = 2; i < column.size(); ++i) {
    if (column[i] - column[i - 1] != stride) return false;
  }
  return true;
}

void PutColumn(std::span<const uint64_t> column, bool is_regular, std::string* out) {
  if (column.empty()) return;
  PutVarint(column[0], out);
  const size_t written = is_regular ? std::min<size_t>(column.size(), 2) : column.size();
  for (size_t i = 1; i < written; ++i) PutVarint(ZigZag(column[i] - column[i - 1]), out);
}

bool IsConstant(std::string_view values, size_t point_bytes) {
  return values.size() > point_bytes &&
         std::memcmp(values.data(), values.data() + point_bytes, values.size() - point_bytes) == 0;
}

// Fills `out` with float32 forms; false as soon as one value would not come back bit for bit.
bool Narrow(std::string_view values, std::string* out) {
  const size_t n = values.size() / sizeof(double);
  const size_t start = out->size();
  out->resize(start + n * sizeof(float));
  for (size_t i = 0; i < n; ++i) {
    uint64_t bits;
    std::memcpy(&bits, values.data() + i * sizeof(double), sizeof(double));
    // NaNs stay wide: what a conversion does to their payload is the processor's choice.
    const auto wide = std::bit_cast<double>(bits);
    const auto narrow = static_cast<float>(wide);
    if (std::bit_cast<uint64_t>(static_cast<double>(narrow)) != bits || wide != wide) {
      out->resize(start);
      return false;
    }
    std::memcpy(out->data() + start + i * sizeof(float), &narrow, sizeof(float));
  }
  return true;
}

class Reader {
 public:
  explicit Reader(std::string_view blob) : rest_(blob) {}

  bool Byte(uint8_t* out) {
    if (rest_.empty()) return false;
    *out = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return true;
  }
  bool Varint(uint64_t* out) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      uint8_t byte;
      if (!Byte(&byte)) return false;
      if (shift == 63 && byte > 1) return false;
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        *out = value;
        return true;
      }
    }
    return false;
  }
  bool Column(uint64_t n, bool is_regular, std::vector<uint64_t>* out) {
    uint64_t value = 0;
    uint64_t stride = 0;
    for (uint64_t i = 0; i < n; ++i) {
      if (i == 0) {
        if (!Varint(&value)) return false;
      } else {
        if (i == 1 || !is_regular) {
          uint64_t coded;
          if (!Varint(&coded)) return false;
          stride = UnZigZag(coded);
        }
        value += stride;
      }
      out->push_back(value);
    }
    return true;
  }
  bool Bytes(uint64_t n, std::string_view* out) {
    if (rest_.size() < n) return false;
    *out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return true;
  }
  bool is_empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

Status Damaged(std::string_view what) { return DataLoss(StrCat("damaged chunk: ", what)); }

Status ReadValues(Reader& reader, uint8_t flags, uint64_t n, size_t point_bytes, std::string* out) {
  std::string_view raw;
  if ((flags & kConstant) != 0) {
    if (n == 0 || !reader.Bytes(point_bytes, &raw)) return Damaged("values end early");
    for (uint64_t i = 0; i < n; ++i) out->append(raw);
    return OkStatus();
  }
  if ((flags & kNarrow) == 0) {
    if (!reader.Bytes(n * point_bytes, &raw)) return Damaged("values end early");
    out->append(raw);
    return OkStatus();
  }
  if ((flags & kVector) != 0) return Damaged("narrow vectors");
  if (!reader.Bytes(n * sizeof(float), &raw)) return Damaged("values end early");
  const size_t start = out->size();
  out->resize(start + n * sizeof(double));
  for (uint64_t i = 0; i < n; ++i) {
    float narrow;
    std::memcpy(&narrow, raw.data() + i * sizeof(float), sizeof(float));
    const auto wide = static_cast<double>(narrow);
    std::memcpy(out->data() + start + i * sizeof(double), &wide, sizeof(double));
  }
  return OkStatus();
}

}  // namespace

void EncodeChunk(const ChunkColumns& columns, std::string* out) {
  const size_t n = columns.size();
  const size_t point_bytes = columns.is_vector ? columns.width * sizeof(float) : sizeof(double);
  SWITCHYARD_CHECK(columns.steps.size() == n && columns.ms.size() == n &&
                   columns.values.size() == n * point_bytes &&
                   (columns.is_vector || columns.width == 1))
      << "columns of a chunk differ in length";
  const bool seq_regular = IsRegular(columns.seqs);
  const bool step_regular = IsRegular(columns.steps);
  const bool ms_regular = IsRegular(columns.ms);
  uint8_t flags = 0;
  if (columns.is_vector) flags |= kVector;
  if (seq_regular) flags |= kSeqRegular;
  if (step_regular) flags |= kStepRegular;
  if (ms_regular) flags |= kMsRegular;
  if (!std::ranges::is_sorted(columns.steps)) flags |= kUnsortedSteps;
  const size_t start = out->size();
  out->reserve(start + 24 + columns.values.size() + 3 * n);
  out->push_back(static_cast<char>(kFormat));
  out->push_back(static_cast<char>(flags));
  PutVarint(n, out);
  PutVarint(columns.width, out);
  PutColumn(columns.seqs, seq_regular, out);
  PutColumn(columns.steps, step_regular, out);
  PutColumn(columns.ms, ms_regular, out);
  if (point_bytes > 0 && IsConstant(columns.values, point_bytes)) {
    flags |= kConstant;
    out->append(columns.values, 0, point_bytes);
  } else if (!columns.is_vector && Narrow(columns.values, out)) {
    flags |= kNarrow;
  } else {
    out->append(columns.values);
  }
  (*out)[start + 1] = static_cast<char>(flags);
}

bool HasSortedSteps(std::string_view blob) {
  return blob.size() < 2 || (static_cast<uint8_t>(blob[1]) & kUnsortedSteps) == 0;
}

Status DecodeChunkInto(std::string_view blob, ChunkColumns* columns) {
  Reader reader(blob);
  uint8_t format = 0;
  uint8_t flags = 0;
  uint64_t n = 0;
  uint64_t width = 0;
  if (!reader.Byte(&format) || !reader.Byte(&flags) || !reader.Varint(&n) ||
      !reader.Varint(&width)) {
    return Damaged("header ends early");
  }
  if (format != kFormat || (flags & ~kFlagsKnown) != 0) {
    return Damaged(StrCat("format ", uint64_t{format}, " flags ", uint64_t{flags}));
  }
  const bool is_vector = (flags & kVector) != 0;
  if (!is_vector && width != 1) return Damaged(StrCat("scalar of width ", width));
  if (n > kPointsMax || width > kValueBytesMax / sizeof(float) ||
      (width != 0 && n > kValueBytesMax / (width * sizeof(double)))) {
    return Damaged(StrCat(n, " points of ", width, " values are too many"));
  }
  if (columns->size() > 0 && (columns->is_vector != is_vector || columns->width != width)) {
    return Damaged("kind or shape differs from the series'");
  }
  columns->is_vector = is_vector;
  columns->width = static_cast<uint32_t>(width);
  if (!reader.Column(n, (flags & kSeqRegular) != 0, &columns->seqs) ||
      !reader.Column(n, (flags & kStepRegular) != 0, &columns->steps) ||
      !reader.Column(n, (flags & kMsRegular) != 0, &columns->ms)) {
    return Damaged("columns end early");
  }
  const size_t point_bytes = is_vector ? width * sizeof(float) : sizeof(double);
  SWITCHYARD_RETURN_IF_ERROR(ReadValues(reader, flags, n, point_bytes, &columns->values));
  if (!reader.is_empty()) return Damaged("bytes behind the end");
  return OkStatus();
}

Result<ChunkColumns> DecodeChunk(std::string_view blob) {
  ChunkColumns columns;
  SWITCHYARD_RETURN_IF_ERROR(DecodeChunkInto(blob, &columns));
  return columns;
}

}  // namespace switchyard::store
