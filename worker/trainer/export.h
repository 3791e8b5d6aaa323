#pragma once

#include <cstdint>
#include <string>

#include "common/base/status.h"

namespace switchyard::trainer {

struct ExportOptions {
  std::string spec_path;        // run.json of the run
  std::string checkpoint_path;  // folder of one checkpoint
  std::string folder;           // to be made
  bool is_fused = false;
  uint64_t shard_bytes = uint64_t{5} << 30;
};

// Writes the model of a checkpoint in the form of Hugging Face. kInvalidArgument: the run is broken
// or no family describes its model; kFailedPrecondition: the checkpoint of another run; kDataLoss;
// kAlreadyExists.
Status ExportCheckpoint(const ExportOptions& options);

}  // namespace switchyard::trainer
