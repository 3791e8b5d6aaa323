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
constexpr uint64_t kCreditAtFirst = StreamWindow::kBatchesInFlight * EventTail::kBytesMax;
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
      window_(&events_, [context](uint64_t span) { return context->jitter(span); }),
      credit_bytes_(kCreditAtFirst) {}

void Upload::End() {
  ended_ = true;
  events_.Finish();
  out_.tail.Finish();
  err_.tail.Finish();
}

void Upload::Reset() {
  window_.Reset();
  for (Output* output : {&out_, &err_}) {
    output->retry_at_ns = 0;
    output->failures = 0;
    output->rejections = 0;
  }
}

void Upload::Resend() {
  window_.Resend(BoottimeNanoseconds());
  ++resends_;
  for (Output* output : {&out_, &err_}) {
    // What was sealed there may be open again; its first answer says from where on output is
    // missing there.
    output->refused = false;
    output->tail.Acknowledge(0);
  }
  if (ended_) SendEvents();
}

void Upload::Tick(uint64_t now_ns) {
  if (unsent_since_ns_ == 0 && events_.has_grown()) unsent_since_ns_ = now_ns;
  out_.tail.Trim();
  err_.tail.Trim();
}

void Upload::Flush() {
  if (!context_->registered) return;
  SendOutput(false);
  SendOutput(true);
  SendEvents();
}

bool Upload::is_done() {
  const auto is_sent = [](Output& output) {
    return !output.in_flight && (output.refused || output.tail.is_done());
  };
  return ended_ && window_.in_flight() == 0 && (window_.is_refused() || events_.is_done()) &&
         is_sent(out_) && is_sent(err_);
}

uint64_t Upload::unsent_bytes() {
  return events_.unsent_bytes() + out_.tail.unsent_bytes() + err_.tail.unsent_bytes();
}

bool Upload::IsOutputLeft(Output& output) {
  return !output.refused && output.rejections < kOutputRejectionsMax && !output.tail.is_done();
}

void Upload::SendEvents() {
  const uint64_t now = BoottimeNanoseconds();
  if (!context_->registered || !window_.IsOpen(now)) return;
  while (SendBatch(now)) {
  }
}

bool Upload::SendBatch(uint64_t now_ns) {
  // One batch alone goes out even without credits: its answer says when there are some again.
  const bool is_alone = window_.in_flight() == 0;
  const bool is_careful = skip_line_ || lines_max_ < EventTail::kLinesMax;
  if (!is_alone && (is_careful || window_.in_flight() >= StreamWindow::kBatchesInFlight ||
                    window_.in_flight_bytes() + EventTail::kBytesMax > credit_bytes_)) {
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
  const StreamWindow::Batch batch = window_.OnSent(blob->bytes.size());
  const uint64_t age_ns = unsent_since_ns_ == 0 ? 0 : now_ns - unsent_since_ns_;
  context_->client->Append(
      stream_, *blob, static_cast<uint32_t>(age_ns / kMs),
      [weak = weak_from_this(), n = blob->n, batch](const Result<AppendReply>& reply) {
        if (const auto self = weak.lock()) self->OnAppend(n, batch, reply);
      });
  return true;
}

bool Upload::IsRefusal(const Status& status) {
  const std::string name = AttemptName(stream_.key);
  switch (status.code()) {
    case Code::kFailedPrecondition:
    case Code::kNotFound:
    case Code::kPermissionDenied:
      // Sealed, or of another cluster's life: the file stays for people, nothing more is sent.
      LogWarning("the coordinator takes no more of attempt ", name, ": ", status.message());
      return true;
    case Code::kInvalidArgument:
      LogWarning("the coordinator refused a batch of attempt ", name, ": ", status.message());
      return false;
    default:
      return false;
  }
}

void Upload::OnAppend(uint64_t n, const StreamWindow::Batch& batch,
                      const Result<AppendReply>& reply) {
  const uint64_t now = BoottimeNanoseconds();
  if (!window_.IsCurrent(batch)) return;
  if (reply.ok()) {
    credit_bytes_ = reply->credit_bytes;
    uint64_t wait_ns = uint64_t{reply->retry_after_ms} * kMs;
    if (credit_bytes_ == 0) wait_ns = std::max(wait_ns, kGatherNs);
    if (wait_ns > 0) window_.WaitUntil(now + wait_ns);
    const StreamWindow::Answer answer{
        .committed = reply->committed, .expect = reply->expect, .durable = reply->durable};
    if (window_.OnAnswer(batch, answer, now)) {
      skip_line_ = false;
      lines_max_ = EventTail::kLinesMax;
    }
    unsent_since_ns_ = events_.unsent_bytes() > 0 ? now : 0;
  } else if (IsRefusal(reply.status())) {
    window_.OnRefusal(batch, now);
  } else {
    if (reply.status().code() == Code::kInvalidArgument) {
      // One line may be the culprit: smaller batches, and in the end a gap in its place.
      skip_line_ = n == 1;
      lines_max_ = std::max<uint64_t>(n / 2, 1);
    }
    window_.OnFailure(batch, now);
  }
  // With a backlog at once, else what gathers in the next second.
  if (ended_ || events_.unsent_bytes() >= EventTail::kBytesMax / 2) SendEvents();
}

void Upload::SendOutput(bool is_stderr) {
  Output& output = is_stderr ? err_ : out_;
  if (!context_->registered || output.in_flight || output.refused ||
      BoottimeNanoseconds() < output.retry_at_ns) {
    return;
  }
  const std::optional<LogTail::Chunk> chunk = output.tail.Next();
  if (!chunk) return;
  output.in_flight = true;
  context_->client->AppendLog(
      stream_, is_stderr, chunk->offset, chunk->data,
      [weak = weak_from_this(), is_stderr, end_offset = chunk->offset + chunk->data.size(),
       resends = resends_](const Result<AppendReply>& reply) {
        if (const auto self = weak.lock()) self->OnOutput(is_stderr, end_offset, resends, reply);
      });
}

void Upload::OnOutput(bool is_stderr, uint64_t end_offset, uint64_t resends,
                      const Result<AppendReply>& reply) {
  Output& output = is_stderr ? err_ : out_;
  output.in_flight = false;
  // Of a coordinator from before a restore: it says nothing about the one that is there now.
  if (resends != resends_) return SendOutput(is_stderr);
  if (!reply.ok()) {
    output.refused = IsRefusal(reply.status());
    output.retry_at_ns = BoottimeNanoseconds() + context_->jitter(ResendSpanNs(output.failures));
    ++output.failures;
    if (!IsOutage(reply.status().code())) ++output.rejections;
    if (ended_) SendEvents();
    return;
  }
  output.failures = output.rejections = 0;
  // Less than was sent: the coordinator knows less than we thought and gets it again.
  output.tail.Acknowledge(reply->committed);
  if (reply->committed < end_offset || reply->retry_after_ms > 0) {
    output.retry_at_ns =
        BoottimeNanoseconds() + std::max<uint64_t>(reply->retry_after_ms, 200) * kMs;
  }
  SendOutput(is_stderr);
  if (ended_) SendEvents();
}

}  // namespace switchyard::agent
