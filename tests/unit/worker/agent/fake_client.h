#pragma once

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "worker/agent/coordinator_client.h"

namespace switchyard::agent {

// Keeps calls until a test answers them, in any order.
class FakeClient final : public CoordinatorClient {
 public:
  struct AppendCall {
    events::BatchBuilder::Blob blob;
    Callback<AppendReply> done;
  };
  struct LogCall {
    bool is_stderr = false;
    uint64_t offset = 0;
    std::string data;
    Callback<AppendReply> done;
  };
  struct HeartbeatCall {
    HeartbeatOut heartbeat;
    uint32_t deadline_ms = 0;
    Callback<HeartbeatIn> done;
  };

  void Register(const Registration&, Callback<Registered> done) override {
    registrations.push_back(std::move(done));
  }
  void Heartbeat(const HeartbeatOut& heartbeat, uint32_t deadline_ms,
                 Callback<HeartbeatIn> done) override {
    heartbeats.push_back({heartbeat, deadline_ms, std::move(done)});
  }
  void Append(const StreamId&, const events::BatchBuilder::Blob& blob, uint32_t,
              Callback<AppendReply> done) override {
    appends.push_back({blob, std::move(done)});
  }
  void AppendLog(const StreamId&, bool is_stderr, uint64_t offset, const std::string& data,
                 Callback<AppendReply> done) override {
    logs.push_back({is_stderr, offset, data, std::move(done)});
  }
  void Stop() override {}

  template <typename Call>
  static Call Take(std::deque<Call>& calls, size_t index = 0) {
    Call call = std::move(calls.at(index));
    calls.erase(calls.begin() + static_cast<std::ptrdiff_t>(index));
    return call;
  }

  std::deque<Callback<Registered>> registrations;
  std::deque<HeartbeatCall> heartbeats;
  std::deque<AppendCall> appends;
  std::deque<LogCall> logs;
};

}  // namespace switchyard::agent
