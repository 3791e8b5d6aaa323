#include "worker/agent/upload.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "worker/agent/agent_state_contact.h"
#include "worker/agent/attempt_dir.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;  // nanoseconds
constexpr uint64_t kGatherNs = 1000 * kMs;
constexpr uint64_t kBatchBytesMin = 4096;
// Until the coordinator says something else.
constexpr uint64_t kCreditAtFirst = Upload::kBatchesInFlight * EventTail::kBytesMax;
// Below it log lines stay in the worker's file.
constexpr uint64_t kCreditForLogs = EventTail::kBytesMax / 4;
constexpr uint64_t kBacklogForShedding = uint64_t{4} << 20;
// So often the coordinator may answer that it cannot store output before the events end without it.
constexpr uint32_t kOutputRejectionsMax = 3;

// Says nothing about what was sent: nobody answered, or everything is refused for a while.
bool IsOutage(Code code) {
  return code == Code::kUnavailable || code == Code::kDeadlineExceeded ||
         code == Code::kCancelled || code == Code::kAborted || code == Code::kResourceExhausted;
}

}  // namespace

Upload::Upload(StreamId stream, const std::string& directory, UploadContext* context)
    : stream_(std::move(stream)),
      context_(context),
      events_(directory + "/events.jsonl"),
      out_(directory + "/stdout.log"),
      err_(directory + "/stderr.log"),
      credit_bytes_(kCreditAtFirst) {}

void Upload::End() {
  ended_ = true;
  events_.Finish();
  out_.tail.Finish();
  err_.tail.Finish();
}

void Upload::Reset() {
  for (Gate* gate : {&gate_, &out_.gate, &err_.gate}) {
    gate->retry_at_ns = 0;
    gate->failures = 0;
    gate->rejections = 0;
  }
}

void Upload::Resend() {
  gate_.refused = false;
  must_rewind_ = true;
  expect_ = durable_ + 1;
  rewinds_ = 0;
  for (Output* output : {&out_, &err_}) {
    // Its first answer says from where on output is missing there.
    output->gate.refused = false;
    output->tail.Acknowledge(0);
  }
  AfterFlight();
}

void Upload::Tick(uint64_t now_ns) {
  if (unsent_since_ns_ == 0 && events_.has_grown()) unsent_since_ns_ = now_ns;
}

void Upload::Flush() {
  if (!context_->registered) return;
  SendOutput(false);
  SendOutput(true);
  SendEvents();
}

bool Upload::is_done() {
  const auto is_sent = [](Output& output) {
    return !output.in_flight && (output.gate.refused || output.tail.is_done());
  };
  return ended_ && in_flight_ == 0 && (gate_.refused || events_.is_done()) && is_sent(out_) &&
         is_sent(err_);
}

uint64_t Upload::unsent_bytes() {
  return events_.unsent_bytes() + out_.tail.unsent_bytes() + err_.tail.unsent_bytes();
}

bool Upload::IsOutputLeft(Output& output) {
  return !output.gate.refused && output.gate.rejections < kOutputRejectionsMax &&
         !output.tail.is_done();
}

void Upload::SendEvents() {
  const uint64_t now = BoottimeNanoseconds();
  if (!context_->registered || gate_.refused || now < gate_.retry_at_ns || must_rewind_) return;
  while (SendBatch(now)) {
  }
}

bool Upload::SendBatch(uint64_t now_ns) {
  // One batch alone goes out even without credits: its answer says when there are some again.
  const bool is_alone = in_flight_ == 0;
  const bool is_careful = skip_line_ || lines_max_ < EventTail::kLinesMax;
  if (!is_alone && (is_careful || in_flight_ >= kBatchesInFlight ||
                    in_flight_bytes_ + EventTail::kBytesMax > credit_bytes_)) {
    return false;
  }
  std::optional<events::BatchBuilder::Blob> blob;
  if (skip_line_) {
    blob = events_.SkipLine();
  } else {
    // A run has succeeded once its last line is stored: its output shall be there by then.
    const bool is_output_left = !ended_ || IsOutputLeft(out_) || IsOutputLeft(err_);
    blob = events_.Next({.lines = lines_max_,
                         .bytes = std::clamp(credit_bytes_, kBatchBytesMin, EventTail::kBytesMax),
                         .shed_logs = credit_bytes_ < kCreditForLogs &&
                                      events_.unsent_bytes() > kBacklogForShedding,
                         .hold_last = is_output_left});
  }
  if (!blob) {
    if (is_alone) unsent_since_ns_ = 0;
    return false;
  }
  ++in_flight_;
  in_flight_bytes_ += blob->bytes.size();
  const uint64_t age_ns = unsent_since_ns_ == 0 ? 0 : now_ns - unsent_since_ns_;
  context_->client->Append(stream_, *blob, static_cast<uint32_t>(age_ns / kMs),
                           [weak = weak_from_this(), n = blob->n,
                            bytes = blob->bytes.size()](const Result<AppendReply>& reply) {
                             if (const auto self = weak.lock()) self->OnAppend(n, bytes, reply);
                           });
  return true;
}

