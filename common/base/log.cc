#include "common/base/log.h"

#include <unistd.h>

#include "common/base/clock.h"

namespace switchyard {

void LogLine(LogLevel level, std::string_view message) {
  static constexpr char kLetters[] = {'I', 'W', 'E'};
  char time[32];
  const std::string line =
      StrCat(FormatUnixMilliseconds(UnixMilliseconds(), time), " ",
             kLetters[static_cast<int>(level)], " ", EscapeForTerminal(message), "\n");
  // Nothing sensible can be done when standard error is gone.
  [[maybe_unused]] const ssize_t put = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace switchyard
