#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker/agent/coordinator_client.h"
#include "worker/agent/fork_server.h"

namespace switchyard::agent {

struct AgentOptions {
  std::string server;  // as ResolveServer gives it
  std::string state_dir;
  std::string host;
  std::string pool = "default";
  std::vector<std::string> labels;
  std::vector<SlotInfo> slots;
  uint32_t cores_per_slot = 1;
  std::string checkpoint_dir;
  std::string trainer;  // path of the program
  std::string metrics;  // HOST:PORT of /metrics on loopback; empty: none
};

// One worker: tells the coordinator what runs here, starts and stops trainers as it wants, sends
// their events and logs. One thread, driven by events; trainers outlive it.
class Agent {
 public:
  // The state directory must be locked by the caller, and SIGTERM, SIGINT and SIGHUP blocked. Takes
  // over trainers of an earlier agent.
  static Result<std::unique_ptr<Agent>> Start(AgentOptions options,
                                              std::unique_ptr<ForkServer> fork_server);
  ~Agent();

  enum class Outcome : uint8_t {
    kStopped,         // SIGTERM or SIGINT: trainers run on
    kForkServerLost,  // the process must execute itself anew
    kFailed,          // a write with an unknown outcome: the process must end
  };
  Outcome Run();

 private:
  struct Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::agent
