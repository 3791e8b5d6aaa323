#pragma once

#include <memory>
#include <string>

namespace switchyard::client {

// A coordinator for tests: the services over a unix socket in a temporary folder, answering from a
// small world set up by the members of State (fake_server.cc). Thread-safe.
class FakeServer {
 public:
  struct Script {
    // Sweep states given by GetSweep, one a call, the last one for ever: "active", "completed".
    int polls_until_done = 0;
    bool has_failed_run = false;
    bool is_lost_to_infrastructure = false;
    // gRPC status code of every call; 0: answer.
    int refuse_with = 0;
    // Milliseconds before every answer.
    int delay_ms = 0;
    bool sweep_exists = false;  // SubmitSweep says the document was there
    bool has_name_with_escape = false;
    bool lacks_output = false;  // ReadLog never comes to the end
    // Put into every text that comes from outside: names, values of axes, reasons, notes.
    std::string hostile_text;
  };

  explicit FakeServer(const Script& script);
  ~FakeServer();

  const std::string& address() const;  // "unix:/…"
  // Text form of the last request of a method, "" when it was not called.
  std::string LastRequest(const std::string& method) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::client
