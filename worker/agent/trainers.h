#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/base/file.h"
#include "common/base/status.h"
#include "common/events/lease_page.h"
#include "worker/agent/agent_metrics.h"
#include "worker/agent/agent_options.h"
#include "worker/agent/agent_state.h"
#include "worker/agent/fork_server.h"
#include "worker/agent/janitor.h"
#include "worker/agent/record_log.h"
#include "worker/agent/upload.h"

namespace switchyard::agent {

// An attempt whose directory is on this disk.
struct Attempt {
  std::string path;
  std::shared_ptr<Upload> upload;
  std::optional<events::LeaseWriter> lease;
  pid_t pid = 0;
  UniqueFd pidfd;
  uint64_t requested_ns = 0;
  bool killed = false;   // by us
  bool ended = false;    // no process, for good
  bool spooled = false;  // everything is acknowledged or refused, and said so
  uint64_t flush_at_ns = 0;
};

// The attempts' directories and processes: launching, adopting, stopping, and what their end was.
// Loop thread only.
class Trainers {
 public:
  struct Parts {
    const AgentOptions* options = nullptr;
    std::string worker_id;
    ForkServer* fork_server = nullptr;
    RecordLog* record_log = nullptr;
    AgentState* state = nullptr;
    AgentMetrics* metrics = nullptr;
    Janitor* janitor = nullptr;
    UploadContext* uploads = nullptr;
    // Reads of `fd` wake the loop with `tag`; and no longer.
    std::function<void(int fd, uint64_t tag)> watch;
    std::function<void(int fd)> unwatch;
  };
  // Tags of adopted trainers in the loop are `first_tag` + epoch.
  Trainers(Parts parts, uint64_t first_tag);

  // What an earlier agent left: every directory becomes a record again, none is ever launched.
  // Rewrites records.log.
  Status Recover();

  // The documents of attempts that may be launched soon.
  void KeepDocs(AttemptDocs docs);
  void ForgetDocs(AttemptKey key) { docs_.erase(key); }

  // Makes the directory. Empty, or why the attempt cannot be launched.
  std::string Prepare(const Actions::Prepare& prepare);
  Actions Spawn(AttemptKey key);
  // The attempt will never be executed.
  Actions FailLaunch(AttemptKey key, const std::string& error);
  // What the fork server said. kUnavailable: it is gone.
  Result<Actions> OnForkEvents();
  // An adopted trainer is gone.
  Actions OnAdoptedGone(uint64_t tag);

  void SetDeadline(const Actions::Lease& lease);
  void SetStop(const Actions::Stop& stop);
  void Signal(AttemptKey key, int number);
  // SIGKILL to its whole session.
  void Kill(AttemptKey key);
  // Removes the directory in idle time.
  void Drop(AttemptKey key);
  // Its lines are sent again, also when all of them had been acknowledged.
  void Resend(AttemptKey key);

  // Reads how far running trainers have come, and asks those with much unsent to record less.
  void ReadProgress(uint64_t now_ns);
  std::map<AttemptKey, Attempt>& attempts() { return attempts_; }

 private:
  Attempt& Add(const Record& record);
  Attempt* Find(AttemptKey key);
  Status RecoverOne(AttemptKey key, const StoredRecord& stored);
  Actions OnGone(AttemptKey key, std::optional<WaitStatus> wait);
  AttemptEnd Evaluate(Attempt& attempt, AttemptKey key, const std::string& launch_boot_id,
                      std::optional<WaitStatus> wait, const Record& record);
  void KillLeftovers(Attempt& attempt);

  const Parts parts_;
  const uint64_t first_tag_;
  const std::string boot_id_;
  const std::string root_;
  std::map<AttemptKey, Attempt> attempts_;
  std::map<AttemptKey, AttemptDocs> docs_;
  std::unordered_map<uint64_t, AttemptKey> spawns_;  // by id of the request
  uint64_t next_spawn_id_ = 1;
  uint64_t oom_kills_;
};

}  // namespace switchyard::agent
