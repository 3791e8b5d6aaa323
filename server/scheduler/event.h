#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "server/scheduler/state.h"

// What the core is asked to decide about. New ids and random numbers arrive here: the core makes
// none.
namespace switchyard::scheduler {

struct Register {
  WorkerRow worker;  // admin and cordon flags are not taken from here
  std::string nonce;
  uint32_t seen_generation = 0;
  uint32_t seen_boot = 0;
};

enum class RecordState : uint8_t { kLaunching = 1, kRunning = 2, kExited = 3, kRefused = 4 };

// One record of an agent.
struct MemberReport {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  RecordState state = RecordState::kLaunching;
  int32_t exit_code = 0;
  int32_t signal = 0;
  EndClass end_class = EndClass::kNone;
  bool complete = false;
  std::string evidence;
  uint64_t last_seq = 0;
  std::string reason;
  uint64_t final_step = 0;
};

struct Heartbeat {
  WorkerId worker;
  std::string nonce;
  uint64_t incarnation = 0;
  uint64_t hb_seq = 0;
  uint64_t sent_boottime_ns = 0;
  Rev applied;
  std::vector<MemberReport> observed;
  uint64_t random = 0;
};

// A run as the expansion of a sweep made it, with a fresh id for the case that it is new.
struct PlannedRun {
  RunRow run;
  uint64_t number = 0;
  uint64_t cell = 0;
  std::vector<std::pair<std::string, std::string>> columns;
  // A stored run with this identity that stands, read in the same turn. Its state counts where the
  // run is not in memory.
  std::optional<std::pair<RunId, RunState>> stored;
};

// A valid document with a name that is free; the first runs come along.
struct SubmitSweep {
  SweepRow sweep;
  std::vector<PlannedRun> first;
};

struct Propose {
  SweepId sweep;
  std::vector<PlannedRun> runs;  // in order of number
};

struct CancelSweep {
  SweepId sweep;
  std::string reason;
  uint64_t random = 0;
};
struct CancelRun {
  RunId run;
  std::string reason;
};

// A line that the core looks at.
struct LineFact {
  enum class Kind : uint8_t { kHello, kResume, kCheckpoint };
  Kind kind = Kind::kHello;
  uint64_t seq = 0;
  Epoch from;  // resume
  uint64_t step = 0;
  std::string digest;
  uint64_t bytes = 0;
  std::string path;
};

struct Append {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  WorkerId worker;
  uint64_t first_seq = 0;
  uint64_t n = 0;
  std::vector<LineFact> lines;
  uint64_t random = 0;
};

struct AppendLog {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  WorkerId worker;
  LogStream stream = LogStream::kStdout;
  uint64_t offset = 0;
  uint64_t size = 0;
};

// Every 500 ms, after the inbox; never while the coordinator is fresh or late.
struct Tick {
  uint64_t random = 0;
};

// Places queued runs.
struct Schedule {};

using Event = std::variant<Register, Heartbeat, SubmitSweep, Propose, CancelSweep, CancelRun,
                           Append, AppendLog, Tick, Schedule>;

}  // namespace switchyard::scheduler
