#include "server/search/snapshot.h"

#include "common/base/strings.h"

namespace switchyard::search {

void SnapshotWriter::Uint(uint64_t value) {
  while (value >= 0x80) {
    bytes_.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  bytes_.push_back(static_cast<char>(value));
}

void SnapshotWriter::Double(double value) {
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  for (int shift = 0; shift < 64; shift += 8) bytes_.push_back(static_cast<char>(bits >> shift));
}

void SnapshotWriter::Text(std::string_view value) {
  Uint(value.size());
  bytes_.append(value);
}

void SnapshotWriter::Put(const Point& point) {
  Uint(point.size());
  for (const std::optional<double>& value : point) {
    Bool(value.has_value());
    if (value.has_value()) Double(*value);
  }
}

uint64_t SnapshotReader::Uint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest_.empty()) break;
    const auto byte = static_cast<uint8_t>(rest_.front());
    rest_.remove_prefix(1);
    value |= uint64_t{byte & 0x7fU} << shift;
    if (byte < 0x80) return value;
  }
  ok_ = false;
  rest_ = {};
  return 0;
}

double SnapshotReader::Double() {
  if (rest_.size() < 8) {
    ok_ = false;
    rest_ = {};
    return 0;
  }
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
  rest_.remove_prefix(8);
  return std::bit_cast<double>(bits);
}

size_t SnapshotReader::Size() {
  const uint64_t size = Uint();
  if (size <= rest_.size()) return size;
  ok_ = false;
  rest_ = {};
  return 0;
}

std::string SnapshotReader::Text() {
  const size_t size = Size();
  std::string text(rest_.substr(0, size));
  rest_.remove_prefix(size);
  return text;
}

Point SnapshotReader::TakePoint() {
  Point point(Size());
  for (std::optional<double>& value : point) {
    if (Bool()) value = Double();
  }
  return point;
}

Status SnapshotReader::Finish() const {
  if (!ok_) return DataLoss("the strategy's stored state is cut short");
  if (!rest_.empty()) {
    return DataLoss(StrCat("the strategy's stored state has ", rest_.size(), " bytes too many"));
  }
  return OkStatus();
}

}  // namespace switchyard::search
