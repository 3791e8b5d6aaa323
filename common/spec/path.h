#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/expression.h"

namespace google::protobuf {
class Message;
}

namespace switchyard::spec {

// What stands at a dotted path of a RunSpec or PolicySpec: numbers, texts, booleans; the name of a
// case for `.kind`, the short name of an enum value, a list as one text ("[0, 1]"). Absent where
// the path leads through what is not there, or to a whole message.
ExpressionValue ReadAt(const google::protobuf::Message& message, std::string_view path);

// True when something is set at `path`.
bool IsPresent(const google::protobuf::Message& message, std::string_view path);

// Empty where `path` can be a field of a RunSpec or a policy, or a quantity; else "nearest: ...".
// `others`: further names that are known.
std::string UnknownPathHint(std::string_view path, const std::vector<std::string>& others);

}  // namespace switchyard::spec
