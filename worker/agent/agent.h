#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "worker/agent/agent_options.h"
#include "worker/agent/fork_server.h"

namespace switchyard::agent {

// One worker: tells the coordinator what runs here, starts and stops trainers as it wants, sends
// their events and logs. One thread, driven by events; trainers outlive it.
class Agent {
 public:
  // The state directory must be locked by the caller, and SIGTERM, SIGINT, SIGHUP and SIGUSR1
  // blocked. Takes over trainers of an earlier agent.
  static Result<std::unique_ptr<Agent>> Start(AgentOptions options,
                                              std::unique_ptr<ForkServer> fork_server);
  ~Agent();

  enum class Outcome : uint8_t {
    kStopped,         // SIGTERM or SIGINT: trainers run on; or the worker was drained
    kForkServerLost,  // the process must execute itself anew
    kFailed,          // a write with an unknown outcome: the process must end
  };
  // SIGUSR1, and SIGTERM where the options say so, drain the worker: it ends when its attempts have
  // ended and all that they wrote is acknowledged, or when as much time again as they had is over.
  Outcome Run();

 private:
  struct Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard::agent
