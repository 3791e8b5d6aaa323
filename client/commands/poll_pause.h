#pragma once

#include <algorithm>

#include "client/commands/context.h"

namespace switchyard::client {

// The rest between two questions whether something has ended: 200 ms, then ever longer, up to 2 s.
class PollPause {
 public:
  explicit PollPause(const Context& context) : context_(context) {}

  void Rest() {
    context_.console.sleep(pause_ms_);
    pause_ms_ = std::min(pause_ms_ * 3 / 2, kMaxMs);
  }
  void Restart() { pause_ms_ = kFirstMs; }

 private:
  static constexpr int kFirstMs = 200;
  static constexpr int kMaxMs = 2000;

  const Context& context_;
  int pause_ms_ = kFirstMs;
};

}  // namespace switchyard::client
