#include "worker/agent/agent_state_upload.h"

#include <gtest/gtest.h>

#include <vector>

namespace switchyard::agent {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

class Lines final : public LineSource {
 public:
  uint64_t acknowledged() const override { return acked_; }
  bool has_unacknowledged() const override { return sent_ > acked_; }
  void Acknowledge(uint64_t seq) override {
    const bool goes_back = seq < acked_;
    acked_ = seq;
    if (goes_back || sent_ < acked_) sent_ = acked_;
  }
  void Rewind() override { sent_ = acked_; }
  void Give(uint64_t lines) { sent_ += lines; }
  uint64_t sent() const { return sent_; }

 private:
  uint64_t acked_ = 0;
  uint64_t sent_ = 0;
};

class StreamWindowTest : public ::testing::Test {
 protected:
  StreamWindow::Batch Send(uint64_t lines) {
    lines_.Give(lines);
    return window_.OnSent(100 * lines);
  }
  bool Answer(const StreamWindow::Batch& batch, uint64_t committed, uint64_t durable = 0) {
    return window_.OnAnswer(batch, {.committed = committed, .durable = durable}, kSecond);
  }

  Lines lines_;
  std::vector<uint64_t> spans_;
  StreamWindow window_{&lines_, [this](uint64_t span) {
                         spans_.push_back(span);
                         return span;
                       }};
};

TEST_F(StreamWindowTest, CountsWhatIsInFlight) {
  const auto first = Send(2);
  const auto second = Send(3);
  EXPECT_EQ(window_.in_flight(), 2u);
  EXPECT_EQ(window_.in_flight_bytes(), 500u);
  EXPECT_TRUE(Answer(first, 2));
  EXPECT_EQ(window_.in_flight_bytes(), 300u);
  EXPECT_TRUE(Answer(second, 5));
  EXPECT_EQ(window_.in_flight(), 0u);
  EXPECT_EQ(lines_.acknowledged(), 5u);
  EXPECT_TRUE(window_.IsOpen(kSecond));
}

// The coordinator lacks lines: they are given out again when nothing is in flight any more, once at
// once and then ever more slowly.
TEST_F(StreamWindowTest, RewindsWhenAllAnswersAreThere) {
  const auto first = Send(2);
  const auto second = Send(2);
  EXPECT_FALSE(window_.OnAnswer(second, {.committed = 0, .expect = 1}, kSecond));
  EXPECT_FALSE(window_.IsOpen(kSecond)) << "what is sent now comes before the answers";
  EXPECT_TRUE(Answer(first, 2));
  EXPECT_TRUE(window_.IsOpen(kSecond));
  EXPECT_EQ(lines_.sent(), 2u);
  EXPECT_EQ(spans_.size(), 0u);
  EXPECT_FALSE(window_.OnAnswer(Send(2), {.committed = 2, .expect = 3}, kSecond));
  EXPECT_EQ(spans_.size(), 1u);
  EXPECT_FALSE(window_.IsOpen(kSecond));
}

// A wish for lines that comes after they were stored and became durable does not bring them back:
// their segment may be gone.
TEST_F(StreamWindowTest, RewindsNotBehindWhatIsDurable) {
  const auto overtaken = Send(2);
  const auto first = Send(2);
  const auto second = Send(2);
  EXPECT_TRUE(Answer(first, 4, /*durable=*/3));
  EXPECT_TRUE(Answer(second, 6, /*durable=*/3));
  EXPECT_FALSE(window_.OnAnswer(overtaken, {.committed = 0, .expect = 1}, kSecond));
  EXPECT_EQ(lines_.acknowledged(), 3u);
  EXPECT_EQ(lines_.sent(), 3u);
}

// A refusal, an acknowledgement and a failure that were on their way when the coordinator was
// restored say nothing about the one that is there now: everything that is not durable is sent.
TEST_F(StreamWindowTest, HearsNothingFromBeforeARestore) {
  EXPECT_TRUE(Answer(Send(2), 2, /*durable=*/1));
  const auto refused = Send(1);
  const auto stored = Send(1);
  const auto failed = Send(1);
  window_.Resend(kSecond);
  EXPECT_EQ(window_.in_flight(), 0u);
  EXPECT_EQ(lines_.acknowledged(), 1u);
  EXPECT_EQ(lines_.sent(), 1u);
  window_.OnRefusal(refused, kSecond);
  EXPECT_FALSE(window_.is_refused());
  EXPECT_FALSE(Answer(stored, 4, /*durable=*/4));
  EXPECT_EQ(lines_.acknowledged(), 1u);
  EXPECT_EQ(window_.durable(), 1u);
  window_.OnFailure(failed, kSecond);
  EXPECT_TRUE(window_.IsOpen(kSecond));
  EXPECT_TRUE(Answer(Send(4), 5, /*durable=*/1));
  EXPECT_EQ(lines_.acknowledged(), 5u);
}

// A refusal of the present coordinator holds until the next restore.
TEST_F(StreamWindowTest, SendsNoMoreAfterARefusal) {
  window_.OnRefusal(Send(2), kSecond);
  window_.Reset();
  EXPECT_TRUE(window_.is_refused());
  EXPECT_FALSE(window_.IsOpen(1000 * kSecond));
  window_.Resend(kSecond);
  EXPECT_TRUE(window_.IsOpen(kSecond));
}

// Failures wait longer and longer; a registration tries again at once.
TEST_F(StreamWindowTest, BacksOff) {
  window_.OnFailure(Send(2), kSecond);
  EXPECT_EQ(lines_.sent(), 0u);
  EXPECT_FALSE(window_.IsOpen(kSecond));
  window_.Reset();
  EXPECT_TRUE(window_.IsOpen(kSecond));
  window_.OnFailure(Send(2), kSecond);
  window_.OnFailure(Send(2), kSecond);
  ASSERT_GE(spans_.size(), 3u);
  EXPECT_LT(spans_[0], spans_.back());
}

// A watermark that survives a restore is never above what is stored.
TEST_F(StreamWindowTest, BoundsTheDurableWatermark) {
  EXPECT_TRUE(Answer(Send(2), 2, /*durable=*/9));
  EXPECT_EQ(window_.durable(), 2u);
}

}  // namespace
}  // namespace switchyard::agent
