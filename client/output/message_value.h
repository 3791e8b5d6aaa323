#pragma once

#include "client/output/value.h"

namespace google::protobuf {
class Message;
}

namespace switchyard::client {

// Fields in field order; in specs those that are set, in answers all scalars, so that scripts find
// a key whatever its value. Named as in the proto and in sweep files: enumerators in
// lower case without their prefix, keyed lists (domains, grid axes) as members by id, values of a
// grid as written.
Value FromMessage(const google::protobuf::Message& message);

}  // namespace switchyard::client
