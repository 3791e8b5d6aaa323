#pragma once

// How often the ends of a connection ping each other: one place, since a coordinator cuts off who
// pings more often than it allows, and an idle worker would reconnect without end.
namespace switchyard {

// Clients ping so often, also without calls.
inline constexpr int kKeepaliveMs = 30'000;
// An unanswered ping ends the connection.
inline constexpr int kKeepaliveTimeoutMs = 10'000;
// The coordinator takes pings that are so far apart, also without calls.
inline constexpr int kPingIntervalMinMs = 20'000;
// Timers are late on a loaded machine: a ping that was late must not make the next one early.
static_assert(kKeepaliveMs - kKeepaliveTimeoutMs >= kPingIntervalMinMs);

}  // namespace switchyard
