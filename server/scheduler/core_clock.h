#pragma once

#include "common/base/clock.h"
#include "common/base/guard.h"

namespace switchyard::scheduler {

// The core's sense of time, from steady times of the loop that drives it. Its own lateness expires
// nobody: the core's clock stands still meanwhile, and no expiry is evaluated while heartbeats wait
// or soon after a start.
class CoreClock {
 public:
  static constexpr Milliseconds kTickPeriod{500};
  static constexpr Milliseconds kLate{1000};  // beyond a period, a pass is late
  // Time alone makes some runs placeable: one that has waited long enough for its checkpoint's
  // store. No event says so, hence a placement pass so often at least.
  static constexpr Milliseconds kReviewPeriod{10000};

  explicit CoreClock(Milliseconds restart_grace) : restart_grace_(restart_grace) {}

  // A state was loaded.
  void StateLoaded(Timestamp steady) { loaded_at_ = steady; }
  // The loop begins.
  void Start(Timestamp steady) { last_pass_ = last_tick_ = last_review_ = steady; }
  // With each pass of the loop, before anything is decided.
  void Pass(Timestamp steady) {
    const Milliseconds lag = steady - last_pass_ - kTickPeriod;
    if (!SWITCHYARD_GUARD(X26, lag <= kLate)) late_ += lag;
    last_pass_ = steady;
  }
  Timestamp Now(Timestamp steady) const { return steady + -late_; }
  // How long the loop may sleep before the next tick.
  Milliseconds UntilTick(Timestamp steady) const {
    const Milliseconds left = last_tick_ + kTickPeriod - steady;
    return left < Milliseconds(0) ? Milliseconds(0) : left > kTickPeriod ? kTickPeriod : left;
  }
  // True: a tick is to be run now. `has_heartbeats`: some are queued, and come first.
  bool TakeTick(Timestamp steady, bool has_heartbeats) {
    if (steady - last_tick_ < kTickPeriod) return false;
    if (!SWITCHYARD_GUARD(X26, !has_heartbeats)) return false;
    last_tick_ = steady;
    return true;
  }
  // True: a placement pass is due although nothing has happened.
  bool TakeReview(Timestamp steady) {
    if (steady - last_review_ < kReviewPeriod) return false;
    last_review_ = steady;
    return true;
  }
  bool MayExpire(Timestamp steady) const {
    return SWITCHYARD_GUARD(X01, steady - loaded_at_ >= restart_grace_);
  }

 private:
  Milliseconds restart_grace_;
  Milliseconds late_{0};
  Timestamp loaded_at_;
  Timestamp last_pass_;
  Timestamp last_tick_;
  Timestamp last_review_;
};

}  // namespace switchyard::scheduler
