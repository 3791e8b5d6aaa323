#include "client/outbox.h"

#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr int64_t kOutstandingSeconds = 3600;
constexpr uint64_t kEntryBytesMax = 64;

// The id in an entry that is still outstanding; empty: there is none.
std::string Outstanding(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return "";
  const int64_t age = UnixMilliseconds() / 1000 - info.st_mtim.tv_sec;
  if (age < 0 || age > kOutstandingSeconds) return "";
  const Result<std::string> text = ReadFile(path, kEntryBytesMax);
  if (!text.ok()) return "";
  const Result<Uuid> id = Uuid::Parse(StripWhitespace(*text));
  return id.ok() ? id->ToString() : "";
}

}  // namespace

Outbox::Ticket Outbox::Begin(std::string_view content) const {
  Ticket ticket{.request_id = NewUuidV7().ToString()};
  if (folder_.empty() || !MakeDirectories(folder_, 0700).ok()) return ticket;
  const std::string path = StrCat(folder_, "/", Sha256Hex(content));
  if (std::string id = Outstanding(path); !id.empty()) {
    return {.request_id = std::move(id), .is_repeated = true, .path = path};
  }
  if (WriteFileAtomically(path, ticket.request_id + "\n", 0600).ok()) ticket.path = path;
  return ticket;
}

void Outbox::Close(const Ticket& ticket) const {
  if (!ticket.path.empty()) unlink(ticket.path.c_str());
}

std::string Outbox::DefaultFolder(const std::function<const char*(const char*)>& getenv) {
  const auto variable = [&](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string state = variable("XDG_STATE_HOME");
  if (state.empty() && !variable("HOME").empty()) state = variable("HOME") + "/.local/state";
  return state.empty() ? "" : state + "/switchyard/outbox";
}

}  // namespace switchyard::client
