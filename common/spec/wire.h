#pragma once

#include <vector>

#include "common/spec/fault.h"

namespace google::protobuf {
class Message;
}

namespace switchyard::spec {

// Faults for what a message from the wire can hold and a document may not: numbers without an enum
// value, non-finite doubles, fields of another schema.
void CheckWire(const google::protobuf::Message& message, std::vector<Fault>* faults);

}  // namespace switchyard::spec
