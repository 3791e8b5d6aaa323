#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

// The machines of the agent (protocol 7.5 and 7.7) as tables: anything not listed is a bug of the
// core. Pure.
namespace switchyard::agent {

// A record, key (epoch, rank). NONE: there is none.
enum class RecordState : uint8_t { kNone, kLaunching, kRunning, kExited, kRefused };
inline constexpr std::array kRecordStates = {RecordState::kNone, RecordState::kLaunching,
                                             RecordState::kRunning, RecordState::kExited,
                                             RecordState::kRefused};

// A segment of an event file.
enum class SegmentState : uint8_t { kOpen, kSealed, kCommitted, kDurable, kDeleted };
inline constexpr std::array kSegmentStates = {SegmentState::kOpen, SegmentState::kSealed,
                                              SegmentState::kCommitted, SegmentState::kDurable,
                                              SegmentState::kDeleted};

template <typename State>
struct Transition {
  std::string_view id;
  State from;
  State to;
  std::string_view trigger;
};

std::span<const Transition<RecordState>> RecordTransitions();
std::span<const Transition<SegmentState>> SegmentTransitions();

bool IsAllowed(RecordState from, RecordState to);
bool IsAllowed(SegmentState from, SegmentState to);

// "NONE", "LAUNCHING", ...; "OPEN", "SEALED", ...
std::string_view Name(RecordState state);
std::string_view Name(SegmentState state);

}  // namespace switchyard::agent
