#pragma once

#include <string>

namespace switchyard::v1 {
class DataSpec;
class RunSpec;
enum RunKind : int;
}  // namespace switchyard::v1

namespace switchyard::spec {

// What a run's identity is made of (canonical.h, RunKey): the canonical RunSpec, seed and numerics
// class included. A checkpoint that it starts from or reads counts as (step, digest): neither the
// name of the run nor the word for the checkpoint is part of it.

// Lower-case hex SHA-256 of the data as described: what a digest that a trainer saw is kept under.
// A stated digest is part of the description.
std::string DataKey(const v1::DataSpec& data);

// State of the newest run with the identity that a new sweep wants.
enum class PriorState {
  kNone,
  kLive,  // not terminal
  kSucceeded,
  kFailedByGuard,
  kStoppedEarly,
  kCancelled,
  kQuarantined,
  kFailed,
};

struct Prior {
  PriorState state = PriorState::kNone;
  bool has_checkpoint = false;
  // The digest of the data that it saw is the one last reported for this description.
  bool is_data_current = true;
};

enum class Reuse {
  kReused,  // its results are the new sweep's
  kShared,  // both sweeps wait for it; cancelled when none wants it
  kNewRun,
  kNewRunFromCheckpoint,  // goes on from its last checkpoint
};

// What the prior run means for a new sweep. A rerun asks for new runs whatever there is.
Reuse ReuseOf(const Prior& prior, v1::RunKind kind);

}  // namespace switchyard::spec
