#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "worker/data/batcher.h"
#include "worker/train/optimizer.h"

namespace switchyard::data {
class SafetensorsFile;
}
namespace switchyard::model {
class LanguageModel;
}

// Checkpoints: one folder `<epoch>-<step>` holding
//   model.safetensors  parameters and buffers by full name
//   state.safetensors  Adam moments and segment memory
//   state.json         step, cursor, counters
//   manifest.json      run, step, and size and SHA-256 of each of the others
// It is written aside, synced and renamed: a folder under its final name is whole, and its manifest
// ties all parts to one step of one run.
namespace switchyard::train {

// How the objective stands; goes on over attempts.
struct ObjectiveState {
  std::optional<double> best;  // finite values only
  uint64_t best_step = 0;
  std::optional<double> last;  // may be non-finite
  uint64_t last_step = 0;
};

// Everything but tensors that the next step depends on.
struct TrainProgress {
  uint64_t step = 0;  // updates done
  data::TrainCursor cursor;
  uint64_t tokens = 0;
  double data_wait_seconds = 0;
  uint64_t nonfinite_steps = 0;
  ObjectiveState objective;
  // The evaluation due at `step` has not run: the resumed attempt starts with it.
  bool owes_evaluation = false;
};

struct CheckpointContent {
  std::string run_key;
  TrainProgress progress;
  NamedTensors model;  // parameters and buffers, on the host
  NamedTensors state;  // Adam moments, on the host
  // On the host; may be empty: "memory.0", ..., and "memory.telemetry.<name>", what series of
  // routing depend on. All of it is state that a checkpoint of an older release may lack.
  NamedTensors memory;
};

struct CheckpointInfo {
  std::string path;
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::string digest;  // "sha256:<hex>" of manifest.json
  uint64_t bytes = 0;  // of all files
};

// kAlreadyExists: there is one of this epoch and step. kResourceExhausted: the disk is full. A
// failed call leaves nothing under the final name and removes what it wrote aside. `before_publish`
// is called between the last sync and the rename, where it is set.
Result<CheckpointInfo> WriteCheckpoint(const std::string& root, uint64_t epoch,
                                       const CheckpointContent& content,
                                       const std::function<void()>& before_publish = {});

// A checkpoint whose every file has the size and the hash of the manifest. Immutable.
struct Checkpoint {
  CheckpointInfo info;
  TrainProgress progress;
  std::unique_ptr<data::SafetensorsFile> model;
  std::unique_ptr<data::SafetensorsFile> state;

  ~Checkpoint();
};
// kNotFound: no manifest there. kDataLoss: a part is missing, changed or ill-formed.
// kFailedPrecondition: the checkpoint of another run than `run_key`, where that is not empty.
Result<std::unique_ptr<Checkpoint>> ReadCheckpoint(const std::string& path,
                                                   const std::string& run_key);

// The checkpoint of `step` in `folder`, another run's, that has this digest ("sha256:<hex>"): what
// a run begins with. kNotFound: there is none. Others as ReadCheckpoint.
Result<std::unique_ptr<Checkpoint>> FindCheckpoint(const std::string& folder, uint64_t step,
                                                   const std::string& digest);

// The live tensors of a model that a checkpoint holds: parameters, then buffers.
NamedTensors ModelTensors(const model::LanguageModel& model);

// Whether the file's tensors are the live ones, by full name, dtype and shape. Tensors of the file
// whose names start with `ignored_prefix` (when not empty) are left out. kDataLoss with the first
// name and both shapes on any gap, surplus or difference.
Status MatchTensors(const data::SafetensorsFile& file, const NamedTensors& live,
                    const std::string& ignored_prefix = "");
// Copies what the file has into live tensors; a parameter that one of the globs `fresh` names may
// be missing there or have another shape, and stays as it is. kDataLoss as MatchTensors; what stays
// is named in `notices`.
Status CopyWeights(const data::SafetensorsFile& file, const NamedTensors& live,
                   const std::vector<std::string>& fresh, std::vector<std::string>* notices);
// Copies the file's values into live tensors that match it.
void CopyTensors(const data::SafetensorsFile& file, const NamedTensors& live);
// The tensors named "memory.<i>" in order; empty when there are none.
std::vector<at::Tensor> ReadMemory(const data::SafetensorsFile& file);
// Those named `prefix`<name>, without the prefix.
NamedTensors ReadTensors(const data::SafetensorsFile& file, const std::string& prefix);

// Whole checkpoints of `run_key` in `root`, by rising (epoch, step), the order they were written
// in: an attempt that fell back to an earlier step must not lose its own to older, further ones.
// Damaged ones and those of other runs are left out. Reads manifests only.
struct StoredCheckpoint {
  std::string path;
  uint64_t epoch = 0;
  uint64_t step = 0;
  std::optional<double> objective;  // newest value known when it was cut
};
std::vector<StoredCheckpoint> ListCheckpoints(const std::string& root, const std::string& run_key);

}  // namespace switchyard::train
