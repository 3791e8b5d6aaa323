#pragma once

#include <cstdint>
#include <optional>
#include <string>

// How an attempt ended, judged from what was found. Pure.
namespace switchyard::agent {

struct AttemptEnd {
  int exit_code = 0;
  int signal = 0;
  std::string end_class;  // ok spec data infra internal oom stopped fenced guard user unknown
  bool complete = false;
  std::string evidence;  // what the judgement rests on, for a person
  std::string reason;
  uint64_t last_seq = 0;
  uint64_t final_step = 0;
  std::string output_tail;  // user errors: the last bytes of stdout and stderr

  bool operator==(const AttemptEnd&) const = default;
};

// exit.json, where it is valid.
struct FoundRecord {
  int code = 0;
  std::string end_class;
  bool complete = false;
  uint64_t final_step = 0;
  std::string reason;
};

// How the process ended, where its parent could wait for it.
struct WaitStatus {
  bool signalled = false;
  int value = 0;  // exit status or signal number
};

struct EndFacts {
  // Known to the agent itself: never executed, slot_busy, hang.
  std::string agent_reason;
  std::optional<FoundRecord> record;
  bool record_is_broken = false;
  // The host has started anew since the launch.
  bool host_restarted = false;
  bool oom_evidence = false;
  std::optional<WaitStatus> wait;
  // The lease or the stop deadline had passed when the process was found gone.
  bool lease_past = false;
  // A stop was under way, or the agent sent the signal itself.
  bool stop_requested = false;
  uint64_t last_seq = 0;
  // What the event file holds that no run may record (a step that goes back); empty: nothing.
  std::string record_fault;
};

// A trainer's reason is foreign text: what is longer is cut, since a report that is too long for
// the coordinator would cost the worker its contact.
inline constexpr size_t kReasonBytesMax = 2000;
// Of stdout and stderr together, with a newline between them.
inline constexpr size_t kOutputTailBytesMax = 8 << 10;

// Evidence in the order of protocol 13.2, classes of 13.3. `reason` has at most kReasonBytesMax.
AttemptEnd JudgeEnd(const EndFacts& facts);

// The first bytes of `text`, at most `bytes_max` with an ellipsis, cut between characters.
std::string CutText(std::string text, size_t bytes_max);

// Class of an exit status (protocol 13.3).
std::string ClassOfExitCode(int code);

}  // namespace switchyard::agent
