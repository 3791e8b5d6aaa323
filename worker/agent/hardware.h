#pragma once

#include <cstdint>
#include <string>
#include <vector>

// What the host offers, from the kernel's files: no GPU library is loaded.
namespace switchyard::agent {

struct Gpu {
  std::string uuid;
  std::string name;
};

struct Hardware {
  std::string host;
  uint32_t cores = 1;  // that this process may use: affinity and cgroup quota
  uint64_t memory_bytes = 0;
  std::vector<Gpu> gpus;
};

Hardware DetectHardware();

// Numbers of the cores in this process's affinity.
std::vector<uint32_t> UsableCores();

// A JSON object for people and scripts.
std::string ToJson(const Hardware& hardware);

}  // namespace switchyard::agent