void Upload::OnFailure(const Status& status, Gate* gate) {
  const std::string name = AttemptName(stream_.key);
  switch (status.code()) {
    case Code::kFailedPrecondition:
    case Code::kNotFound:
    case Code::kPermissionDenied:
      // Sealed, or of another cluster's life: the file stays for people, nothing more is sent.
      LogWarning("the coordinator takes no more of attempt ", name, ": ", status.message());
      gate->refused = true;
      return;
    case Code::kInvalidArgument:
      LogWarning("the coordinator refused a batch of attempt ", name, ": ", status.message());
      break;
    default:
      break;
  }
  gate->retry_at_ns = BoottimeNanoseconds() + context_->jitter(ResendSpanNs(gate->failures));
  ++gate->failures;
  if (!IsOutage(status.code())) ++gate->rejections;
}

void Upload::OnAppend(uint64_t n, uint64_t bytes, const Result<AppendReply>& reply) {
  --in_flight_;
  in_flight_bytes_ -= bytes;
  if (!reply.ok()) {
    if (reply.status().code() == Code::kInvalidArgument) {
      // One line may be the culprit: smaller batches, and in the end a gap in its place.
      skip_line_ = n == 1;
      lines_max_ = std::max<uint64_t>(n / 2, 1);
    }
    must_rewind_ = true;
    OnFailure(reply.status(), &gate_);
    AfterFlight();
    return;
  }
  const uint64_t now = BoottimeNanoseconds();
  const uint64_t before = events_.acknowledged();
  durable_ = std::max(durable_, std::min(reply->durable, reply->committed));
  credit_bytes_ = reply->credit_bytes;
  if (reply->expect != 0) {
    // It lacks lines before these: overtaken on the way, or the coordinator was restored.
    must_rewind_ = true;
    expect_ = expect_ == 0 ? reply->expect : std::min(expect_, reply->expect);
  } else if (reply->committed > before) {
    events_.Acknowledge(reply->committed);
  }
  if (events_.acknowledged() > before) {
    gate_.failures = 0;
    rewinds_ = 0;
    if (expect_ <= events_.acknowledged()) expect_ = 0;
    skip_line_ = false;
    lines_max_ = EventTail::kLinesMax;
  }
  uint64_t wait_ns = uint64_t{reply->retry_after_ms} * kMs;
  if (credit_bytes_ == 0) wait_ns = std::max(wait_ns, kGatherNs);
  if (wait_ns > 0) gate_.retry_at_ns = std::max(gate_.retry_at_ns, now + wait_ns);
  unsent_since_ns_ = events_.unsent_bytes() > 0 ? now : 0;
  AfterFlight();
}

void Upload::AfterFlight() {
  if (in_flight_ == 0 && (must_rewind_ || events_.has_unacknowledged())) {
    if (expect_ != 0 && expect_ <= events_.acknowledged()) events_.Acknowledge(expect_ - 1);
    events_.Rewind();
    must_rewind_ = false;
    expect_ = 0;
    // Once at once: calls overtake each other. Again and again must not become a tight loop.
    if (rewinds_ > 0) {
      const uint64_t at = BoottimeNanoseconds() + context_->jitter(ResendSpanNs(rewinds_));
      gate_.retry_at_ns = std::max(gate_.retry_at_ns, at);
    }
    ++rewinds_;
  }
  // With a backlog at once, else what gathers in the next second.
  if (ended_ || events_.unsent_bytes() >= EventTail::kBytesMax / 2) SendEvents();
}

void Upload::SendOutput(bool is_stderr) {
  Output& output = is_stderr ? err_ : out_;
  if (!context_->registered || output.in_flight || output.gate.refused ||
      BoottimeNanoseconds() < output.gate.retry_at_ns) {
    return;
  }
  const std::optional<LogTail::Chunk> chunk = output.tail.Next();
  if (!chunk) return;
  output.in_flight = true;
  context_->client->AppendLog(
      stream_, is_stderr, chunk->offset, chunk->data,
      [weak = weak_from_this(), is_stderr,
       end_offset = chunk->offset + chunk->data.size()](const Result<AppendReply>& reply) {
        if (const auto self = weak.lock()) self->OnOutput(is_stderr, end_offset, reply);
      });
}

void Upload::OnOutput(bool is_stderr, uint64_t end_offset, const Result<AppendReply>& reply) {
  Output& output = is_stderr ? err_ : out_;
  output.in_flight = false;
  if (!reply.ok()) {
    OnFailure(reply.status(), &output.gate);
    if (ended_) SendEvents();
    return;
  }
  output.gate.failures = 0;
  output.gate.rejections = 0;
  // Less than was sent: the coordinator knows less than we thought and gets it again.
  output.tail.Acknowledge(reply->committed);
  if (reply->committed < end_offset || reply->retry_after_ms > 0) {
    output.gate.retry_at_ns =
        BoottimeNanoseconds() + std::max<uint64_t>(reply->retry_after_ms, 200) * kMs;
  }
  SendOutput(is_stderr);
  if (ended_) SendEvents();
}

}  // namespace switchyard::agent
