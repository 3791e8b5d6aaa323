#include "worker/agent/hardware.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>

#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

constexpr uint64_t kSmallFile = 64 << 10;

// Cores of a cgroup v2 quota, rounded up; 0: no quota.
uint32_t QuotaCores() {
  const Result<std::string> group = ReadFile("/proc/self/cgroup", kSmallFile);
  if (!group.ok()) return 0;
  for (const std::string& line : StrSplit(*group, '\n')) {
    if (!line.starts_with("0::")) continue;
    for (const std::string& path : {line.substr(3), std::string("/")}) {
      const Result<std::string> text =
          ReadFile(StrCat("/sys/fs/cgroup", path, "/cpu.max"), kSmallFile);
      if (!text.ok()) continue;
      const std::vector<std::string> parts = StrSplit(StripWhitespace(*text), ' ');
      const auto quota = ParseUint64(parts[0]);
      const auto period = parts.size() > 1 ? ParseUint64(parts[1]) : std::nullopt;
      if (quota && period && *period > 0) {
        return static_cast<uint32_t>(std::max<uint64_t>(1, (*quota + *period - 1) / *period));
      }
    }
  }
  return 0;
}

std::string FieldOf(const std::string& text, std::string_view name) {
  for (const std::string& line : StrSplit(text, '\n')) {
    if (line.starts_with(name)) {
      return std::string(StripWhitespace(std::string_view(line).substr(name.size())));
    }
  }
  return "";
}

}  // namespace

std::vector<uint32_t> UsableCores() {
  std::vector<uint32_t> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (uint32_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

Hardware DetectHardware() {
  Hardware hardware;
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) hardware.host = name.data();
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    hardware.cores = static_cast<uint32_t>(std::max(1, CPU_COUNT(&set)));
  }
  if (const uint32_t quota = QuotaCores(); quota > 0) {
    hardware.cores = std::min(hardware.cores, quota);
  }
  const auto page_bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  hardware.memory_bytes = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * page_bytes;
  const std::string folder = "/proc/driver/nvidia/gpus";
  const Result<std::vector<std::string>> gpus = ListDirectory(folder);
  if (!gpus.ok()) return hardware;
  for (const std::string& gpu : *gpus) {
    const Result<std::string> text = ReadFile(StrCat(folder, "/", gpu, "/information"), kSmallFile);
    if (!text.ok()) continue;
    hardware.gpus.push_back(
        {.uuid = FieldOf(*text, "GPU UUID:"), .name = FieldOf(*text, "Model:")});
  }
  return hardware;
}

std::string ToJson(const Hardware& hardware) {
  nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
  for (const Gpu& gpu : hardware.gpus) gpus.push_back({{"uuid", gpu.uuid}, {"name", gpu.name}});
  const nlohmann::ordered_json object = {{"host", hardware.host},
                                         {"cores", hardware.cores},
                                         {"memory_bytes", hardware.memory_bytes},
                                         {"gpus", gpus}};
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace switchyard::agent
