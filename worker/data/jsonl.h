#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

namespace switchyard::data {

// The `text` member of a JSON object. kInvalidArgument with the reason: not JSON, not an object, no
// `text` or two of them, `text` not a string. Depth and other members do not matter.
Result<std::string> TextOfRow(std::string_view row);

}  // namespace switchyard::data
