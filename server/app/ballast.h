#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace switchyard::app {

// A file that keeps room on the disk of the database: freed when the disk is full, since SQLite
// cannot even delete then, and made again before writing goes on.
class Ballast {
 public:
  // `bytes` 0: none is kept.
  Ballast(std::string path, uint64_t bytes) : path_(std::move(path)), bytes_(bytes) {}

  // 256 MiB, at most a sixteenth of the file system.
  static uint64_t BytesFor(uint64_t disk_bytes);

  uint64_t bytes() const { return bytes_; }
  bool is_whole() const { return bytes_ == 0 || is_whole_; }
  // Makes the file whole. kResourceExhausted: no room for it.
  Status Fill();
  void Free();

 private:
  const std::string path_;
  const uint64_t bytes_;
  bool is_whole_ = false;
};

}  // namespace switchyard::app
