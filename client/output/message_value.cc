#include "client/output/message_value.h"

#include <string>
#include <string_view>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string EnumText(const EnumValueDescriptor& value) {
  // RUN_STATE_ACTIVE of RunState: the prefix is the type's name in capitals.
  std::string prefix;
  for (const char c : value.type()->name()) {
    if (c >= 'A' && c <= 'Z' && !prefix.empty()) prefix += '_';
    prefix += c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  }
  prefix += '_';
  std::string name = value.name();
  if (name.compare(0, prefix.size(), prefix) == 0) name.erase(0, prefix.size());
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return name;
}

bool Is(const Descriptor& type, std::string_view name) {
  return type.full_name() == StrCat("switchyard.v1.", name);
}

// A scalar or message field: of the message itself, or item `index` of a list.
Value Single(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& reflection = *message.GetReflection();
  const bool is_item = index >= 0;
#define SWITCHYARD_GET(Type)                                      \
  (is_item ? reflection.GetRepeated##Type(message, &field, index) \
           : reflection.Get##Type(message, &field))
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return static_cast<int64_t>(SWITCHYARD_GET(Int32));
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<int64_t>(SWITCHYARD_GET(Int64));
    case FieldDescriptor::CPPTYPE_UINT32:
      return static_cast<uint64_t>(SWITCHYARD_GET(UInt32));
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<uint64_t>(SWITCHYARD_GET(UInt64));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return SWITCHYARD_GET(Double);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return static_cast<double>(SWITCHYARD_GET(Float));
    case FieldDescriptor::CPPTYPE_BOOL:
      return SWITCHYARD_GET(Bool);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(*SWITCHYARD_GET(Enum));
    case FieldDescriptor::CPPTYPE_STRING:
      return SWITCHYARD_GET(String);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return FromMessage(is_item ? reflection.GetRepeatedMessage(message, &field, index)
                                 : reflection.GetMessage(message, &field));
  }
#undef SWITCHYARD_GET
  return {};
}

Value FromField(const Message& message, const FieldDescriptor& field) {
  if (!field.is_repeated()) return Single(message, field, -1);
  const int size = message.GetReflection()->FieldSize(message, &field);
  const Descriptor* type = field.message_type();
  if (type != nullptr && (Is(*type, "Domain") || Is(*type, "GridAxis") || Is(*type, "AxisValue") ||
                          Is(*type, "ValueEntry"))) {
    Value::Members members;
    for (int i = 0; i < size; ++i) {
      Value item = Single(message, field, i);
      Value::Members fields = *item.members();
      if (fields.empty()) continue;
      std::string key = fields.front().value.ToText();
      fields.erase(fields.begin());
      // An axis is its values, a column its value: nothing else stands beside the id there.
      const bool is_pair = !Is(*type, "Domain") && fields.size() == 1;
      members.push_back(
          {.name = std::move(key), .value = is_pair ? std::move(fields.front().value) : fields});
    }
    return members;
  }
  Value::List list;
  for (int i = 0; i < size; ++i) list.push_back(Single(message, field, i));
  return list;
}

}  // namespace

Value FromMessage(const Message& message) {
  const Descriptor& type = *message.GetDescriptor();
  const bool is_document = type.file()->name() == "switchyard/v1/spec.proto";
  const Reflection& reflection = *message.GetReflection();
  Value::Members members;
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const bool is_set = field.is_repeated() ? reflection.FieldSize(message, &field) > 0
                                            : reflection.HasField(message, &field);
    const bool is_always = !is_document && !field.has_presence();
    if (is_set || is_always) members.push_back({field.name(), FromField(message, field)});
  }
  if (Is(type, "Value") || Is(type, "ValueList") || Is(type, "ValueMap")) {
    return members.empty() ? Value(std::string()) : members.front().value;
  }
  return members;
}

}  // namespace switchyard::client
