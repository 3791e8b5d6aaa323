#pragma once

#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "server/search/space.h"

namespace switchyard::search {

// State as bytes: integers in base 128, doubles as their bits (NaN and infinity keep theirs).
class SnapshotWriter {
 public:
  void Uint(uint64_t value);
  void Double(double value);
  void Bool(bool value) { Uint(value ? 1 : 0); }
  void Text(std::string_view value);
  void Put(const Point& point);
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads what the writer wrote. After the first value that is not there all others are 0, and
// `status` says so: a reader of many fields asks once, at the end. Lengths are bounded by the bytes
// that are left, so that damaged bytes cannot ask for memory.
class SnapshotReader {
 public:
  explicit SnapshotReader(std::string_view bytes) : rest_(bytes) {}

  uint64_t Uint();
  double Double();
  bool Bool() { return Uint() != 0; }
  std::string Text();
  Point TakePoint();
  // A count of things of at least one byte each.
  size_t Size();
  // kDataLoss: cut short, or more bytes than were read.
  Status Finish() const;
  bool ok() const { return ok_; }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace switchyard::search
