#include "worker/agent/agent_state_end.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/guard.h"
#include "common/base/strings.h"

namespace switchyard::agent {
namespace {

constexpr int kInternal = 70;
constexpr int kStopped = 75;
constexpr int kFenced = 76;
constexpr int kSigKill = 9;
constexpr int kSigTerm = 15;

std::string Show(const WaitStatus& wait) {
  return wait.signalled ? StrCat("signal ", wait.value) : StrCat("exit status ", wait.value);
}

}  // namespace

std::string CutText(std::string text, size_t bytes_max) {
  constexpr std::string_view kEllipsis = " ...";
  if (text.size() <= bytes_max) return text;
  size_t cut = bytes_max - std::min(bytes_max, kEllipsis.size());
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) --cut;
  text.resize(cut);
  return text.append(kEllipsis);
}

std::string ClassOfExitCode(int code) {
  switch (code) {
    case 64:
      return "spec";
    case 65:
      return "data";
    case 69:
      return "infra";
    case kInternal:
      return "internal";
    case 71:
      return "oom";
    case kStopped:
      return "stopped";
    case kFenced:
      return "fenced";
    case 77:
      return "guard";
    default:
      return "user";
  }
}

namespace {

AttemptEnd Judge(const EndFacts& facts) {
  AttemptEnd end{.last_seq = facts.last_seq};
  if (facts.wait && facts.wait->signalled) end.signal = facts.wait->value;
  if (facts.wait && !facts.wait->signalled) end.exit_code = facts.wait->value;

  const bool is_finished = facts.record && facts.record->complete;
  if (!facts.agent_reason.empty() && !is_finished) {
    end.end_class = "infra";
    end.evidence = "agent";
    end.reason = facts.agent_reason;
    return end;
  }
  if (facts.record) {
    const FoundRecord& record = *facts.record;
    end.exit_code = record.code;
    end.complete = record.complete && record.code == 0;
    end.final_step = record.final_step;
    end.reason = record.reason;
    end.evidence = "exit.json";
    end.end_class = record.code == 0 ? "ok" : ClassOfExitCode(record.code);
    const bool differs = facts.wait && (facts.wait->signalled || facts.wait->value != record.code);
    if (differs) end.evidence = StrCat("exit.json, exit_mismatch: ", Show(*facts.wait));
    if (record.code == 0 && !facts.record_fault.empty()) {
      // What the trainer should have noticed itself.
      end.exit_code = kInternal;
      end.end_class = "internal";
      end.complete = false;
      end.evidence = "event file";
      end.reason = facts.record_fault;
    }
    return end;
  }
  if (facts.host_restarted) {
    end.end_class = "infra";
    end.evidence = "boot id";
    end.reason = "the host was restarted";
    return end;
  }
  if (facts.oom_evidence) {
    end.end_class = "oom";
    end.evidence = "oom_kill counter";
    return end;
  }
  const std::string broken = facts.record_is_broken ? ", exit.json is not valid" : "";
  if (facts.wait) {
    end.evidence = StrCat(Show(*facts.wait), broken);
    if (facts.wait->signalled) {
      // A stop that ended in SIGTERM or SIGKILL is a stop, not a crash.
      const bool by_stop =
          facts.wait->value == kSigTerm || (facts.wait->value == kSigKill && facts.stop_requested);
      if (by_stop) {
        end.exit_code = kStopped;
        end.end_class = "stopped";
      } else if (facts.lease_past) {
        end.end_class = "fenced";
      } else {
        end.end_class = "unknown";
      }
    } else if (facts.wait->value == 0) {
      end.end_class = "unknown";
      end.complete = SWITCHYARD_GUARD(X20, false);
      end.reason = "exit status 0 without exit.json is no success";
    } else {
      end.end_class = ClassOfExitCode(facts.wait->value);
    }
    return end;
  }
  if (facts.lease_past) {
    end.end_class = "fenced";
    end.evidence = StrCat("lease page", broken);
    return end;
  }
  end.end_class = "unknown";
  end.evidence = StrCat("process gone", broken);
  return end;
}

}  // namespace

AttemptEnd JudgeEnd(const EndFacts& facts) {
  AttemptEnd end = Judge(facts);
  end.reason = CutText(std::move(end.reason), kReasonBytesMax);
  return end;
}

}  // namespace switchyard::agent
