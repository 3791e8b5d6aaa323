#pragma once

#include "common/base/status.h"

namespace switchyard::v1 {
class CompareRequest;
class CompareResponse;
class EstimatePowerRequest;
class EstimatePowerResponse;
}  // namespace switchyard::v1
namespace switchyard::store {
class ReadStore;
}

// ResultsService.Compare and ResultsService.EstimatePower.
namespace switchyard::api {

Status AnswerCompare(store::ReadStore& store, const v1::CompareRequest& request,
                     v1::CompareResponse* response);
Status AnswerPower(store::ReadStore& store, const v1::EstimatePowerRequest& request,
                   v1::EstimatePowerResponse* response);

}  // namespace switchyard::api
