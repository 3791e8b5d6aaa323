#include "common/events/lease_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "common/base/crc32c.h"
#include "common/base/strings.h"

namespace switchyard::events {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint64_t kFormat = 0x315341454c595753ULL;  // "SWYLEAS1"

// 64-bit words of the page, little-endian. The counter is odd while a change is under way.
enum Word : size_t {
  kWordFormat = 0,
  kWordCounter = 1,
  kWordDeadline = 2,
  kWordIntent = 3,
  kWordStopDeadline = 4,
  kWordEpoch = 5,
  kWordCrc = 6,  // crc32c of words 2 to 5
  kWordCount = 7,
  // Behind what the checksum covers: advice that may be lost.
  kWordPressure = 7,
};
using Words = std::array<uint64_t, kWordCount>;

uint32_t Checksum(const Words& words) {
  return Crc32c({reinterpret_cast<const char*>(&words[kWordDeadline]),
                 (kWordCrc - kWordDeadline) * sizeof(uint64_t)});
}

// False: not consistent.
bool Decode(const Words& words, Lease* out) {
  if (words[kWordFormat] != kFormat || words[kWordCounter] % 2 != 0 ||
      words[kWordCrc] != Checksum(words) || words[kWordIntent] < 1 || words[kWordIntent] > 4) {
    return false;
  }
  *out = {.epoch = words[kWordEpoch],
          .deadline_boottime_ns = words[kWordDeadline],
          .intent = static_cast<LeaseIntent>(words[kWordIntent]),
          .stop_deadline_boottime_ns = words[kWordStopDeadline]};
  return true;
}

// With an even counter of 0.
Words Encode(const Lease& lease) {
  Words words{};
  words[kWordFormat] = kFormat;
  words[kWordDeadline] = lease.deadline_boottime_ns;
  words[kWordIntent] = static_cast<uint64_t>(lease.intent);
  words[kWordStopDeadline] = lease.stop_deadline_boottime_ns;
  words[kWordEpoch] = lease.epoch;
  words[kWordCrc] = Checksum(words);
  return words;
}

Status WriteAt(int fd, const void* data, size_t size, off_t offset, const std::string& path) {
  const ssize_t put = pwrite(fd, data, size, offset);
  if (put != static_cast<ssize_t>(size))
    return ErrnoStatus("cannot write", path, put < 0 ? errno : EIO);
  return OkStatus();
}

Result<UniqueFd> OpenPage(const std::string& path, int mode) {
  UniqueFd fd(open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.is_valid()) return ErrnoStatus("cannot open", path, errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus("cannot stat", path, errno);
  if (!S_ISREG(info.st_mode) || info.st_size < static_cast<off_t>(kPageBytes)) {
    return DataLoss(StrCat(path, " is not a lease page"));
  }
  return fd;
}

Result<Words> ReadWords(int fd, const std::string& path) {
  Words words{};
  const ssize_t got = pread(fd, words.data(), sizeof(words), 0);
  if (got < 0) return ErrnoStatus("cannot read", path, errno);
  if (got != static_cast<ssize_t>(sizeof(words))) return DataLoss(StrCat(path, " is truncated"));
  return words;
}

}  // namespace

Result<LeaseWriter> LeaseWriter::Create(const std::string& path, uint64_t epoch,
                                        uint64_t deadline_boottime_ns) {
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.is_valid()) {
    if (errno == EEXIST) return AlreadyExists(StrCat(path, " exists"));
    return ErrnoStatus("cannot create", path, errno);
  }
  LeaseWriter writer(std::move(fd), path);
  writer.lease_.epoch = epoch;
  writer.lease_.deadline_boottime_ns = deadline_boottime_ns;
  // Nobody maps it yet: one write.
  const Words words = Encode(writer.lease_);
  std::array<char, kPageBytes> page{};
  std::memcpy(page.data(), words.data(), sizeof(words));
  SWITCHYARD_RETURN_IF_ERROR(WriteAt(writer.fd_.get(), page.data(), page.size(), 0, path));
  return writer;
}

