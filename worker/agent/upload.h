#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "worker/agent/coordinator_client.h"
#include "worker/agent/event_tail.h"
#include "worker/agent/log_tail.h"

namespace switchyard::agent {

// What all uploads of an agent share; outlives them.
struct UploadContext {
  CoordinatorClient* client = nullptr;
  bool registered = false;
  std::function<uint64_t(uint64_t span)> jitter;  // uniform in [0, span]
};

// One attempt's events and raw output on their way to the coordinator: up to four batches of events
// in flight as far as its credits go, one piece of each output. Loop thread only.
class Upload : public std::enable_shared_from_this<Upload> {
 public:
  static constexpr size_t kBatchesInFlight = 4;

  Upload(StreamId stream, const std::string& directory, UploadContext* context);

  // Sends what may be sent now.
  void Flush();
  // Bookkeeping of ages; cheap.
  void Tick(uint64_t now_ns);
  // The trainer is gone, no line will come any more. Cuts a torn one off.
  void End();
  // After a registration: tries again at once.
  void Reset();
  // The coordinator was restored: what is not durable may be lost there, and is sent again.
  void Resend();

  bool is_ended() const { return ended_; }
  // Ended, and everything is acknowledged or refused for good; nothing is in flight.
  bool is_done();
  EventTail& events() { return events_; }
  uint64_t committed() const { return events_.acknowledged(); }
  uint64_t durable() const { return durable_; }
  uint64_t unsent_bytes();
  // CLOCK_BOOTTIME at which the oldest unsent line was seen; 0: none.
  uint64_t unsent_since_ns() const { return unsent_since_ns_; }

 private:
  // One kind of calls: whether the next may be made.
  struct Gate {
    bool refused = false;  // sealed or unknown there: nothing more is sent
    uint32_t failures = 0;
    uint32_t rejections = 0;  // of these: the coordinator answered that it cannot take it
    uint64_t retry_at_ns = 0;
  };
  struct Output {
    explicit Output(std::string path) : tail(std::move(path)) {}
    LogTail tail;
    Gate gate;
    bool in_flight = false;
  };

  void SendEvents();
  bool SendBatch(uint64_t now_ns);
  void OnAppend(uint64_t n, uint64_t bytes, const Result<AppendReply>& reply);
  void AfterFlight();
  void SendOutput(bool is_stderr);
  void OnOutput(bool is_stderr, uint64_t end_offset, const Result<AppendReply>& reply);
  void OnFailure(const Status& status, Gate* gate);
  // Output that is to be stored before the events end.
  bool IsOutputLeft(Output& output);

  const StreamId stream_;
  UploadContext* const context_;
  EventTail events_;
  Output out_;
  Output err_;
  bool ended_ = false;

  Gate gate_;
  size_t in_flight_ = 0;
  uint64_t in_flight_bytes_ = 0;
  uint64_t credit_bytes_;
  uint64_t lines_max_ = EventTail::kLinesMax;
  bool skip_line_ = false;
  // To do once nothing is in flight: what comes before the answers would be sent in vain.
  bool must_rewind_ = false;
  uint64_t expect_ = 0;   // as the coordinator said; 0: nothing
  uint32_t rewinds_ = 0;  // since the watermark moved last
  uint64_t durable_ = 0;
  uint64_t unsent_since_ns_ = 0;
};

}  // namespace switchyard::agent
