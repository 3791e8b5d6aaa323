#pragma once

#include <memory>

#include "common/base/status.h"

namespace switchyard::model {
class HfCheckpoint;
}
namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::trainer {

// Lays the model of `init.hf` into `run`, which had its defaults filled in and was validated
// before; what `model` says on top of it may change only what keeps every tensor: top_k, losses,
// dispatch, capacity, dropout. Null, and `run` unchanged, without `init.hf`. kInvalidArgument with
// the field; errors of reading the folder as HfCheckpoint::Open.
Result<std::unique_ptr<model::HfCheckpoint>> ResolveInitialModel(v1::RunSpec* run);

}  // namespace switchyard::trainer
