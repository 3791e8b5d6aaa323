#include "common/base/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/base/strings.h"

namespace switchyard {
namespace fs = std::filesystem;

void UniqueFd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

Status ErrnoStatus(std::string_view what, std::string_view path, int error_number) {
  const std::string message = StrCat(what, " ", path, ": ", std::strerror(error_number));
  switch (error_number) {
    case ENOENT:
      return NotFound(message);
    case EACCES:
    case EPERM:
      return PermissionDenied(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return ResourceExhausted(message);
    default:
      return Internal(message);
  }
}

Result<std::string> ReadFile(const std::string& path, uint64_t max_bytes) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat", path, errno);
  if (S_ISDIR(info.st_mode)) return ErrnoStatus("cannot read", path, EISDIR);
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return ResourceExhausted(
        StrCat(path, " has ", info.st_size, " bytes, at most ", max_bytes, " are read"));
  }
  std::string data;
  data.reserve(static_cast<size_t>(info.st_size) + 1);
  std::vector<char> buffer(1 << 16);
  while (true) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus("cannot read", path, errno);
    if (got == 0) return data;
    if (data.size() + static_cast<size_t>(got) > max_bytes) {
      return ResourceExhausted(StrCat(path, " has more than ", max_bytes, " bytes"));
    }
    data.append(buffer.data(), static_cast<size_t>(got));
  }
}

Status WriteAll(int fd, std::string_view data, std::string_view path) {
  while (!data.empty()) {
    const ssize_t put = write(fd, data.data(), data.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return ErrnoStatus("cannot write", path, errno);
    data.remove_prefix(static_cast<size_t>(put));
  }
  return OkStatus();
}

Status WriteFileAtomically(const std::string& path, std::string_view data, unsigned mode) {
  const std::string temporary = StrCat(path, ".tmp.", static_cast<int64_t>(getpid()));
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
  if (!fd.is_valid()) return ErrnoStatus("cannot create", temporary, errno);
  Status status = WriteAll(fd.get(), data, temporary);
  if (status.ok() && fsync(fd.get()) != 0) status = ErrnoStatus("cannot sync", temporary, errno);
  fd.Reset();
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus("cannot rename to", path, errno);
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  const std::string parent = fs::path(path).parent_path().string();
  return SyncDirectory(parent.empty() ? "." : parent);
}

Status SyncDirectory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", path, errno);
  if (fsync(fd.get()) != 0) return ErrnoStatus("cannot sync", path, errno);
  return OkStatus();
}

Status MakeDirectories(const std::string& path, unsigned mode) {
  std::string built;
  for (const fs::path& part : fs::path(path)) {
    built = built.empty() ? part.string() : (fs::path(built) / part).string();
    if (mkdir(built.c_str(), mode) != 0 && errno != EEXIST && errno != EROFS && errno != EISDIR) {
      return ErrnoStatus("cannot create folder", built, errno);
    }
  }
  std::error_code error;
  if (!fs::is_directory(path, error)) return FailedPrecondition(StrCat(path, " is not a folder"));
  return OkStatus();
}

Result<UniqueFd> LockFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", path, errno);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return FailedPrecondition(StrCat(path, " is held by another process"));
    return ErrnoStatus("cannot lock", path, errno);
  }
  return fd;
}

bool FileExists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

Result<std::vector<std::string>> ListDirectory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return ErrnoStatus("cannot list", path, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

Status RemoveTree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) return ErrnoStatus("cannot remove", path, error.value());
  return OkStatus();
}

Result<DiskSpace> GetDiskSpace(const std::string& path) {
  struct statvfs info {};
  if (statvfs(path.c_str(), &info) != 0) return ErrnoStatus("cannot ask the disk of", path, errno);
  return DiskSpace{.free_bytes = uint64_t{info.f_bavail} * info.f_frsize,
                   .size_bytes = uint64_t{info.f_blocks} * info.f_frsize};
}

}  // namespace switchyard
