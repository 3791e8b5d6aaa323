#include "common/spec/written.h"

#include <array>
#include <set>

#include <google/protobuf/descriptor.h>

#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::OneofDescriptor;

// "_ms" or "_bytes" of a field whose unit stands with the value in a file; else empty.
std::string_view UnitSuffix(const FieldDescriptor* field) {
  if (field->cpp_type() != FieldDescriptor::CPPTYPE_UINT64 || field->is_repeated()) return "";
  for (const std::string_view suffix : {"_ms", "_bytes"}) {
    if (field->name().ends_with(suffix)) return suffix;
  }
  return "";
}

}  // namespace

bool IsWritable(const FieldDescriptor* field) {
  static const std::set<const FieldDescriptor*> hidden = {
      pb::RunSpec::descriptor()->FindFieldByNumber(pb::RunSpec::kSeedFieldNumber),
      pb::RunSpec::descriptor()->FindFieldByNumber(pb::RunSpec::kNumericsClassFieldNumber),
      pb::RunSpec::descriptor()->FindFieldByNumber(pb::RunSpec::kInputsFieldNumber),
      pb::InitSpec::descriptor()->FindFieldByNumber(pb::InitSpec::kStepFieldNumber),
      pb::InitSpec::descriptor()->FindFieldByNumber(pb::InitSpec::kDigestFieldNumber),
      pb::SpaceSpec::descriptor()->FindFieldByNumber(pb::SpaceSpec::kOrderFieldNumber),
      pb::StageSpec::descriptor()->FindFieldByNumber(pb::StageSpec::kPolicyFieldNumber),
      pb::SweepSpec::descriptor()->FindFieldByNumber(pb::SweepSpec::kPolicyFieldNumber),
      pb::SweepSpec::descriptor()->FindFieldByNumber(pb::SweepSpec::kSetsFieldNumber),
  };
  // The id of an element is the key that it stands under.
  return !hidden.contains(field) && field->name() != "id";
}

bool IsDuration(const FieldDescriptor* field) { return UnitSuffix(field) == "_ms"; }

const OneofDescriptor* CaseOf(const Descriptor* descriptor) {
  return descriptor->real_oneof_decl_count() == 0 ? nullptr : descriptor->oneof_decl(0);
}

const FieldDescriptor* IdField(const FieldDescriptor* list) {
  if (!list->is_repeated() || list->message_type() == nullptr) return nullptr;
  const Descriptor* element = list->message_type();
  const FieldDescriptor* id =
      element->FindFieldByName(element == pb::SetEntry::descriptor()     ? "path"
                               : element == pb::ValueEntry::descriptor() ? "key"
                                                                         : "id");
  return id != nullptr && id->cpp_type() == FieldDescriptor::CPPTYPE_STRING ? id : nullptr;
}

