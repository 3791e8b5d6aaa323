#include "common/spec/wire.h"

#include <cmath>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/strings.h"

namespace switchyard::spec {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void CheckWire(const Message& message, const std::string& path, std::vector<Fault>* faults) {
  const Reflection* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) {
    faults->push_back({"", path, "holds fields that this release does not know"});
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string name = path.empty() ? field->name() : StrCat(path, ".", field->name());
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        CheckWire(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                       : reflection->GetMessage(message, field),
                  name, faults);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        const double value = field->is_repeated() ? reflection->GetRepeatedDouble(message, field, i)
                                                  : reflection->GetDouble(message, field);
        if (!std::isfinite(value)) {
          faults->push_back({"", name, StrCat(FormatDouble(value), " is not a finite number")});
        }
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        const int value = field->is_repeated() ? reflection->GetRepeatedEnumValue(message, field, i)
                                               : reflection->GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(value) == nullptr) {
          faults->push_back(
              {"", name, StrCat(value, " is not a value of ", field->enum_type()->name())});
        }
      }
    }
  }
}

}  // namespace switchyard::spec
