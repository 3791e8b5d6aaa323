#include "client/export/staged_folder.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/base/strings.h"

namespace switchyard::client {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBufferBytes = size_t{1} << 18;

Status InTheWay(const std::string& target) {
  return AlreadyExists(
      StrCat(target, " is there already; name a folder that is not, or remove that one"));
}

// Exclusive lock of a folder; not valid when another process has it.
UniqueFd LockFolder(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.is_valid() && flock(fd.get(), LOCK_EX | LOCK_NB) != 0) fd.Reset();
  return fd;
}

// Stages of this target whose process is gone.
void RemoveLeftOvers(const fs::path& parent, const std::string& prefix) {
  const Result<std::vector<std::string>> names = ListDirectory(parent.string());
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (name.size() != prefix.size() + 6 || !name.starts_with(prefix)) continue;
    const std::string path = (parent / name).string();
    const UniqueFd lock = LockFolder(path);
    if (lock.is_valid()) static_cast<void>(RemoveTree(path));  // What cannot be removed stays.
  }
}

Status SyncTree(const std::string& path) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(path, error), end; !error && it != end;
       it.increment(error)) {
    UniqueFd fd(open(it->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.is_valid()) return ErrnoStatus("cannot open", it->path().string(), errno);
    if (fsync(fd.get()) != 0) return ErrnoStatus("cannot sync", it->path().string(), errno);
  }
  if (error) return ErrnoStatus("cannot list", path, error.value());
  return SyncDirectory(path);
}

}  // namespace

StagedFolder::StagedFolder(std::string target, std::string path, UniqueFd lock)
    : target_(std::move(target)), path_(std::move(path)), lock_(std::move(lock)) {}

StagedFolder::StagedFolder(StagedFolder&& other) noexcept
    : target_(std::move(other.target_)),
      path_(std::exchange(other.path_, {})),
      lock_(std::move(other.lock_)) {}

StagedFolder::~StagedFolder() {
  if (!path_.empty()) static_cast<void>(RemoveTree(path_));  // Nobody is left to be told.
}

Result<StagedFolder> StagedFolder::Make(const std::string& target) {
  std::error_code error;
  fs::path absolute = fs::absolute(target, error).lexically_normal();
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // "name/"
  if (error || !absolute.has_filename()) return InvalidArgument(StrCat(target, " is no folder"));
  if (fs::symlink_status(absolute, error).type() != fs::file_type::not_found) {
    return InTheWay(target);
  }
  const fs::path parent = absolute.parent_path();
  if (!fs::is_directory(parent, error)) {
    return NotFound(StrCat("the folder ", parent.string(), " for ", target, " does not exist"));
  }
  const std::string prefix = StrCat(".", absolute.filename().string(), ".partial-");
  RemoveLeftOvers(parent, prefix);
  std::string path = (parent / (prefix + "XXXXXX")).string();
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus("cannot create folder", path, errno);
  fs::permissions(path, fs::perms(0755), error);
  return StagedFolder(absolute.string(), path, LockFolder(path));
}

Status StagedFolder::Publish() {
  SWITCHYARD_RETURN_IF_ERROR(SyncTree(path_));
  int failed = renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, target_.c_str(), RENAME_NOREPLACE);
  if (failed != 0 && errno == EINVAL) {
    // A file system without that flag; a folder replaces an empty folder at most.
    failed = rename(path_.c_str(), target_.c_str());
  }
  if (failed != 0) {
    return errno == EEXIST || errno == ENOTEMPTY ? InTheWay(target_)
                                                 : ErrnoStatus("cannot rename to", target_, errno);
  }
  path_.clear();
  return SyncDirectory(fs::path(target_).parent_path().string());
}

OutputFile::OutputFile(std::string path, UniqueFd fd)
    : path_(std::move(path)), fd_(std::move(fd)) {}

Result<OutputFile> OutputFile::Make(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.is_valid()) {
    return errno == EEXIST ? AlreadyExists(StrCat(path, " is there already"))
                           : ErrnoStatus("cannot create", path, errno);
  }
  return OutputFile(path, std::move(fd));
}

Status OutputFile::Append(std::string_view data) {
  buffer_.append(data);
  if (buffer_.size() < kBufferBytes) return OkStatus();
  const Status status = WriteAll(fd_.get(), buffer_, path_);
  buffer_.clear();
  return status;
}

Status OutputFile::Close() {
  SWITCHYARD_RETURN_IF_ERROR(WriteAll(fd_.get(), buffer_, path_));
  buffer_.clear();
  fd_.Reset();
  return OkStatus();
}

Status WriteNewFile(const std::string& path, std::string_view data) {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(fs::path(path).parent_path().string()));
  SWITCHYARD_ASSIGN_OR_RETURN(OutputFile file, OutputFile::Make(path));
  SWITCHYARD_RETURN_IF_ERROR(file.Append(data));
  return file.Close();
}

Status AppendToFile(const std::string& path, std::string_view data) {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(fs::path(path).parent_path().string()));
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", path, errno);
  return WriteAll(fd.get(), data, path);
}

}  // namespace switchyard::client