const FieldDescriptor* BodyField(const Descriptor* message, Node::Kind form) {
  struct Short {
    const Descriptor* message;
    Node::Kind form;
    int number;
  };
  static const std::array<Short, 15> shorts = {{
      {pb::Domain::descriptor(), Node::Kind::kList, pb::Domain::kGlobsFieldNumber},
      {pb::GridAxis::descriptor(), Node::Kind::kList, pb::GridAxis::kValuesFieldNumber},
      {pb::ZipAxis::descriptor(), Node::Kind::kMap, pb::ZipAxis::kPathsFieldNumber},
      {pb::ChoiceAxis::descriptor(), Node::Kind::kMap, pb::ChoiceAxis::kAlternativesFieldNumber},
      {pb::NamedNumber::descriptor(), Node::Kind::kScalar, pb::NamedNumber::kValueFieldNumber},
      {pb::JobSpec::descriptor(), Node::Kind::kMap, pb::JobSpec::kOptionsFieldNumber},
      {pb::NeedsSpec::descriptor(), Node::Kind::kScalar, pb::NeedsSpec::kStageFieldNumber},
      {pb::EachSpec::descriptor(), Node::Kind::kScalar, pb::EachSpec::kKindFieldNumber},
      {pb::EachSpec::descriptor(), Node::Kind::kList, pb::EachSpec::kAxesFieldNumber},
      {pb::SetEntry::descriptor(), Node::Kind::kScalar, pb::SetEntry::kValueFieldNumber},
      {pb::SetEntry::descriptor(), Node::Kind::kList, pb::SetEntry::kValueFieldNumber},
      {pb::SetEntry::descriptor(), Node::Kind::kMap, pb::SetEntry::kValueFieldNumber},
      {pb::ValueEntry::descriptor(), Node::Kind::kScalar, pb::ValueEntry::kValueFieldNumber},
      {pb::ValueEntry::descriptor(), Node::Kind::kList, pb::ValueEntry::kValueFieldNumber},
      {pb::ValueEntry::descriptor(), Node::Kind::kMap, pb::ValueEntry::kValueFieldNumber},
  }};
  for (const Short& each : shorts) {
    if (each.message == message && each.form == form) {
      return message->FindFieldByNumber(each.number);
    }
  }
  return nullptr;
}

const FieldDescriptor* PairField(const Descriptor* message, int index) {
  if (message == pb::RangeAxis::descriptor()) {
    return message->FindFieldByNumber(index == 0 ? pb::RangeAxis::kLowFieldNumber
                                                 : pb::RangeAxis::kHighFieldNumber);
  }
  if (message == pb::NormalAxis::descriptor()) {
    return message->FindFieldByNumber(index == 0 ? pb::NormalAxis::kMeanFieldNumber
                                                 : pb::NormalAxis::kSdFieldNumber);
  }
  return nullptr;
}

const FieldDescriptor* Beside(const Descriptor* message) {
  if (message == pb::SweepSpec::descriptor()) {
    return message->FindFieldByNumber(pb::SweepSpec::kPolicyFieldNumber);
  }
  if (message == pb::StageSpec::descriptor()) {
    return message->FindFieldByNumber(pb::StageSpec::kPolicyFieldNumber);
  }
  if (message == pb::Alternative::descriptor()) {
    return message->FindFieldByNumber(pb::Alternative::kSpaceFieldNumber);
  }
  return nullptr;
}

std::string ShortName(const EnumValueDescriptor* value) {
  static constexpr std::string_view kUnspecified = "UNSPECIFIED";
  const std::string& first = value->type()->value(0)->name();
  std::string name = value->name().substr(first.size() - kUnspecified.size());
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

const EnumValueDescriptor* FindEnumValue(const EnumDescriptor* type, std::string_view word) {
  if (type == pb::Tokens_descriptor() && word == "bytes") word = "bytes256";
  for (int i = 1; i < type->value_count(); ++i) {
    if (ShortName(type->value(i)) == word) return type->value(i);
  }
  return nullptr;
}

std::string WrittenName(const FieldDescriptor* field) {
  return field->name().substr(0, field->name().size() - UnitSuffix(field).size());
}

const FieldDescriptor* FindWritten(const Descriptor* descriptor, std::string_view name) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    const size_t suffix = UnitSuffix(field).size();
    if (std::string_view(field->name()).substr(0, field->name().size() - suffix) == name) {
      return IsWritable(field) ? field : nullptr;
    }
  }
  return nullptr;
}

std::vector<std::string> WrittenNames(const Descriptor* descriptor) {
  std::vector<std::string> names;
  for (int i = 0; i < descriptor->field_count(); ++i) {
    if (IsWritable(descriptor->field(i))) names.push_back(WrittenName(descriptor->field(i)));
  }
  if (CaseOf(descriptor) != nullptr && FindWritten(descriptor, "kind") == nullptr) {
    names.emplace_back("kind");
  }
  return names;
}

}  // namespace switchyard::spec
