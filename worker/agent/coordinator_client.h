#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/events/batch.h"
#include "worker/agent/agent_state.h"

namespace switchyard::agent {

struct SlotInfo {
  bool is_gpu = false;
  std::string uuid;  // GPUs only
};

struct Registration {
  std::string worker_id;
  uint64_t incarnation = 0;
  std::string instance_id;
  uint32_t seen_generation = 0;
  uint32_t seen_boot = 0;
  std::string pool;
  std::vector<SlotInfo> slots;
  uint32_t threads_per_slot = 1;
  std::vector<std::string> labels;
  std::string checkpoint_store;
  std::string metrics_address;
  std::string host;
};
struct Registered {
  std::string nonce;
  uint32_t generation = 0;
  uint32_t boot = 0;
  uint32_t heartbeat_ms = 0;
};

struct HeartbeatOut {
  std::string worker_id;
  std::string nonce;
  uint64_t incarnation = 0;
  uint64_t hb_seq = 0;
  uint64_t sent_boottime_ns = 0;
  Rev applied;
  std::vector<Record> observed;
  uint64_t disk_free_bytes = 0;
  uint64_t disk_size_bytes = 0;
  uint64_t unacked_lines = 0;
  double clock_offset_seconds = 0;
  bool draining = false;
  uint32_t drain_grace_ms = 0;
};

// Documents that come with a wanted attempt, as received.
struct AttemptDocs {
  AttemptKey key;
  std::string run_spec;
  std::string attempt;
};
// A checkpoint that the coordinator is through with.
struct CheckpointRef {
  std::string run_id;
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::string store;
};
struct HeartbeatIn {
  Desired desired;
  std::vector<AttemptDocs> docs;
  std::vector<CheckpointRef> delete_checkpoints;
  uint32_t heartbeat_ms = 0;
  uint32_t workers = 0;
  int64_t sent_unix_ms = 0;  // 0: not told
};

struct StreamId {
  std::string worker_id;
  std::string run_id;
  uint32_t ordinal = 0;
  AttemptKey key;
};
struct AppendReply {
  uint64_t committed = 0;
  uint64_t durable = 0;
  uint64_t expect = 0;
  uint64_t credit_bytes = 0;
  uint32_t retry_after_ms = 0;
};

// What only the agent knows of an attempt.
struct LocalFacts {
  uint32_t threads = 1;
  std::string checkpoint_dir;
  std::string device;  // "cpu" or "gpu"
};
// run.json and attempt.json in protobuf's JSON mapping with proto field names. kInvalidArgument:
// the bytes are not such a document.
Result<std::string> RunJson(const std::string& run_spec);
Result<std::string> AttemptJson(const AttemptDocs& docs, const std::string& run_id,
                                uint32_t ordinal, const LocalFacts& facts);

// Calls of WorkerService, each with a deadline. Callbacks run through `post`, given at
// construction. Thread-safe.
class CoordinatorClient {
 public:
  using Post = std::function<void(std::function<void()>)>;
  template <typename T>
  using Callback = std::function<void(Result<T>)>;

  virtual ~CoordinatorClient() = default;
  virtual void Register(const Registration& registration, Callback<Registered> done) = 0;
  // `deadline_ms` leaves room for a parked reply.
  virtual void Heartbeat(const HeartbeatOut& heartbeat, uint32_t deadline_ms,
                         Callback<HeartbeatIn> done) = 0;
  virtual void Append(const StreamId& stream, const events::BatchBuilder::Blob& blob,
                      uint32_t oldest_age_ms, Callback<AppendReply> done) = 0;
  // `is_stderr`: which stream. Answers what is stored (`committed`) and when to go on.
  virtual void AppendLog(const StreamId& stream, bool is_stderr, uint64_t offset,
                         const std::string& data, Callback<AppendReply> done) = 0;
  // Cancels what is under way and waits for it; callbacks are posted before it returns.
  virtual void Stop() = 0;
};

// Over gRPC: one connection for heartbeats, one for bulk data, so that the latter never delays the
// former. `address`: unix:PATH or HOST:PORT.
std::unique_ptr<CoordinatorClient> MakeCoordinatorClient(const std::string& address,
                                                         CoordinatorClient::Post post);

}  // namespace switchyard::agent
