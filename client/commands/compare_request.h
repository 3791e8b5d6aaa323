#pragma once

#include <google/protobuf/repeated_ptr_field.h>

#include "client/commands/compare.h"
#include "common/base/status.h"

namespace switchyard::v1 {
class ArmFilter;
class CompareSpec;
}  // namespace switchyard::v1

namespace switchyard::client {

// kInvalidArgument names the option.
Status FillCompareSpec(const ArmsOptions& options, v1::CompareSpec* compare);
Status FillArms(const ArmsOptions& options,
                google::protobuf::RepeatedPtrField<v1::ArmFilter>* arms);

// Whether anything but the sweep is asked for.
bool HasQuestion(const ArmsOptions& options);

}  // namespace switchyard::client
