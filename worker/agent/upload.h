#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "worker/agent/agent_state_upload.h"
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
// in flight as far as its credits go, one piece of each output. What the answers to the batches
// mean is decided by StreamWindow. Loop thread only.
class Upload : public std::enable_shared_from_this<Upload> {
 public:
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
  uint64_t durable() const { return window_.durable(); }
  uint64_t unsent_bytes();
  // CLOCK_BOOTTIME at which the oldest unsent line was seen; 0: none.
  uint64_t unsent_since_ns() const { return unsent_since_ns_; }

 private:
  struct Output {
    explicit Output(std::string path) : tail(std::move(path)) {}
    LogTail tail;
    bool refused = false;  // sealed or unknown there: nothing more is sent
    uint32_t failures = 0;
    uint32_t rejections = 0;  // of these: the coordinator answered that it cannot take it
    uint64_t retry_at_ns = 0;
    bool in_flight = false;
  };

  void SendEvents();
  bool SendBatch(uint64_t now_ns);
  void OnAppend(uint64_t n, const StreamWindow::Batch& batch, const Result<AppendReply>& reply);
  void SendOutput(bool is_stderr);
  void OnOutput(bool is_stderr, uint64_t end_offset, uint64_t resends,
                const Result<AppendReply>& reply);
  // True: the coordinator takes no more of this attempt.
  bool IsRefusal(const Status& status);
  // Output that is to be stored before the events end.
  bool IsOutputLeft(Output& output);

  const StreamId stream_;
  UploadContext* const context_;
  EventTail events_;
  Output out_;
  Output err_;
  bool ended_ = false;

  StreamWindow window_;
  uint64_t credit_bytes_;
  uint64_t lines_max_ = EventTail::kLinesMax;
  bool skip_line_ = false;
  uint64_t resends_ = 0;
  uint64_t unsent_since_ns_ = 0;
};

}  // namespace switchyard::agent
