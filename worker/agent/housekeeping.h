#pragma once

#include <cstdint>
#include <string>

#include "common/base/file.h"
#include "worker/agent/coordinator_client.h"

// What an agent does for its disk beside running trainers.
namespace switchyard::agent {

// Free space that is kept out of reach of new work: the smaller of 5 % and 2 GiB.
uint64_t DiskReserveBytes(uint64_t size_bytes);

// `<checkpoint_dir>/<run>/<epoch>-<step>` of a checkpoint that lies in the store `store`.
// kInvalidArgument: a run id that is no UUID; kFailedPrecondition: another store.
Result<std::string> CheckpointPath(const std::string& checkpoint_dir, const std::string& store,
                                   const CheckpointRef& ref);

// Reads `store.id` of a checkpoint folder, making both where there are none: workers that see the
// same folder know the same store.
Result<std::string> OpenCheckpointStore(const std::string& checkpoint_dir);

// File systems over a network lose locks and syncs: kFailedPrecondition when `path` lies on one.
Status RefuseNetworkFileSystem(const std::string& path);

// Kills by the kernel for lack of memory in this process's cgroup so far; 0 where it is not told.
uint64_t ReadOomKills();

}  // namespace switchyard::agent
