#include "worker/agent/agent_state_upload.h"

#include "worker/agent/agent_state_contact.h"

namespace switchyard::agent {

StreamWindow::Batch StreamWindow::OnSent(uint64_t bytes) {
  ++in_flight_;
  in_flight_bytes_ += bytes;
  return {.bytes = bytes, .life = life_};
}

bool StreamWindow::Land(const Batch& batch) {
  if (!IsCurrent(batch)) return false;
  --in_flight_;
  in_flight_bytes_ -= batch.bytes;
  return true;
}

bool StreamWindow::OnAnswer(const Batch& batch, const Answer& answer, uint64_t now_ns) {
  if (!Land(batch)) return false;
  const uint64_t before = lines_->acknowledged();
  durable_ = std::max(durable_, std::min(answer.durable, answer.committed));
  if (answer.expect != 0) {
    // Overtaken on the way, or lost with a restore.
    must_rewind_ = true;
    expect_ = expect_ == 0 ? answer.expect : std::min(expect_, answer.expect);
  } else if (answer.committed > before) {
    lines_->Acknowledge(answer.committed);
  }
  const bool has_moved = lines_->acknowledged() > before;
  if (has_moved) {
    failures_ = rewinds_ = 0;
    if (expect_ <= lines_->acknowledged()) expect_ = 0;
  }
  RewindWhenLanded(now_ns);
  return has_moved;
}

void StreamWindow::OnFailure(const Batch& batch, uint64_t now_ns) {
  if (!Land(batch)) return;
  must_rewind_ = true;
  retry_at_ns_ = now_ns + jitter_(ResendSpanNs(failures_));
  ++failures_;
  RewindWhenLanded(now_ns);
}

void StreamWindow::OnRefusal(const Batch& batch, uint64_t now_ns) {
  if (!Land(batch)) return;
  must_rewind_ = true;
  refused_ = true;
  RewindWhenLanded(now_ns);
}

void StreamWindow::Resend(uint64_t now_ns) {
  // A refusal or an acknowledgement that is still on its way is the lost coordinator's.
  ++life_;
  in_flight_ = in_flight_bytes_ = 0;
  refused_ = false;
  must_rewind_ = true;
  expect_ = durable_ + 1;
  rewinds_ = 0;
  RewindWhenLanded(now_ns);
}

void StreamWindow::Reset() {
  retry_at_ns_ = 0;
  failures_ = 0;
}

void StreamWindow::RewindWhenLanded(uint64_t now_ns) {
  if (in_flight_ > 0 || (!must_rewind_ && !lines_->has_unacknowledged())) return;
  // What is durable was stored, and may be deleted here: a wish for it is an old one.
  const uint64_t from = std::max(expect_, durable_ + 1);
  if (expect_ != 0 && from <= lines_->acknowledged()) lines_->Acknowledge(from - 1);
  lines_->Rewind();
  must_rewind_ = false;
  expect_ = 0;
  // Once at once: calls overtake each other. Again and again must not become a tight loop.
  if (rewinds_ > 0) WaitUntil(now_ns + jitter_(ResendSpanNs(rewinds_)));
  ++rewinds_;
}

}  // namespace switchyard::agent
