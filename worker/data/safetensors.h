#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

// Reader and writer of safetensors files, without torch. Layout: 8 bytes little-endian length of
// the header, a JSON header (name -> dtype, shape, data_offsets; optional `__metadata__` of
// strings), then the tensors' bytes, row-major and little-endian. Offsets need no alignment: copy
// elements out, never cast the pointer.
namespace switchyard::data {

enum class DType {
  kBool,
  kU8,
  kI8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
  kF8E4M3,
  kF8E5M2,
};

// As in the file: "BF16", "F8_E4M3".
std::string_view DTypeName(DType dtype);
uint64_t DTypeBytes(DType dtype);

struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: a scalar; a dimension may be 0
  std::string_view data;       // borrowed
};

struct SafetensorsContent {
  std::vector<TensorView> tensors;  // by rising offset, views into the parsed bytes
  std::map<std::string, std::string> metadata;
};

// Strict: header of at most 16 MiB that starts with `{`; valid UTF-8; known dtypes; shapes whose
// size neither overflows nor differs from the offsets; tensors that cover the data from its first
// to its last byte without hole or overlap; no name twice; at most 100,000 tensors. kDataLoss with
// `label`, tensor, value and what would be right.
Result<SafetensorsContent> ParseSafetensors(std::string_view bytes, std::string_view label);

// A mapped file. Immutable; the views live as long as it does.
class SafetensorsFile {
 public:
  // Regular files only. kNotFound, kPermissionDenied, kInvalidArgument (a folder, a device),
  // kResourceExhausted (over `max_bytes`), and as ParseSafetensors.
  static Result<std::unique_ptr<SafetensorsFile>> Open(const std::string& path,
                                                       uint64_t max_bytes = uint64_t{1} << 42);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  const std::vector<TensorView>& tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }
  // Null when there is none of that name.
  const TensorView* Find(std::string_view name) const;

 private:
  SafetensorsFile() = default;

  std::string path_;
  void* mapping_ = nullptr;
  uint64_t size_ = 0;
  SafetensorsContent content_;
  std::map<std::string_view, size_t> by_name_;
};

enum class WriteMode {
  // Temporary name, sync, rename, sync the folder: `path` holds the old or the new file whole.
  kAtomic,
  // Written in place and synced; for a folder that the caller renames as a whole.
  kInPlace,
};

// Tensors are laid out in the order of their names; the same arguments give the same bytes.
// kInvalidArgument: a name twice, ill-formed or reserved, or data unlike dtype and shape; errors of
// the file system as ErrnoStatus.
Status WriteSafetensors(const std::string& path, const std::vector<TensorView>& tensors,
                        const std::map<std::string, std::string>& metadata,
                        WriteMode mode = WriteMode::kAtomic);

}  // namespace switchyard::data
