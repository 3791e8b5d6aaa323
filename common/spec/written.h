#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/document.h"

namespace google::protobuf {
class Descriptor;
class EnumDescriptor;
class EnumValueDescriptor;
class FieldDescriptor;
class OneofDescriptor;
}  // namespace google::protobuf

// How the messages of spec.proto are written in a sweep file.
namespace switchyard::spec {

// How a field is called in a file: its name, without `_ms` or `_bytes` where it takes a unit.
std::string WrittenName(const google::protobuf::FieldDescriptor* field);
// Null for unknown names and for fields that Switchyard fills in itself.
const google::protobuf::FieldDescriptor* FindWritten(const google::protobuf::Descriptor* descriptor,
                                                     std::string_view name);
std::vector<std::string> WrittenNames(const google::protobuf::Descriptor* descriptor);

// Neither filled in by Switchyard nor written elsewhere in the file.
bool IsWritable(const google::protobuf::FieldDescriptor* field);
// A number of milliseconds, written with its unit.
bool IsDuration(const google::protobuf::FieldDescriptor* field);
// The one real oneof of a message; null where there is none.
const google::protobuf::OneofDescriptor* CaseOf(const google::protobuf::Descriptor* descriptor);
// The field that names an element of a keyed list; null where `list` is none.
const google::protobuf::FieldDescriptor* IdField(const google::protobuf::FieldDescriptor* list);
// The field that a body of that form stands for, in place of a mapping of the message's fields;
// null where there is none.
const google::protobuf::FieldDescriptor* BodyField(const google::protobuf::Descriptor* message,
                                                   Node::Kind form);
// The fields of `[low, high]` and `[mean, sd]`, by index 0 and 1; null where there are none.
const google::protobuf::FieldDescriptor* PairField(const google::protobuf::Descriptor* message,
                                                   int index);
// The field whose own fields are written beside those of `message`; null where there is none.
const google::protobuf::FieldDescriptor* Beside(const google::protobuf::Descriptor* message);

// "rmsnorm" of NORM_KIND_RMSNORM.
std::string ShortName(const google::protobuf::EnumValueDescriptor* value);
// By its short name; null for another word.
const google::protobuf::EnumValueDescriptor* FindEnumValue(
    const google::protobuf::EnumDescriptor* type, std::string_view word);

}  // namespace switchyard::spec
