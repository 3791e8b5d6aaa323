#include "worker/agent/contact.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/agent/agent_state_contact.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kMs = 1'000'000;  // nanoseconds
constexpr uint64_t kQuickReplyNs = 50 * kMs;
constexpr uint64_t kIdlePollNs = 200 * kMs;
constexpr int kHeartbeatsInFlight = 2;
// Beyond the time that a reply may be parked.
constexpr uint32_t kHeartbeatSlackMs = 10'000;

}  // namespace

Contact::Contact(CoordinatorClient* client, Registration self, Hooks hooks)
    : client_(client), self_(std::move(self)), hooks_(std::move(hooks)) {}

void Contact::SetSeen(uint32_t generation, uint32_t boot) {
  self_.seen_generation = generation;
  self_.seen_boot = boot;
}

void Contact::Poll(uint64_t now_ns) {
  if (!registered_) {
    if (!registering_ && now_ns >= register_at_ns_) Register();
    return;
  }
  const uint64_t period = uint64_t{heartbeat_ms_} * kMs;
  const bool is_due =
      heartbeat_wanted_ || (in_flight_ == 0 && now_ns >= due_ns_) || now_ns >= sent_ns_ + period;
  if (is_due && in_flight_ < kHeartbeatsInFlight) SendHeartbeat(now_ns);
}

uint64_t Contact::NextNs() const {
  if (registered_) return in_flight_ == 0 ? due_ns_ : UINT64_MAX;
  return registering_ ? UINT64_MAX : register_at_ns_;
}

void Contact::Register() {
  registering_ = true;
  const uint64_t serial = ++registration_;
  client_->Register(self_, [this, serial](const Result<Registered>& reply) {
    if (serial != registration_) return;
    registering_ = false;
    if (!reply.ok()) {
      Lose(reply.status(), BoottimeNanoseconds());
      return;
    }
    registered_ = true;
    failures_ = 0;
    was_down_ = false;
    nonce_ = reply->nonce;
    if (reply->heartbeat_ms > 0) heartbeat_ms_ = reply->heartbeat_ms;
    in_flight_ = 0;
    heartbeat_wanted_ = true;
    LogInfo("registered as ", self_.worker_id, " with the coordinator");
    hooks_.on_registered(reply->generation);
  });
}

// The first new try comes after a full jitter that spreads a fleet, later ones ever more slowly.
void Contact::Lose(const Status& why, uint64_t now_ns) {
  if (!was_down_) LogWarning("no contact with the coordinator: ", why.ToString());
  was_down_ = true;
  registered_ = false;
  registering_ = false;
  ++registration_;
  register_at_ns_ = now_ns + hooks_.jitter(ReconnectSpanNs(failures_, workers_));
  ++failures_;
  hooks_.on_lost();
}

void Contact::SendHeartbeat(uint64_t now_ns) {
  HeartbeatOut out = hooks_.observe();
  out.worker_id = self_.worker_id;
  out.nonce = nonce_;
  out.incarnation = self_.incarnation;
  out.hb_seq = ++hb_seq_;
  out.sent_boottime_ns = now_ns;
  out.clock_offset_seconds = clock_offset_seconds_;
  ++in_flight_;
  heartbeat_wanted_ = false;
  sent_ns_ = now_ns;
  due_ns_ = now_ns + uint64_t{heartbeat_ms_} * kMs;
  client_->Heartbeat(out, 2 * heartbeat_ms_ + kHeartbeatSlackMs,
                     [this, now_ns, serial = registration_](Result<HeartbeatIn> reply) {
                       OnReply(std::move(reply), now_ns, serial);
                     });
}

void Contact::OnReply(Result<HeartbeatIn> reply, uint64_t sent_ns, uint64_t serial) {
  const uint64_t now = BoottimeNanoseconds();
  if (serial == registration_) --in_flight_;
  if (!reply.ok()) {
    // A newer heartbeat may have pushed this one out, which says nothing about the contact.
    const bool is_released = reply.status().code() == Code::kAborted && in_flight_ > 0;
    if (serial == registration_ && !is_released) Lose(reply.status(), now);
    return;
  }
  if (reply->heartbeat_ms > 0) heartbeat_ms_ = reply->heartbeat_ms;
  if (reply->workers > 0) workers_ = reply->workers;
  if (reply->sent_unix_ms != 0) {
    clock_offset_seconds_ = static_cast<double>(reply->sent_unix_ms - UnixMilliseconds()) / 1000.0;
  }
  const bool has_news = hooks_.on_desired(*std::move(reply));
  if (serial != registration_) return;
  // The next one is parked by the coordinator; one that answers at once without news is not asked
  // in a tight loop.
  due_ns_ = has_news || now - sent_ns >= kQuickReplyNs ? now : sent_ns + kIdlePollNs;
}

}  // namespace switchyard::agent
