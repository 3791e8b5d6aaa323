#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/file.h"
#include "common/base/status.h"
#include "worker/agent/agent_state.h"

// The attempt directory and its process, from the agent's side (docs/attempt-directory.md).
namespace switchyard::agent {

// "<epoch>-<rank>".
std::string AttemptName(AttemptKey key);
std::optional<AttemptKey> ParseAttemptName(std::string_view name);

// Makes the folder with run.json and attempt.json, without a sync: after a host crash nothing runs.
// kAlreadyExists: there is such a folder.
Status CreateAttemptDir(const std::string& path, std::string_view run_json,
                        std::string_view attempt_json);

// pid.json. kNotFound: none, the trainer was never executed; kDataLoss: not such a file.
struct PidFile {
  pid_t pid = 0;
  uint64_t start_ticks = 0;
  std::string boot_id;
};
Result<PidFile> ReadPidFile(const std::string& path);

// run and ordinal as attempt.json names them, for a directory whose record was lost.
Result<Record> ReadAttemptRecord(const std::string& path, AttemptKey key);

// Whether attempt.json lets steps go back (telemetry.lenient_steps); no where it cannot be read.
bool ReadLenientSteps(const std::string& path);

// A pidfd of the process when pid, start time, boot and working folder all agree; kNotFound else.
Result<UniqueFd> AdoptProcess(const std::string& path, const PidFile& file,
                              const std::string& boot_id);

// Sends `signal` to the process behind a pidfd; one that is gone is no error.
void SignalProcess(int pidfd, int signal);
// SIGKILL to the process group and to every process of the session.
void KillSession(pid_t session);
// The trainer is gone but something of it lives: members of its group, or a holder of attempt.lock.
bool HasLeftovers(const std::string& path, pid_t session);

// At most the last `count` bytes of a regular file; empty where there is none.
std::string ReadLastBytes(const std::string& path, uint64_t count);

}  // namespace switchyard::agent
