#pragma once

#include "common/base/status.h"
#include "server/api/core.h"
#include "server/store/store.h"

namespace switchyard::v1 {
class ExtendSweepRequest;
class ForkRunRequest;
class SweepSpec;
}  // namespace switchyard::v1

// Documents made from what is stored: checkpoints by name, extensions, forks.
namespace switchyard::api {

// Fills in run, step and digest of each `base.init.run`, by id or SWEEP/NUMBER and `checkpoint`
// (best, last or a step). kNotFound: no such run. kFailedPrecondition: no such checkpoint is kept.
Status ResolveInit(store::ReadStore& store, v1::SweepSpec* spec);

// kInvalidArgument: what would not only add, one fault a line.
Result<ExtendInput> PlanExtend(store::ReadStore& store, const v1::ExtendSweepRequest& request);

// The sweep of one run that a fork is. kFailedPrecondition: no checkpoint of that step is kept.
Status PlanFork(store::ReadStore& store, const v1::ForkRunRequest& request, v1::SweepSpec* spec);

}  // namespace switchyard::api
