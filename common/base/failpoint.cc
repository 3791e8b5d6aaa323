#include "common/base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/base/strings.h"

namespace switchyard {
namespace {

struct Armed {
  std::string name;
  std::atomic<uint64_t> left = 1;

  Armed() {
    const char* text = std::getenv("SWITCHYARD_FAILPOINT");
    if (text == nullptr) return;
    name = text;
    if (const size_t colon = name.find(':'); colon != std::string::npos) {
      left = ParseUint64(name.substr(colon + 1)).value_or(1);
      name.resize(colon);
    }
  }
};

}  // namespace

void PassFailpoint(const char* name) {
  static Armed armed;
  if (armed.name.empty() || armed.name != name || armed.left.fetch_sub(1) != 1) return;
  const std::string line = StrCat("failpoint ", name, "\n");
  // Nothing is done about a standard error that cannot be written: the process ends here.
  if (write(STDERR_FILENO, line.data(), line.size()) >= 0) fsync(STDERR_FILENO);
  kill(getpid(), SIGKILL);
  while (true) pause();
}

}  // namespace switchyard
