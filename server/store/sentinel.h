#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/base/file.h"
#include "common/base/ids.h"
#include "common/base/status.h"

namespace switchyard::store {

// A second witness of what was committed, beside the database: SQLite takes a flipped bit in its
// log for the end of the log and silently forgets every commit behind it. Two alternating slots
// with checksums, so that a torn write leaves the one before. Writer's thread only.
class TailSentinel {
 public:
  struct Mark {
    Uuid cluster;
    uint32_t generation = 0;
    uint32_t boot = 0;
    uint64_t tail_seq = 0;  // commits since the database was made
    bool operator==(const Mark&) const = default;
  };

  // Creates the file when it is missing. A file without a readable slot counts as missing.
  static Result<std::unique_ptr<TailSentinel>> Open(const std::string& path);

  // The newest readable mark as of Open.
  const std::optional<Mark>& found() const { return found_; }
  // Survives a kill of the process from now on, and a power cut from the next Sync.
  Status Write(const Mark& mark);
  Status Sync();

 private:
  TailSentinel(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
  std::optional<Mark> found_;
  int next_slot_ = 0;
};

}  // namespace switchyard::store
