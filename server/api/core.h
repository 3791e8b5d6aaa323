#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/spec/change.h"
#include "server/api/batch.h"
#include "server/api/strategy.h"
#include "server/scheduler/decision.h"
#include "server/store/store.h"

// What the services need of the process around them. Every callback is called exactly once, on some
// thread of the coordinator, also when the call is refused.
namespace switchyard::api {

class Expansion;

template <typename T>
using Callback = std::function<void(Result<T>)>;

struct RegisterReply {
  uint32_t generation = 0;
  uint32_t boot = 0;
  std::string nonce;
  uint32_t heartbeat_ms = 0;
  std::string cluster_id;
};

// One attempt that a worker shall run.
struct WantedAttempt {
  RunId run;
  uint32_t ordinal = 0;
  Epoch epoch;
  uint32_t rank = 0;
  std::string run_key;
  std::vector<uint32_t> slots;
  scheduler::SlotKind kind = scheduler::SlotKind::kCpu;
  std::string resume_path;
  std::string run_spec;      // empty once the attempt was observed
  std::string attempt_spec;  // the same
  scheduler::Intent intent = scheduler::Intent::kRun;
  uint32_t grace_ms = 0;
  uint64_t lease_ms = 0;
};

struct Desired {
  scheduler::Rev rev;
  uint64_t echo_incarnation = 0;
  uint64_t echo_hb_seq = 0;
  uint64_t echo_sent_boottime_ns = 0;
  std::vector<WantedAttempt> want;
  std::vector<scheduler::AttemptRef> gc;
  std::vector<scheduler::CheckpointRow> gc_checkpoints;
  uint32_t heartbeat_ms = 0;
  uint32_t workers = 0;
};

struct AppendInput {
  scheduler::Append event;
  std::shared_ptr<const PreparedBatch> batch;
  size_t bytes = 0;  // as sent
  uint32_t oldest_age_ms = 0;
};
struct AppendReply {
  uint64_t committed = 0;
  uint64_t durable = 0;
  uint64_t expect = 0;
  uint64_t credit_bytes = 0;
  uint32_t retry_after_ms = 0;
};

struct SubmitInput {
  std::shared_ptr<const Expansion> expansion;
  std::vector<scheduler::PlannedRun> first;
  bool rerun = false;
  std::string request_id;
};
struct SubmitReply {
  store::SweepInfo sweep;
  bool existed = false;
  uint64_t reused = 0;
};

// One verb on one sweep, run or worker.
struct SteerInput {
  // Exactly one.
  std::optional<SweepId> sweep;
  std::optional<RunId> run;
  std::optional<WorkerId> worker;
  scheduler::Verb verb = scheduler::Verb::kCancel;                    // of a sweep or run
  scheduler::WorkerVerb worker_verb = scheduler::WorkerVerb::kDrain;  // of a worker
  int32_t priority = 0;                                               // kPriority
  std::optional<uint32_t> deadline_ms;                                // kDrain
  std::string reason;
  std::string request_id;
};

struct RetryInput {
  SweepId sweep;
  std::vector<RunId> runs;  // of this sweep; what stands or lives is left out
  std::string request_id;
};
struct RetryReply {
  store::SweepInfo sweep;  // that holds the new runs
  uint64_t runs_made = 0;
};

// More cells and seeds for a sweep.
struct ExtendInput {
  SweepId sweep;
  std::shared_ptr<const Expansion> old;  // what the sweep is of, as it was read
  std::shared_ptr<const Expansion> extended;
  std::vector<spec::StageExtension> extensions;  // from the one to the other
  std::string request_id;
};
struct ExtendReply {
  store::SweepInfo sweep;  // that holds them: of an ended one, a child
  bool existed = false;    // it had all of them
};

// Of a sweep with strategy external.
struct AskReply {
  std::vector<search::CellReport> cells;
  uint64_t ended = 0;  // cells that have ended: the next `since`
  bool is_closed = false;
};
struct TellInput {
  SweepId sweep;
  std::vector<NamedValues> cells;  // new ones
  std::vector<uint64_t> stop;      // cells that run
  bool close = false;              // no more will be told
  std::string request_id;
};
struct TellReply {
  std::vector<uint64_t> cells;  // numbers of the new ones
};

struct WorkerInfo {
  scheduler::WorkerRow row;
  std::string state;
  uint32_t slots_busy = 0;
  int64_t last_contact_ms_ago = -1;  // -1: none since the start
  std::vector<RunId> runs;
};

struct CoordinatorInfo {
  std::string cluster_id;
  uint32_t generation = 0;
  uint32_t boot = 0;
  std::string state;
  store::StoreStats stats;
  std::string metrics_address;
};

// The reducer's inbox. Thread-safe; never blocks. kUnavailable when a queue is full or the
// coordinator drains.
class Core {
 public:
  virtual ~Core() = default;
  virtual void Register(scheduler::Register event, Callback<RegisterReply> done) = 0;
  virtual void Heartbeat(scheduler::Heartbeat event, Callback<Desired> done) = 0;
  virtual void Append(AppendInput input, Callback<AppendReply> done) = 0;
  virtual void AppendLog(scheduler::AppendLog event, std::string data,
                         Callback<uint64_t> committed) = 0;
  virtual void Submit(SubmitInput input, Callback<SubmitReply> done) = 0;
  virtual void Steer(SteerInput input, Callback<uint64_t> runs_affected) = 0;
  virtual void Retry(RetryInput input, Callback<RetryReply> done) = 0;
  virtual void Extend(ExtendInput input, Callback<ExtendReply> done) = 0;
  virtual void Ask(SweepId sweep, uint64_t since, Callback<AskReply> done) = 0;
  virtual void Tell(TellInput input, Callback<TellReply> done) = 0;
  virtual void Pin(scheduler::PinCheckpoint event, Callback<uint64_t> done) = 0;
  // Empty when the run is not in memory.
  virtual void Explain(RunId run, Callback<std::vector<std::string>> done) = 0;
  virtual void ListWorkers(Callback<std::vector<WorkerInfo>> done) = 0;
  virtual void GetInfo(Callback<CoordinatorInfo> done) = 0;
};

// Threads with a read-only connection each. Thread-safe; never blocks. The function is called with
// a reader, or with the reason why there is none (queue full, draining, connection lost).
class Readers {
 public:
  virtual ~Readers() = default;
  virtual void Post(std::function<void(Result<store::ReadStore*>)> work) = 0;
};

}  // namespace switchyard::api
