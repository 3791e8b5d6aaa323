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

std::string DefaultDataDir() {
  const char* state = std::getenv("XDG_STATE_HOME");
  if (state != nullptr && *state != '\0') return StrCat(state, "/switchyard/coordinator");
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return {};
  return StrCat(home, "/.local/state/switchyard/coordinator");
}

Status Lay(const std::string& key, const std::string& value, Config* config) {
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
  } else {
    const std::string nearest =
        NearestWord(key, {"data_dir", "socket", "insecure_loopback", "metrics"});
    return InvalidArgument(StrCat("'", EscapeForTerminal(key), "' is not a setting",
                                  nearest.empty() ? "" : StrCat("; nearest: ", nearest)));
  }
  return OkStatus();
}

}  // namespace

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
      const Status status = Lay(entry.first.Scalar(), entry.second.Scalar(), config);
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
  return OkStatus();
}

}  // namespace switchyard::app
