#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/file.h"
#include "common/base/status.h"

// lease.page of an attempt directory (docs/attempt-directory.md): written by the agent, mapped by
// the trainer. Times are CLOCK_BOOTTIME in nanoseconds (base/clock.h).
namespace switchyard::events {

inline constexpr uint64_t kNever = UINT64_MAX;
inline constexpr uint32_t kPressureMax = 10;

enum class LeaseIntent : uint32_t { kRun = 1, kDrain = 2, kCancel = 3, kKill = 4 };

struct Lease {
  uint64_t epoch = 0;
  uint64_t deadline_boottime_ns = 0;  // kNever: no deadline
  LeaseIntent intent = LeaseIntent::kRun;
  uint64_t stop_deadline_boottime_ns = kNever;

  // The trainer must be gone: the lease or the stop deadline has passed.
  bool IsPast(uint64_t boottime_ns) const {
    return boottime_ns > deadline_boottime_ns || boottime_ns > stop_deadline_boottime_ns;
  }
  // An earlier deadline changes nothing: it never falls. True: changed.
  bool RaiseDeadline(uint64_t boottime_ns) {
    if (boottime_ns <= deadline_boottime_ns) return false;
    deadline_boottime_ns = boottime_ns;
    return true;
  }
  // A lower intent and a later stop deadline change nothing. True: changed.
  bool RaiseStop(LeaseIntent raised, uint64_t stop_boottime_ns) {
    const Lease before = *this;
    if (raised > intent) intent = raised;
    if (stop_boottime_ns < stop_deadline_boottime_ns) stop_deadline_boottime_ns = stop_boottime_ns;
    return *this != before;
  }
  bool operator==(const Lease&) const = default;
};

// The agent's side. Writes through the descriptor and never maps the file, which its trainer could
// truncate. One thread at a time.
class LeaseWriter {
 public:
  // A new page. kAlreadyExists when there is one.
  static Result<LeaseWriter> Create(const std::string& path, uint64_t epoch,
                                    uint64_t deadline_boottime_ns);
  // The page of an adopted trainer; its values are kept. kDataLoss: not a page, or torn.
  static Result<LeaseWriter> Open(const std::string& path);

  // Moves the deadline; an earlier one changes nothing: the deadline never falls.
  Status SetDeadline(uint64_t deadline_boottime_ns);
  // Raises the intent and shortens the stop deadline; lower intents and later times change nothing.
  Status SetStop(LeaseIntent intent, uint64_t stop_deadline_boottime_ns);
  // How much of its derived series the trainer shall leave out: it keeps 1 step in 2^`exponent`.
  Status SetPressure(uint32_t exponent);
  const Lease& lease() const { return lease_; }

 private:
  LeaseWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  Status Write();

  UniqueFd fd_;
  std::string path_;
  Lease lease_;
  uint64_t counter_ = 0;
  uint32_t pressure_ = 0;
};

// The trainer's side: no system call per read. One thread at a time; each thread opens its own.
class LeaseReader {
 public:
  // kDataLoss: not a page of this format, or no consistent value in it.
  static Result<std::unique_ptr<LeaseReader>> Open(const std::string& path);
  ~LeaseReader();
  LeaseReader(const LeaseReader&) = delete;
  LeaseReader& operator=(const LeaseReader&) = delete;

  // The newest consistent value; the last one read when the writer died inside a change.
  const Lease& Read();
  // As SetPressure wrote it, at most kPressureMax; advice, without a checksum.
  uint32_t ReadPressure() const;

 private:
  explicit LeaseReader(const void* page) : page_(page) {}
  bool TryRead();

  const void* page_;
  Lease lease_;
};

// The page's value without a mapping, for evidence after an end. kDataLoss as above.
Result<Lease> ReadLeaseFile(const std::string& path);

}  // namespace switchyard::events
