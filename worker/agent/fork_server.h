#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file.h"
#include "common/base/status.h"
#include "worker/agent/agent_state_end.h"

// A single-threaded process that starts trainers: gRPC does not support fork in a process that has
// threads. It dies with the agent; trainers do not.
namespace switchyard::agent {

struct SpawnRequest {
  uint64_t id = 0;
  // The attempt directory: working folder, attempt.lock, pid.json, stdout.log, stderr.log.
  std::string directory;
  std::vector<std::string> argv;  // argv[0] is a path
  std::vector<std::string> env;   // NAME=VALUE, laid over the fork server's own
  std::vector<uint32_t> cores;    // the trainer may run on these alone; empty: on all
};

struct ForkEvent {
  enum class Kind : uint8_t { kSpawned, kFailed, kExited };
  Kind kind = Kind::kSpawned;
  uint64_t id = 0;
  pid_t pid = 0;
  UniqueFd pidfd;     // kSpawned
  std::string error;  // kFailed: the trainer was never executed
  WaitStatus wait;    // kExited
};

// The agent's end. Loop thread only.
class ForkServer {
 public:
  // Takes forkserver.lock in `state_dir` (waits 5 s for an old fork server, then kills it together
  // with children that have not executed their trainer yet) and forks. The calling process must
  // have one thread. Once it returns, every spawn ever requested has reached exec or never will.
  static Result<std::unique_ptr<ForkServer>> Start(const std::string& state_dir);

  // Readable: Receive has something. Writable matters while `has_backlog`.
  int fd() const { return socket_.get(); }
  // Queues and sends as far as the socket takes it. kInvalidArgument: over 128 KiB.
  Status Spawn(const SpawnRequest& request);
  void Flush();
  bool has_backlog() const { return !backlog_.empty(); }
  // What has arrived, without waiting. kUnavailable: the fork server is gone.
  Result<std::vector<ForkEvent>> Receive();

 private:
  explicit ForkServer(UniqueFd socket) : socket_(std::move(socket)) {}

  UniqueFd socket_;
  std::deque<std::string> backlog_;
};

// Field 22 of /proc/PID/stat: start in clock ticks since boot; none when there is no such process.
std::optional<uint64_t> ProcessStartTicks(pid_t pid);
// /proc/sys/kernel/random/boot_id.
std::string BootId();

}  // namespace switchyard::agent
