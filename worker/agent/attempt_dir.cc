#include "worker/agent/attempt_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <nlohmann/json.hpp>

#include "common/base/strings.h"
#include "worker/agent/fork_server.h"

namespace switchyard::agent {
namespace {

Status WriteNew(const std::string& path, std::string_view data) {
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.is_valid()) return ErrnoStatus("cannot create", path, errno);
  return WriteAll(fd.get(), data, path);
}

// A small JSON object that a tenant may have written.
Result<nlohmann::json> ReadObject(const std::string& path, uint64_t max_bytes) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, max_bytes));
  auto object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return DataLoss(StrCat(path, " is not a JSON object"));
  return object;
}

}  // namespace

std::string AttemptName(AttemptKey key) { return StrCat(key.epoch, "-", key.rank); }

std::optional<AttemptKey> ParseAttemptName(std::string_view name) {
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos) return std::nullopt;
  const std::optional<uint64_t> epoch = ParseUint64(name.substr(0, dash));
  const std::optional<uint64_t> rank = ParseUint64(name.substr(dash + 1));
  if (!epoch || !rank || *rank > UINT32_MAX) return std::nullopt;
  return AttemptKey{.epoch = *epoch, .rank = static_cast<uint32_t>(*rank)};
}

Status CreateAttemptDir(const std::string& path, std::string_view run_json,
                        std::string_view attempt_json) {
  if (mkdir(path.c_str(), 0755) != 0) {
    if (errno == EEXIST) return AlreadyExists(StrCat(path, " exists"));
    return ErrnoStatus("cannot create folder", path, errno);
  }
  SWITCHYARD_RETURN_IF_ERROR(WriteNew(path + "/run.json", run_json));
  return WriteNew(path + "/attempt.json", attempt_json);
}

Result<PidFile> ReadPidFile(const std::string& path) {
  const std::string file = path + "/pid.json";
  struct stat info {};
  if (lstat(file.c_str(), &info) != 0) return ErrnoStatus("cannot stat", file, errno);
  if (!S_ISREG(info.st_mode)) return DataLoss(StrCat(file, " is not a file"));
  SWITCHYARD_ASSIGN_OR_RETURN(const nlohmann::json object, ReadObject(file, 4096));
  const auto pid = object.find("pid");
  const auto ticks = object.find("start_ticks");
  const auto boot = object.find("boot_id");
  if (pid == object.end() || !pid->is_number_unsigned() || ticks == object.end() ||
      !ticks->is_number_unsigned() || boot == object.end() || !boot->is_string() ||
      pid->get<uint64_t>() <= 1 || pid->get<uint64_t>() > INT_MAX) {
    return DataLoss(StrCat(file, " lacks pid, start_ticks or boot_id"));
  }
  return PidFile{.pid = pid->get<pid_t>(),
                 .start_ticks = ticks->get<uint64_t>(),
                 .boot_id = boot->get<std::string>()};
}

Result<Record> ReadAttemptRecord(const std::string& path, AttemptKey key) {
  SWITCHYARD_ASSIGN_OR_RETURN(const nlohmann::json object,
                              ReadObject(path + "/attempt.json", 1 << 20));
  const auto run = object.find("run_id");
  const auto ordinal = object.find("ordinal");
  if (run == object.end() || !run->is_string() || ordinal == object.end() ||
      !ordinal->is_number_unsigned()) {
    return DataLoss(StrCat(path, "/attempt.json names no run and ordinal"));
  }
  return Record{.key = key, .run_id = run->get<std::string>(), .ordinal = ordinal->get<uint32_t>()};
}

bool ReadLenientSteps(const std::string& path) {
  const Result<nlohmann::json> object = ReadObject(path + "/attempt.json", 1 << 20);
  if (!object.ok()) return false;
  const auto telemetry = object->find("telemetry");
  if (telemetry == object->end() || !telemetry->is_object()) return false;
  const auto lenient = telemetry->find("lenient_steps");
  return lenient != telemetry->end() && lenient->is_boolean() && lenient->get<bool>();
}

Result<UniqueFd> AdoptProcess(const std::string& path, const PidFile& file,
                              const std::string& boot_id) {
  const Status gone = NotFound(StrCat("process ", file.pid, " of ", path, " is gone"));
  if (file.boot_id != boot_id) return gone;
  // The descriptor first: after it the number cannot come to mean another process unnoticed.
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, file.pid, 0)));
  if (!pidfd.is_valid()) return gone;
  if (ProcessStartTicks(file.pid) != file.start_ticks) return gone;
  char link[PATH_MAX];
  const ssize_t size = readlink(StrCat("/proc/", file.pid, "/cwd").c_str(), link, sizeof(link));
  char real[PATH_MAX];
  if (size <= 0 || realpath(path.c_str(), real) == nullptr ||
      std::string_view(link, static_cast<size_t>(size)) != real) {
    return gone;
  }
  return pidfd;
}

void SignalProcess(int pidfd, int signal) {
  syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0);
}

void KillSession(pid_t session) {
  if (session <= 1) return;
  kill(-session, SIGKILL);
  // Members may have made process groups of their own.
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return;
  while (const dirent* entry = readdir(proc)) {
    const std::optional<int64_t> pid = ParseInt64(entry->d_name);
    if (pid && *pid > 1 && getsid(static_cast<pid_t>(*pid)) == session) {
      kill(static_cast<pid_t>(*pid), SIGKILL);
    }
  }
  closedir(proc);
}

bool HasLeftovers(const std::string& path, pid_t session) {
  if (session > 1 && kill(-session, 0) == 0) return true;
  const UniqueFd lock(
      open((path + "/attempt.lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return lock.is_valid() && flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::string ReadLastBytes(const std::string& path, uint64_t count) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (!fd.is_valid() || fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  const auto size = static_cast<uint64_t>(info.st_size);
  std::string text(static_cast<size_t>(std::min(size, count)), '\0');
  const ssize_t got =
      pread(fd.get(), text.data(), text.size(), static_cast<off_t>(size - text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

}  // namespace switchyard::agent
