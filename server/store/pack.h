#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

// Small lists in one column, and compressed documents.
namespace switchyard::store {

// LEB128 varints, text behind its length. Exact for any bytes.
class Packer {
 public:
  Packer& Put(uint64_t value);
  Packer& Put(std::string_view text);
  std::string Take() && { return std::move(out_); }

 private:
  std::string out_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}
  bool is_done() const { return rest_.empty(); }
  // kDataLoss: the bytes end early.
  Result<uint64_t> Uint();
  Result<std::string> Text();

 private:
  std::string_view rest_;
};

std::string PackUints(std::span<const uint64_t> values);
std::string PackUints(std::span<const uint32_t> values);
std::string PackTexts(std::span<const std::string> texts);
Result<std::vector<uint64_t>> UnpackUints(std::string_view bytes);
Result<std::vector<uint32_t>> UnpackUints32(std::string_view bytes);
Result<std::vector<std::string>> UnpackTexts(std::string_view bytes);

// zstd, against `dictionary` (raw bytes; empty: none).
std::string Compress(std::string_view data, std::string_view dictionary = {});
// kDataLoss: damaged, another dictionary, or more than `max_bytes`.
Result<std::string> Decompress(std::string_view data, std::string_view dictionary = {},
                               uint64_t max_bytes = uint64_t{1} << 28);

}  // namespace switchyard::store
