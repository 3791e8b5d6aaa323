#include "worker/agent/log_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/log.h"

namespace switchyard::agent {
namespace {

// The hole grows in steps of this, not with each line.
constexpr uint64_t kPunchStep = 1 << 20;

}  // namespace

bool LogTail::Open() {
  if (fd_.is_valid()) return true;
  if (unusable_) return false;
  fd_ = UniqueFd(open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd_.is_valid()) {
    unusable_ = errno != ENOENT;
  } else if (fstat(fd_.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    fd_.Reset();
    unusable_ = true;
  }
  return fd_.is_valid();
}

uint64_t LogTail::FileSize() {
  struct stat info {};
  if (!Open() || fstat(fd_.get(), &info) != 0) return 0;
  return std::min(static_cast<uint64_t>(info.st_size), end_);
}

uint64_t LogTail::unsent_bytes() {
  const uint64_t size = FileSize();
  return size > offset_ ? size - offset_ : 0;
}

void LogTail::Punch(uint64_t size) {
  if (size <= kHeadBytes + kTailBytes) return;
  const uint64_t to = (size - kTailBytes) / kPunchStep * kPunchStep;
  if (to < punched_to_ + kPunchStep) return;
  // Where the file system cannot punch, the file is whole and merely larger.
  fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(punched_to_),
            static_cast<off_t>(to - punched_to_));
  punched_to_ = to;
}

std::optional<LogTail::Chunk> LogTail::Next() {
  const uint64_t size = FileSize();
  if (size <= offset_) return std::nullopt;
  Punch(size);
  uint64_t from = offset_;
  uint64_t to = size;
  if (from < kHeadBytes) {
    to = std::min(to, kHeadBytes);
  } else if (from < punched_to_) {
    from = punched_to_;
  }
  Chunk chunk{.offset = from, .data = std::string(std::min(kChunkBytes, to - from), '\0')};
  const ssize_t got =
      pread(fd_.get(), chunk.data.data(), chunk.data.size(), static_cast<off_t>(from));
  if (got < 0) {
    // The rest is given up, as a gap at its end, rather than the end of the run.
    LogWarning("cannot read ", path_, " from ", from, ": ", std::strerror(errno),
               ": the rest of it is left out");
    fd_.Reset();
    unusable_ = true;
    return Chunk{.offset = size, .data = {}};
  }
  if (got == 0) return std::nullopt;
  chunk.data.resize(static_cast<size_t>(got));
  return chunk;
}

}  // namespace switchyard::agent
