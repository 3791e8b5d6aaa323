#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/file.h"

namespace switchyard::agent {

// Reads raw output of a trainer by offset. Of a long stream the first 1 MiB and the last 32 MiB are
// kept: what lies between is punched out of the file and jumped over. Loop thread only.
class LogTail {
 public:
  static constexpr uint64_t kHeadBytes = 1 << 20;
  static constexpr uint64_t kTailBytes = 32 << 20;
  static constexpr uint64_t kChunkBytes = 64 << 10;

  explicit LogTail(std::string path) : path_(std::move(path)) {}

  struct Chunk {
    uint64_t offset = 0;
    std::string data;
  };
  // The next bytes that are not acknowledged; none when there are none.
  std::optional<Chunk> Next();
  // Frees the middle of a file that has outgrown head and tail, whether or not anybody takes what
  // it holds: a coordinator that is away must not fill the disk. Next does so as well.
  void Trim() { Punch(FileSize()); }
  // Bytes below `offset` are stored.
  void Acknowledge(uint64_t offset) { offset_ = offset; }
  // The trainer is gone: what something that it left behind still writes is not its output.
  void Finish() { end_ = FileSize(); }
  // Nothing is left, as far as the file goes now.
  bool is_done() { return unsent_bytes() == 0; }
  uint64_t unsent_bytes();

 private:
  bool Open();
  uint64_t FileSize();
  void Punch(uint64_t size);

  std::string path_;
  UniqueFd fd_;
  bool unusable_ = false;
  uint64_t offset_ = 0;
  uint64_t end_ = UINT64_MAX;
  uint64_t punched_to_ = kHeadBytes;
};

}  // namespace switchyard::agent
