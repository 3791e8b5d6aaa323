#include "worker/agent/contact.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/agent/fake_client.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

class ContactTest : public ::testing::Test {
 protected:
  ContactTest()
      : contact_(
            &client_, {.worker_id = "w", .incarnation = 3},
            {.observe = [] { return HeartbeatOut{}; },
             .on_desired =
                 [this](HeartbeatIn) {
                   ++replies_;
                   return true;
                 },
             .on_registered = [this](uint32_t generation) { generations_.push_back(generation); },
             .on_lost = [this] { ++losses_; },
             .jitter =
                 [this](uint64_t span) {
                   spans_.push_back(span);
                   return span;
                 }}) {}

  void Register() {
    contact_.Poll(now_);
    FakeClient::Take(client_.registrations)(
        Registered{.nonce = "n", .generation = 4, .heartbeat_ms = 5000});
    contact_.Poll(now_);
  }

  FakeClient client_;
  int replies_ = 0;
  std::vector<uint32_t> generations_;
  int losses_ = 0;
  std::vector<uint64_t> spans_;
  Contact contact_;
  uint64_t now_ = 1000 * kSecond;
};

// A heartbeat follows the registration at once, with its nonce and its own send time.
TEST_F(ContactTest, BeatsAfterTheRegistration) {
  Register();
  EXPECT_TRUE(contact_.is_registered());
  EXPECT_EQ(generations_, std::vector<uint32_t>{4});
  ASSERT_EQ(client_.heartbeats.size(), 1u);
  const HeartbeatOut& heartbeat = client_.heartbeats.front().heartbeat;
  EXPECT_EQ(heartbeat.nonce, "n");
  EXPECT_EQ(heartbeat.incarnation, 3u);
  EXPECT_EQ(heartbeat.hb_seq, 1u);
  EXPECT_EQ(heartbeat.sent_boottime_ns, now_);
  // GR1: a deadline that leaves room for a parked reply.
  EXPECT_GT(client_.heartbeats.front().deadline_ms, 5000u);
}

// One in flight; a second only for news, never a third.
TEST_F(ContactTest, KeepsFewHeartbeatsInFlight) {
  Register();
  contact_.Poll(now_ + kSecond);
  EXPECT_EQ(client_.heartbeats.size(), 1u);
  contact_.WantHeartbeat();
  contact_.Poll(now_ + kSecond);
  EXPECT_EQ(client_.heartbeats.size(), 2u);
  contact_.WantHeartbeat();
  contact_.Poll(now_ + 2 * kSecond);
  EXPECT_EQ(client_.heartbeats.size(), 2u);
}

// The one that a newer heartbeat pushed out is no loss of contact; a failure of the newest is.
TEST_F(ContactTest, TellsAPushedOutHeartbeatFromALoss) {
  Register();
  contact_.WantHeartbeat();
  contact_.Poll(now_);
  FakeClient::Take(client_.heartbeats).done(Aborted("a newer one came"));
  EXPECT_TRUE(contact_.is_registered());
  EXPECT_EQ(losses_, 0);
  FakeClient::Take(client_.heartbeats).done(Unavailable("gone"));
  EXPECT_FALSE(contact_.is_registered());
  EXPECT_EQ(losses_, 1);
}

// Tries come after a full jitter over spans that double, by the size of the fleet as told last.
TEST_F(ContactTest, ReconnectsEverMoreSlowly) {
  Register();
  FakeClient::Take(client_.heartbeats).done(HeartbeatIn{.heartbeat_ms = 5000, .workers = 900});
  EXPECT_EQ(replies_, 1);
  contact_.Poll(now_ + 10 * kSecond);
  FakeClient::Take(client_.heartbeats).done(Unavailable("gone"));
  for (int i = 0; i < 3; ++i) {
    contact_.Poll(contact_.NextNs() - 1);
    EXPECT_TRUE(client_.registrations.empty());
    contact_.Poll(contact_.NextNs());
    FakeClient::Take(client_.registrations)(Unavailable("gone"));
  }
  EXPECT_EQ(spans_, (std::vector<uint64_t>{3 * kSecond, 6 * kSecond, 12 * kSecond, 24 * kSecond}));
}

// A reply to a heartbeat of an earlier registration does not disturb the present one.
TEST_F(ContactTest, IgnoresFailuresOfAnEarlierRegistration) {
  Register();
  contact_.WantHeartbeat();
  contact_.Poll(now_);
  auto old = FakeClient::Take(client_.heartbeats);
  FakeClient::Take(client_.heartbeats).done(Unavailable("gone"));
  contact_.Poll(contact_.NextNs());
  FakeClient::Take(client_.registrations)(Registered{.nonce = "m"});
  old.done(Unavailable("late"));
  EXPECT_TRUE(contact_.is_registered());
}

}  // namespace
}  // namespace switchyard::agent
