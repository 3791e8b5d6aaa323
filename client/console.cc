#include "client/console.h"

#include <cstdlib>
#include <ctime>
#include <iostream>

#include <sys/ioctl.h>
#include <unistd.h>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

TerminalSize AskSize() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    return {.columns = size.ws_col, .rows = size.ws_row};
  }
  TerminalSize fallback;
  const char* columns = std::getenv("COLUMNS");
  if (columns != nullptr) {
    if (const auto parsed = ParseUint64(columns); parsed.has_value() && *parsed > 0) {
      fallback.columns = *parsed;
    }
  }
  return fallback;
}

}  // namespace

Console ProcessConsole() {
  Console console;
  console.out = &std::cout;
  console.err = &std::cerr;
  console.out_is_terminal = isatty(STDOUT_FILENO) == 1;
  const char* no_color = std::getenv("NO_COLOR");
  console.has_color = console.out_is_terminal && (no_color == nullptr || *no_color == '\0');
  console.size = AskSize;
  console.sleep = [](int milliseconds) {
    const timespec time{.tv_sec = milliseconds / 1000,
                        .tv_nsec = static_cast<long>(milliseconds % 1000) * 1'000'000};
    nanosleep(&time, nullptr);
  };
  return console;
}

}  // namespace switchyard::client
