#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/events/line.h"

// Event lines on the wire: an EventBatch (proto/switchyard/v1/event.proto), plain or zstd.
namespace switchyard::events {

// Collects lines in order of seq into one batch. One thread at a time.
class BatchBuilder {
 public:
  BatchBuilder();
  ~BatchBuilder();
  // Lines must come gap-free: the first sets first_seq.
  void Add(const ParsedLine& line);
  // Lines first..first+covers-1 could not be read (or were shed): a gap record in their place.
  void AddGap(uint64_t first_seq, uint64_t covers, std::string_view reason);
  uint64_t first_seq() const;
  uint64_t line_count() const;
  bool empty() const { return line_count() == 0; }
  // Serialised EventBatch, zstd-compressed when that is smaller; resets the builder.
  struct Blob {
    uint64_t first_seq = 0;
    uint64_t n = 0;
    bool is_zstd = false;
    uint32_t crc32c = 0;
    std::string bytes;
  };
  Blob Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Decoded batch, checked: columns and lines cover first_seq..first_seq+n-1 exactly once.
struct DecodedColumn {
  std::string name;
  bool is_vector = false;
  std::vector<uint32_t> shape;
  std::vector<uint64_t> seqs;
  std::vector<uint64_t> steps;
  std::vector<uint64_t> ms;
  std::string values;  // little-endian float64, vectors float32
};
struct DecodedLine {
  uint64_t seq = 0;
  uint64_t covers = 1;
  std::string type;
  std::string json;
};
struct DecodedBatch {
  std::vector<DecodedColumn> columns;
  std::vector<DecodedLine> lines;
};
// kInvalidArgument with the reason when the checksum, the codec or the structure is bad. Bounded:
// refuses blobs that unpack to over 16 MiB.
Result<DecodedBatch> DecodeBatch(std::string_view blob, bool is_zstd, uint32_t crc32c,
                                 uint64_t first_seq, uint64_t n);

}  // namespace switchyard::events
