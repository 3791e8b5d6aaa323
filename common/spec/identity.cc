#include "common/spec/identity.h"

#include "common/base/sha256.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {

std::string DataKey(const v1::DataSpec& data) { return Sha256Hex(CanonicalEncoding(data)); }

Reuse ReuseOf(const Prior& prior, v1::RunKind kind) {
  switch (prior.state) {
    case PriorState::kNone:
      return Reuse::kNewRun;
    case PriorState::kLive:
      return prior.is_data_current ? Reuse::kShared : Reuse::kNewRun;
    case PriorState::kSucceeded:
    case PriorState::kFailedByGuard:
      // A timing is of its machine and its hour.
      if (kind == v1::RUN_KIND_BENCHMARK || !prior.is_data_current) return Reuse::kNewRun;
      return Reuse::kReused;
    case PriorState::kStoppedEarly:
    case PriorState::kCancelled:
    case PriorState::kQuarantined:
    case PriorState::kFailed:
      // A checkpoint of other data would join two halves of different runs.
      return prior.has_checkpoint && prior.is_data_current ? Reuse::kNewRunFromCheckpoint
                                                           : Reuse::kNewRun;
  }
  return Reuse::kNewRun;
}

}  // namespace switchyard::spec