Result<LeaseWriter> LeaseWriter::Open(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(UniqueFd fd, OpenPage(path, O_RDWR));
  SWITCHYARD_ASSIGN_OR_RETURN(Words words, ReadWords(fd.get(), path));
  LeaseWriter writer(std::move(fd), path);
  // A predecessor that died inside a change leaves an odd counter: what it wrote counts when whole.
  const uint64_t counter = words[kWordCounter];
  words[kWordCounter] = 0;
  if (!Decode(words, &writer.lease_)) return DataLoss(StrCat(path, " holds no consistent lease"));
  writer.counter_ = counter + counter % 2;
  return writer;
}

Status LeaseWriter::SetDeadline(uint64_t deadline_boottime_ns) {
  return lease_.RaiseDeadline(deadline_boottime_ns) ? Write() : OkStatus();
}

Status LeaseWriter::SetStop(LeaseIntent intent, uint64_t stop_deadline_boottime_ns) {
  return lease_.RaiseStop(intent, stop_deadline_boottime_ns) ? Write() : OkStatus();
}

Status LeaseWriter::SetPressure(uint32_t exponent) {
  if (exponent == pressure_) return OkStatus();
  pressure_ = exponent;
  const uint64_t word = exponent;
  return WriteAt(fd_.get(), &word, sizeof(word), kWordPressure * sizeof(uint64_t), path_);
}

Status LeaseWriter::Write() {
  const Words words = Encode(lease_);
  // Three writes in order: a reader that sees an even counter on both sides has one value.
  const uint64_t odd = counter_ + 1;
  counter_ += 2;
  SWITCHYARD_RETURN_IF_ERROR(
      WriteAt(fd_.get(), &odd, sizeof(odd), kWordCounter * sizeof(uint64_t), path_));
  SWITCHYARD_RETURN_IF_ERROR(WriteAt(fd_.get(), &words[kWordDeadline],
                                     (kWordCount - kWordDeadline) * sizeof(uint64_t),
                                     kWordDeadline * sizeof(uint64_t), path_));
  return WriteAt(fd_.get(), &counter_, sizeof(counter_), kWordCounter * sizeof(uint64_t), path_);
}

Result<std::unique_ptr<LeaseReader>> LeaseReader::Open(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(const UniqueFd fd, OpenPage(path, O_RDONLY));
  void* page = mmap(nullptr, kPageBytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (page == MAP_FAILED) return ErrnoStatus("cannot map", path, errno);
  std::unique_ptr<LeaseReader> reader(new LeaseReader(page));
  if (!reader->TryRead()) return DataLoss(StrCat(path, " holds no consistent lease"));
  return reader;
}

LeaseReader::~LeaseReader() { munmap(const_cast<void*>(page_), kPageBytes); }

const Lease& LeaseReader::Read() {
  TryRead();
  return lease_;
}

uint32_t LeaseReader::ReadPressure() const {
  const auto* words = static_cast<const uint64_t*>(page_);
  const uint64_t word = __atomic_load_n(&words[kWordPressure], __ATOMIC_RELAXED);
  return static_cast<uint32_t>(std::min<uint64_t>(word, kPressureMax));
}

bool LeaseReader::TryRead() {
  // The writer needs a few microseconds; one that died leaves the counter odd for ever.
  constexpr int kTries = 100;
  const auto* words = static_cast<const uint64_t*>(page_);
  for (int i = 0; i < kTries; ++i) {
    Words copy{};
    copy[kWordCounter] = __atomic_load_n(&words[kWordCounter], __ATOMIC_ACQUIRE);
    for (size_t k = 0; k < kWordCount; ++k) {
      if (k != kWordCounter) copy[k] = __atomic_load_n(&words[k], __ATOMIC_RELAXED);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool stable =
        __atomic_load_n(&words[kWordCounter], __ATOMIC_RELAXED) == copy[kWordCounter];
    if (stable && Decode(copy, &lease_)) return true;
  }
  return false;
}

Result<Lease> ReadLeaseFile(const std::string& path) {
  SWITCHYARD_ASSIGN_OR_RETURN(const UniqueFd fd, OpenPage(path, O_RDONLY));
  SWITCHYARD_ASSIGN_OR_RETURN(Words words, ReadWords(fd.get(), path));
  words[kWordCounter] = 0;
  Lease lease;
  if (!Decode(words, &lease)) return DataLoss(StrCat(path, " holds no consistent lease"));
  return lease;
}

}  // namespace switchyard::events
