#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

// Which lines of one stream are on their way to the coordinator, what its answers mean, and what
// has to be sent again (protocol 9.2, 9.3). Decides only: `now_ns` is CLOCK_BOOTTIME in
// nanoseconds, given by the caller.
namespace switchyard::agent {

// The lines of a stream, numbered from 1. Batches are taken from it in order.
class LineSource {
 public:
  virtual ~LineSource() = default;
  // Lines up to here are stored at the coordinator.
  virtual uint64_t acknowledged() const = 0;
  // Lines behind it were given out.
  virtual bool has_unacknowledged() const = 0;
  // Lines up to `seq` are stored; may also lie before what was acknowledged.
  virtual void Acknowledge(uint64_t seq) = 0;
  // What was given out and is not acknowledged is given out again.
  virtual void Rewind() = 0;
};

class StreamWindow {
 public:
  static constexpr size_t kBatchesInFlight = 4;

  // A batch that was sent, until it is answered.
  struct Batch {
    uint64_t bytes = 0;
    uint64_t life = 0;  // answers to an earlier life of the stream count no more
  };
  // What the coordinator says of a batch that it has understood.
  struct Answer {
    uint64_t committed = 0;  // lines up to here are stored
    uint64_t expect = 0;     // not 0: it lacks lines from here on
    uint64_t durable = 0;    // lines up to here survive a restore
  };

  // `lines` outlives it; `jitter` is uniform in [0, span], both in nanoseconds.
  StreamWindow(LineSource* lines, std::function<uint64_t(uint64_t span)> jitter)
      : lines_(lines), jitter_(std::move(jitter)) {}

  // The next batch may be taken and sent, as far as in_flight() and credits allow.
  bool IsOpen(uint64_t now_ns) const {
    return !refused_ && !must_rewind_ && now_ns >= retry_at_ns_;
  }
  Batch OnSent(uint64_t bytes);

  // False: the batch is of an earlier life, and what was said of it means nothing now.
  bool IsCurrent(const Batch& batch) const { return batch.life == life_; }
  // True: the watermark has moved on.
  bool OnAnswer(const Batch& batch, const Answer& answer, uint64_t now_ns);
  // No answer, or one that asks for another try.
  void OnFailure(const Batch& batch, uint64_t now_ns);
  // Sealed, or unknown there: nothing more is sent.
  void OnRefusal(const Batch& batch, uint64_t now_ns);

  // The coordinator was restored: what is not durable may be lost there, and is sent again.
  void Resend(uint64_t now_ns);
  // After a registration: tries again at once.
  void Reset();
  // Sends nothing before.
  void WaitUntil(uint64_t at_ns) { retry_at_ns_ = std::max(retry_at_ns_, at_ns); }

  size_t in_flight() const { return in_flight_; }
  uint64_t in_flight_bytes() const { return in_flight_bytes_; }
  bool is_refused() const { return refused_; }
  // Newest watermark up to which lines survive a restore.
  uint64_t durable() const { return durable_; }
  uint64_t retry_at_ns() const { return retry_at_ns_; }

 private:
  // False: the batch counts no more.
  bool Land(const Batch& batch);
  void RewindWhenLanded(uint64_t now_ns);

  LineSource* const lines_;
  const std::function<uint64_t(uint64_t span)> jitter_;
  uint64_t life_ = 1;
  size_t in_flight_ = 0;
  uint64_t in_flight_bytes_ = 0;
  bool refused_ = false;
  uint32_t failures_ = 0;
  uint64_t retry_at_ns_ = 0;
  // To do once nothing is in flight: what comes before the answers would be sent in vain.
  bool must_rewind_ = false;
  uint64_t expect_ = 0;   // as the coordinator said; 0: nothing
  uint32_t rewinds_ = 0;  // since the watermark moved last
  uint64_t durable_ = 0;
};

}  // namespace switchyard::agent
