#include "worker/agent/server_address.h"

#include <cstdlib>
#include <vector>

#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string WithScheme(const std::string& address) {
  return address.starts_with("/") ? StrCat("unix:", address) : address;
}

}  // namespace

std::string DefaultStateRoot() {
  const std::string xdg = Variable("XDG_STATE_HOME");
  if (!xdg.empty()) return xdg + "/switchyard";
  const std::string home = Variable("HOME");
  return StrCat(home.empty() ? "/tmp" : home, "/.local/state/switchyard");
}

Result<std::string> ResolveServer(const std::string& given) {
  if (!given.empty()) return WithScheme(given);
  if (const std::string named = Variable("SWITCHYARD_SERVER"); !named.empty()) {
    return WithScheme(named);
  }
  const std::vector<std::string> sockets = {DefaultStateRoot() + "/coordinator/switchyard.sock",
                                            "/run/switchyard/switchyard.sock"};
  for (const std::string& socket : sockets) {
    if (FileExists(socket)) return StrCat("unix:", socket);
  }
  return NotFound(
      StrCat("no coordinator: --server and $SWITCHYARD_SERVER are not set, and there is "
             "no ",
             StrJoin(sockets, " and no ")));
}

}  // namespace switchyard::agent
