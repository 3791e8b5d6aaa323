#include "server/app/config.h"

#include <sys/un.h>
#include <yaml-cpp/yaml.h>

#include <cstdlib>

#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::app {
namespace {

constexpr uint64_t kFileBytesMax = 64 << 10;
constexpr int kDefaultPort = 7443;
using scheduler::kLeaseMin;
using scheduler::kLeaseTimeMax;
using scheduler::kReplaceMin;

std::string DefaultDataDir() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return StrCat(state, "/switchyard/coordinator");
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return StrCat(home, "/.local/state/switchyard/coordinator");
}

// Where a setting of the leases is kept; null: it is no such setting.
Milliseconds* LeaseTime(const std::string& key, scheduler::LeasePolicy* leases) {
  if (key == "resilient_lease") return &leases->resilient.lease;
  if (key == "resilient_replace") return &leases->resilient.replace;
  if (key == "exclusive_lease") return &leases->exclusive.lease;
  if (key == "exclusive_replace") return &leases->exclusive.replace;
  return nullptr;
}

// Protocol 5. A `resilient` attempt may be replaced while its trainer is still there: it is fenced.
Status CheckLeases(const scheduler::LeasePolicy& leases) {
  const auto check = [](const char* key, Milliseconds value, Milliseconds least, const char* why) {
    if (value >= least) return OkStatus();
    return InvalidArgument(StrCat(key, " of ", value.count() / 1000, " s is too short: at least ",
                                  (least.count() + 999) / 1000, " s, ", why));
  };
  constexpr const char* kTwo = "two heartbeat periods";
  constexpr const char* kFour = "four heartbeat periods";
  SWITCHYARD_RETURN_IF_ERROR(check("resilient_lease", leases.resilient.lease, kLeaseMin, kTwo));
  SWITCHYARD_RETURN_IF_ERROR(
      check("resilient_replace", leases.resilient.replace, kReplaceMin, kFour));
  SWITCHYARD_RETURN_IF_ERROR(check("exclusive_lease", leases.exclusive.lease, kLeaseMin, kTwo));
  return check("exclusive_replace", leases.exclusive.replace,
               scheduler::SafeReplaceAfter(leases.exclusive.lease),
               "or a second attempt could start before the trainer of the first has ended");
}

}  // namespace

Status SetConfig(const std::string& key, const std::string& value, Config* config) {
  if (key == "data_dir") {
    config->data_dir = value;
  } else if (key == "socket") {
    config->socket = value;
  } else if (key == "metrics") {
    config->metrics = value;
  } else if (key == "insecure_loopback") {
    if (value == "true") {
      config->insecure_loopback = kDefaultPort;
    } else if (value == "false") {
      config->insecure_loopback.reset();
    } else {
      const auto port = ParseInt64(value);
      if (!port.has_value() || *port < 0 || *port > 65535) {
        return InvalidArgument(StrCat("insecure_loopback '", value, "' is not a port"));
      }
      config->insecure_loopback = static_cast<int>(*port);
    }
  } else if (Milliseconds* const time = LeaseTime(key, &config->leases)) {
    const auto seconds = ParseInt64(value);
    if (!seconds.has_value() || *seconds < 0 || *seconds > kLeaseTimeMax.count() / 1000) {
      return InvalidArgument(StrCat(key, " '", EscapeForTerminal(value),
                                    "' is not a whole number of seconds up to ",
                                    kLeaseTimeMax.count() / 1000));
    }
    *time = Milliseconds(*seconds * 1000);
  } else {
    const std::string nearest =
        NearestWord(key, {"data_dir", "socket", "insecure_loopback", "metrics", "resilient_lease",
                          "resilient_replace", "exclusive_lease", "exclusive_replace"});
    return InvalidArgument(StrCat("'", EscapeForTerminal(key), "' is not a setting",
                                  nearest.empty() ? "" : StrCat("; nearest: ", nearest)));
  }
  return OkStatus();
}

Status ReadConfigFile(const std::string& path, Config* config) {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileBytesMax));
  // yaml-cpp reports by exceptions; none of them leaves this function.
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return OkStatus();
    if (!root.IsMap()) return InvalidArgument(StrCat(path, ": not a map of settings"));
    for (const auto& entry : root) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) {
        return InvalidArgument(
            StrCat(path, ":", entry.first.Mark().line + 1, ": a setting has one plain value"));
      }
      const Status status = SetConfig(entry.first.Scalar(), entry.second.Scalar(), config);
      if (!status.ok()) {
        return InvalidArgument(
            StrCat(path, ":", entry.first.Mark().line + 1, ": ", status.message()));
      }
    }
  } catch (const YAML::Exception& error) {
    return InvalidArgument(StrCat(path, ": ", error.what()));
  }
  return OkStatus();
}

Status FinishConfig(Config* config) {
  if (config->data_dir.empty()) config->data_dir = DefaultDataDir();
  if (config->data_dir.empty()) {
    return InvalidArgument(
        "no data directory: give --data-dir (neither XDG_STATE_HOME nor HOME "
        "is set)");
  }
  if (config->socket.empty()) config->socket = StrCat(config->data_dir, "/switchyard.sock");
  constexpr size_t kPathMax = sizeof(sockaddr_un{}.sun_path) - 1;
  if (config->socket.size() > kPathMax) {
    return InvalidArgument(StrCat("the socket's path has ", config->socket.size(),
                                  " bytes, at most ", kPathMax, " are possible: ", config->socket,
                                  " (give --socket)"));
  }
  return CheckLeases(config->leases);
}

}  // namespace switchyard::app
