#include "server/store/sentinel.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "common/base/crc32c.h"

namespace switchyard::store {
namespace {

constexpr uint64_t kMagic = 0x31646e7479777373;
constexpr off_t kSlotDistance = 2048;
constexpr off_t kFileBytes = 4096;

struct Slot {
  uint64_t magic = kMagic;
  uint64_t cluster_high = 0;
  uint64_t cluster_low = 0;
  uint32_t generation = 0;
  uint32_t boot = 0;
  uint64_t tail_seq = 0;
  uint32_t crc32c = 0;
  uint32_t reserved = 0;
};
static_assert(std::is_trivially_copyable_v<Slot> && sizeof(Slot) == 48);

uint32_t Checksum(const Slot& slot) {
  return Crc32c({reinterpret_cast<const char*>(&slot), offsetof(Slot, crc32c)});
}

}  // namespace

Result<std::unique_ptr<TailSentinel>> TailSentinel::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.is_valid()) return ErrnoStatus("open", path, errno);
  if (ftruncate(fd.get(), kFileBytes) != 0) return ErrnoStatus("resize", path, errno);
  std::unique_ptr<TailSentinel> self(new TailSentinel(path, std::move(fd)));
  for (int i = 0; i < 2; ++i) {
    Slot slot;
    const ssize_t got = pread(self->fd_.get(), &slot, sizeof(slot), i * kSlotDistance);
    if (got < 0) return ErrnoStatus("read", path, errno);
    if (got != sizeof(slot) || slot.magic != kMagic || slot.crc32c != Checksum(slot)) continue;
    if (self->found_ && self->found_->tail_seq >= slot.tail_seq) continue;
    self->found_ = Mark{.cluster = {slot.cluster_high, slot.cluster_low},
                        .generation = slot.generation,
                        .boot = slot.boot,
                        .tail_seq = slot.tail_seq};
    self->next_slot_ = 1 - i;
  }
  return self;
}

Status TailSentinel::Write(const Mark& mark) {
  Slot slot;
  slot.cluster_high = mark.cluster.high;
  slot.cluster_low = mark.cluster.low;
  slot.generation = mark.generation;
  slot.boot = mark.boot;
  slot.tail_seq = mark.tail_seq;
  slot.crc32c = Checksum(slot);
  const ssize_t put = pwrite(fd_.get(), &slot, sizeof(slot), next_slot_ * kSlotDistance);
  if (put != sizeof(slot)) return ErrnoStatus("write", path_, put < 0 ? errno : EIO);
  next_slot_ = 1 - next_slot_;
  return OkStatus();
}

Status TailSentinel::Sync() {
  return fdatasync(fd_.get()) == 0 ? OkStatus() : ErrnoStatus("sync", path_, errno);
}

}  // namespace switchyard::store
