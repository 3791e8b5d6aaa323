#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/agent/coordinator_client.h"

namespace switchyard::agent {

struct AgentOptions {
  std::string server;  // as ResolveServer gives it
  std::string state_dir;
  std::string host;
  std::string pool = "default";
  std::vector<std::string> labels;
  std::vector<SlotInfo> slots;
  uint32_t cores_per_slot = 1;
  // Cores that this process may use; each trainer is bound to those of its slots. Empty: not bound.
  std::vector<uint32_t> cores;
  std::string checkpoint_dir;
  std::string trainer;  // path of the program
  std::string metrics;  // HOST:PORT of /metrics on loopback; empty: none
  // SIGTERM drains the worker instead of leaving its trainers running.
  bool drains_on_term = false;
  uint32_t drain_grace_ms = 60'000;
};

}  // namespace switchyard::agent
