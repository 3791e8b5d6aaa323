#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/apply.h"
#include "server/scheduler/decision.h"

// What the coordinator has committed: rows as the store keeps them, with the lines of every stream.
namespace switchyard::simulation {

enum class LineKind : uint8_t { kHello, kResume, kMetric, kCheckpoint, kLog, kDrop, kEnd };

struct Line {
  LineKind kind = LineKind::kMetric;
  uint64_t step = 0;
  uint64_t value = 0;  // resume: epoch resumed from; else the bits that must come through
  bool operator==(const Line&) const = default;
};

struct StoredAttempt {
  scheduler::AttemptRow row;
  scheduler::AttemptStatus status;
  scheduler::MemberRow member;
  scheduler::StreamRow stream;
  std::vector<Line> lines;                            // seq 1..
  std::vector<std::pair<uint64_t, uint64_t>> chunks;  // first and last seq, ascending
  bool is_fresh = false;                              // its first status is still to come
};

struct NewLines {
  Epoch epoch;
  uint64_t first_seq = 0;
  std::vector<Line> lines;
};
// Chunks of a stream made one: delete and insert, together in one transaction.
struct ChunkDelete {
  Epoch epoch;
  size_t count = 0;
};
struct ChunkInsert {
  Epoch epoch;
  std::pair<uint64_t, uint64_t> chunk;
};
struct IdemEntry {
  std::string request_id;
  std::string body;
  uint64_t reply = 0;
};
using Row = std::variant<scheduler::Change, NewLines, ChunkDelete, ChunkInsert, IdemEntry>;
using Group = std::vector<Row>;

class Image {
 public:
  uint32_t generation = 1;
  uint32_t boot = 0;
  uint64_t tail = 0;  // groups committed
  uint64_t last_epoch = 0;
  std::map<SweepId, std::pair<scheduler::SweepRow, scheduler::SweepStatus>> sweeps;
  std::map<RunId, std::pair<scheduler::RunRow, scheduler::RunStatus>> runs;
  std::vector<scheduler::LinkRow> links;
  std::map<Epoch, StoredAttempt> attempts;
  std::map<WorkerId, scheduler::WorkerRow> workers;
  // By run, then in order of (epoch, step).
  std::map<RunId, std::map<std::pair<Epoch, uint64_t>, scheduler::CheckpointRow>> checkpoints;
  std::map<std::string, IdemEntry> idem;

  // Everything that a coordinator loads at start.
  scheduler::StoredRows Load() const;
  std::optional<std::pair<RunId, scheduler::RunState>> FindValidRun(
      const std::string& run_key) const;
};

}  // namespace switchyard::simulation
