#include "common/base/failpoint.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "common/base/strings.h"

namespace switchyard {
namespace {

struct Armed {
  std::string name;
  std::string line;
  std::atomic<uint64_t> left = 1;
  uint64_t sleep_ms = 0;  // 0: killed
};

std::deque<Armed> ReadEnvironment() {
  std::deque<Armed> out;
  const char* text = std::getenv("SWITCHYARD_FAILPOINT");
  if (text == nullptr) return out;
  for (std::string entry : StrSplit(text, ',')) {
    Armed& armed = out.emplace_back();
    if (const size_t equals = entry.find('='); equals != std::string::npos) {
      armed.sleep_ms = ParseUint64(entry.substr(equals + 1)).value_or(0);
      entry.resize(equals);
    }
    if (const size_t colon = entry.find(':'); colon != std::string::npos) {
      armed.left = ParseUint64(entry.substr(colon + 1)).value_or(1);
      entry.resize(colon);
    }
    armed.name = entry;
    armed.line = StrCat("failpoint ", entry, "\n");
  }
  return out;
}

void Sleep(uint64_t ms) {
  timespec left{.tv_sec = static_cast<time_t>(ms / 1000),
                .tv_nsec = static_cast<long>(ms % 1000) * 1'000'000};
  while (nanosleep(&left, &left) != 0) continue;
}

}  // namespace

void PassFailpoint(const char* name) {
  static std::deque<Armed> points = ReadEnvironment();
  for (Armed& armed : points) {
    if (std::strcmp(armed.name.c_str(), name) != 0 || armed.left.fetch_sub(1) != 1) continue;
    // Nothing is done about a standard error that cannot be written.
    if (write(STDERR_FILENO, armed.line.data(), armed.line.size()) >= 0) fsync(STDERR_FILENO);
    if (armed.sleep_ms > 0) {
      Sleep(armed.sleep_ms);
      continue;
    }
    kill(getpid(), SIGKILL);
    while (true) pause();
  }
}

}  // namespace switchyard
