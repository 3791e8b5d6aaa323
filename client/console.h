#pragma once

#include <cstddef>
#include <functional>
#include <ostream>

namespace switchyard::client {

struct TerminalSize {
  size_t columns = 80;
  size_t rows = 24;
};

// Where a verb writes. One thread only.
struct Console {
  std::ostream* out = nullptr;
  std::ostream* err = nullptr;
  bool out_is_terminal = false;
  bool has_color = false;
  // Asked anew for every frame: windows are resized.
  std::function<TerminalSize()> size;
  // Waits; a signal (a resized window) may end it early.
  std::function<void(int milliseconds)> sleep;

  // Width that tables are cut to; 0 (no cutting) when the output is not a terminal.
  size_t table_width() const { return out_is_terminal ? size().columns : 0; }
};

// Standard output and error of this process. Colours: on a terminal, unless NO_COLOR is set.
Console ProcessConsole();

}  // namespace switchyard::client
