#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

namespace switchyard {

// A file descriptor that closes itself.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool is_valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Reset();

 private:
  int fd_ = -1;
};

// Errors name the path and the system's reason. kNotFound: no such file; kResourceExhausted: disk
// full, or a file over `max_bytes`; kPermissionDenied; kInternal: anything else.
Status ErrnoStatus(std::string_view what, std::string_view path, int error_number);

Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 32);
// All of `data`, through short writes and interruptions.
Status WriteAll(int fd, std::string_view data, std::string_view path);
// Temporary name in the same folder, write, sync, rename, sync the folder: `path` holds the old or
// the new content whole, whatever dies.
Status WriteFileAtomically(const std::string& path, std::string_view data, unsigned mode = 0644);
Status SyncDirectory(const std::string& path);
Status MakeDirectories(const std::string& path, unsigned mode = 0755);
// Takes the exclusive flock of `path`, creating the file. kFailedPrecondition: somebody holds it.
Result<UniqueFd> LockFile(const std::string& path);
bool FileExists(const std::string& path);
// Names in `path`, sorted by byte order, without . and ..
Result<std::vector<std::string>> ListDirectory(const std::string& path);
// Removes a folder and all in it; links are removed, not followed.
Status RemoveTree(const std::string& path);

struct DiskSpace {
  uint64_t free_bytes = 0;
  uint64_t size_bytes = 0;
};
Result<DiskSpace> GetDiskSpace(const std::string& path);

}  // namespace switchyard
