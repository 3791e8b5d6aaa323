#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "worker/agent/coordinator_client.h"

namespace switchyard::agent {

// Registration and heartbeats: one in flight at a time, a newer one for news, and a registration
// anew after a full jitter when there is no contact. Loop thread only.
class Contact {
 public:
  struct Hooks {
    // Sent with each heartbeat, but for what this class knows itself.
    std::function<HeartbeatOut()> observe;
    // A reply; true: it brought something new.
    std::function<bool(HeartbeatIn)> on_desired;
    // Registered with a coordinator of this generation, or the contact is lost.
    std::function<void(uint32_t generation)> on_registered;
    std::function<void()> on_lost;
    std::function<uint64_t(uint64_t span)> jitter;  // uniform in [0, span]
  };
  Contact(CoordinatorClient* client, Registration self, Hooks hooks);

  // What is due: a registration or a heartbeat.
  void Poll(uint64_t now_ns);
  // CLOCK_BOOTTIME at which Poll has something to do; UINT64_MAX: not before an answer.
  uint64_t NextNs() const;
  // The observed set has changed: the next Poll tells it.
  void WantHeartbeat() { heartbeat_wanted_ = true; }
  // (generation, boot) of the coordinator, as kept on disk.
  void SetSeen(uint32_t generation, uint32_t boot);

  bool is_registered() const { return registered_; }
  double clock_offset_seconds() const { return clock_offset_seconds_; }

 private:
  void Register();
  void Lose(const Status& why, uint64_t now_ns);
  void SendHeartbeat(uint64_t now_ns);
  void OnReply(Result<HeartbeatIn> reply, uint64_t sent_ns, uint64_t serial);

  CoordinatorClient* const client_;
  Registration self_;
  const Hooks hooks_;

  bool registered_ = false;
  bool registering_ = false;
  uint64_t registration_ = 0;  // raised with each: replies to older ones count no more
  std::string nonce_;
  uint64_t hb_seq_ = 0;
  uint32_t heartbeat_ms_ = 5000;
  uint32_t workers_ = 1;
  int in_flight_ = 0;
  uint64_t sent_ns_ = 0;
  uint64_t due_ns_ = 0;
  bool heartbeat_wanted_ = false;
  uint64_t register_at_ns_ = 0;
  uint32_t failures_ = 0;
  bool was_down_ = false;
  double clock_offset_seconds_ = 0;
};

}  // namespace switchyard::agent
