#pragma once

#include <string>

#include "client/output/value.h"

namespace switchyard::client {

// Block style for members, flow style for lists of scalars; text is quoted where a bare word would
// read as something else. Ends in a newline unless empty. `indent`: columns before each line.
std::string ToYaml(const Value& value, int indent = 0);

}  // namespace switchyard::client
