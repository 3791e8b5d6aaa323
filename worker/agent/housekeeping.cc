#include "worker/agent/housekeeping.h"

#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "common/base/ids.h"
#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kReserveBytesMax = uint64_t{2} << 30;
constexpr uint64_t kSmallFile = 64 << 10;

struct NetworkFileSystem {
  uint64_t magic;
  const char* name;
};
// f_type of statfs(2), as its manual page lists them.
constexpr std::array kNetworkFileSystems = {
    NetworkFileSystem{0x6969, "nfs"},        NetworkFileSystem{0xff534d42, "cifs"},
    NetworkFileSystem{0xfe534d42, "smb2"},   NetworkFileSystem{0x517b, "smb"},
    NetworkFileSystem{0x5346414f, "afs"},    NetworkFileSystem{0x00c36400, "ceph"},
    NetworkFileSystem{0x0bd00bd0, "lustre"}, NetworkFileSystem{0x47504653, "gpfs"},
    NetworkFileSystem{0x73757245, "coda"},   NetworkFileSystem{0x564c, "ncp"}};

}  // namespace

uint64_t DiskReserveBytes(uint64_t size_bytes) {
  return std::min(kReserveBytesMax, size_bytes / 20);
}

Result<std::string> CheckpointPath(const std::string& checkpoint_dir, const std::string& store,
                                   const CheckpointRef& ref) {
  if (ref.store != store) {
    return FailedPrecondition(
        StrCat("a checkpoint of store ", EscapeForTerminal(ref.store), ", this one is ", store));
  }
  const Result<Uuid> run = Uuid::Parse(ref.run_id);
  if (!run.ok()) return run.status();
  return StrCat(checkpoint_dir, "/", run->ToString(), "/", ref.epoch, "-", ref.step);
}

Result<std::string> OpenCheckpointStore(const std::string& checkpoint_dir) {
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(checkpoint_dir, 0755));
  const std::string path = checkpoint_dir + "/store.id";
  Result<std::string> store = ReadFile(path, 64);
  if (!store.ok()) {
    if (store.status().code() != Code::kNotFound) return store.status();
    SWITCHYARD_RETURN_IF_ERROR(WriteFileAtomically(path, NewUuidV4().ToString() + "\n"));
    // Another worker's may have come in between: the name holds one of them.
    store = ReadFile(path, 64);
    if (!store.ok()) return store.status();
  }
  const Result<Uuid> id = Uuid::Parse(StripWhitespace(*store));
  if (!id.ok()) return DataLoss(StrCat(path, ": ", id.status().message()));
  return id->ToString();
}

Status RefuseNetworkFileSystem(const std::string& path) {
  struct statfs info {};
  if (statfs(path.c_str(), &info) != 0) return ErrnoStatus("cannot look at", path, errno);
  const auto magic = static_cast<uint64_t>(static_cast<uint32_t>(info.f_type));
  const auto* const found =
      std::ranges::find(kNetworkFileSystems, magic, &NetworkFileSystem::magic);
  if (found == kNetworkFileSystems.end()) return OkStatus();
  return FailedPrecondition(StrCat(path, " lies on a network file system (", found->name,
                                   "): records and locks need a local one"));
}

uint64_t ReadOomKills() {
  const Result<std::string> group = ReadFile("/proc/self/cgroup", kSmallFile);
  if (!group.ok()) return 0;
  for (const std::string& line : StrSplit(*group, '\n')) {
    if (!line.starts_with("0::")) continue;
    const Result<std::string> text =
        ReadFile(StrCat("/sys/fs/cgroup", line.substr(3), "/memory.events"), kSmallFile);
    if (!text.ok()) return 0;
    for (const std::string& entry : StrSplit(*text, '\n')) {
      if (entry.starts_with("oom_kill ")) return ParseUint64(entry.substr(9)).value_or(0);
    }
  }
  return 0;
}

}  // namespace switchyard::agent
