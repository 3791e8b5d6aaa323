#include "common/spec/wire.h"

#include <cmath>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/strings.h"

namespace switchyard::spec {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Where the walk stands. A path is made of it only for a fault: most documents have none.
struct Place {
  const Place* parent = nullptr;
  const FieldDescriptor* field = nullptr;

  std::string Path() const {
    if (field == nullptr) return "";
    const std::string above = parent->Path();
    return above.empty() ? field->name() : StrCat(above, ".", field->name());
  }
};

void Walk(const Message& message, const Place& place, std::vector<Fault>* faults) {
  const Reflection* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) {
    faults->push_back({"", place.Path(), "holds fields that this release does not know"});
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const Place at{&place, field};
    const int count = field->is_repeated() ? reflection->FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        Walk(field->is_repeated() ? reflection->GetRepeatedMessage(message, field, i)
                                  : reflection->GetMessage(message, field),
             at, faults);
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
        const double value = field->is_repeated() ? reflection->GetRepeatedDouble(message, field, i)
                                                  : reflection->GetDouble(message, field);
        if (!std::isfinite(value)) {
          faults->push_back(
              {"", at.Path(), StrCat(FormatDouble(value), " is not a finite number")});
        }
      } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
        const int value = field->is_repeated() ? reflection->GetRepeatedEnumValue(message, field, i)
                                               : reflection->GetEnumValue(message, field);
        if (field->enum_type()->FindValueByNumber(value) == nullptr) {
          faults->push_back(
              {"", at.Path(), StrCat(value, " is not a value of ", field->enum_type()->name())});
        }
      }
    }
  }
}

}  // namespace

void CheckWire(const Message& message, std::vector<Fault>* faults) {
  Walk(message, Place{}, faults);
}

}  // namespace switchyard::spec
