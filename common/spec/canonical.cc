#include "common/spec/canonical.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/sha256.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void AppendWord(uint64_t value, std::string* out) {
  char bytes[sizeof(value)];
  for (char& byte : bytes) {
    byte = static_cast<char>(value & 0xff);
    value >>= 8;
  }
  out->append(bytes, sizeof(bytes));
}

void AppendBytes(const std::string& bytes, std::string* out) {
  AppendWord(bytes.size(), out);
  out->append(bytes);
}

uint64_t DoubleBits(double value) {
  if (value == 0) value = 0.0;  // -0.0 is the same number
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

void AppendMessage(const Message& message, std::string* out);

void AppendNested(const Message& message, std::string* out) {
  const size_t start = out->size();
  AppendWord(0, out);  // the length, once it is known
  AppendMessage(message, out);
  std::string length;
  AppendWord(out->size() - start - sizeof(uint64_t), &length);
  out->replace(start, length.size(), length);
}

void AppendValue(const Message& message, const FieldDescriptor* field, std::string* out) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return AppendWord(static_cast<uint64_t>(int64_t{reflection->GetInt32(message, field)}), out);
    case FieldDescriptor::CPPTYPE_INT64:
      return AppendWord(static_cast<uint64_t>(reflection->GetInt64(message, field)), out);
    case FieldDescriptor::CPPTYPE_UINT32:
      return AppendWord(reflection->GetUInt32(message, field), out);
    case FieldDescriptor::CPPTYPE_UINT64:
      return AppendWord(reflection->GetUInt64(message, field), out);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return AppendWord(DoubleBits(reflection->GetDouble(message, field)), out);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return AppendWord(DoubleBits(reflection->GetFloat(message, field)), out);
    case FieldDescriptor::CPPTYPE_BOOL:
      return AppendWord(reflection->GetBool(message, field) ? 1 : 0, out);
    case FieldDescriptor::CPPTYPE_ENUM:
      return AppendWord(static_cast<uint64_t>(int64_t{reflection->GetEnumValue(message, field)}),
                        out);
    case FieldDescriptor::CPPTYPE_STRING:
      return AppendBytes(reflection->GetString(message, field), out);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return AppendNested(reflection->GetMessage(message, field), out);
  }
}

void AppendElement(const Message& message, const FieldDescriptor* field, int index,
                   std::string* out) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return AppendWord(
          static_cast<uint64_t>(int64_t{reflection->GetRepeatedInt32(message, field, index)}), out);
    case FieldDescriptor::CPPTYPE_INT64:
      return AppendWord(static_cast<uint64_t>(reflection->GetRepeatedInt64(message, field, index)),
                        out);
    case FieldDescriptor::CPPTYPE_UINT32:
      return AppendWord(reflection->GetRepeatedUInt32(message, field, index), out);
    case FieldDescriptor::CPPTYPE_UINT64:
      return AppendWord(reflection->GetRepeatedUInt64(message, field, index), out);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return AppendWord(DoubleBits(reflection->GetRepeatedDouble(message, field, index)), out);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return AppendWord(DoubleBits(reflection->GetRepeatedFloat(message, field, index)), out);
    case FieldDescriptor::CPPTYPE_BOOL:
      return AppendWord(reflection->GetRepeatedBool(message, field, index) ? 1 : 0, out);
    case FieldDescriptor::CPPTYPE_ENUM:
      return AppendWord(
          static_cast<uint64_t>(int64_t{reflection->GetRepeatedEnumValue(message, field, index)}),
          out);
    case FieldDescriptor::CPPTYPE_STRING:
      return AppendBytes(reflection->GetRepeatedString(message, field, index), out);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return AppendNested(reflection->GetRepeatedMessage(message, field, index), out);
  }
}

void AppendMessage(const Message& message, std::string* out) {
  // Present fields only, by rising number.
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    AppendWord(static_cast<uint64_t>(field->number()), out);
    if (!field->is_repeated()) {
      AppendValue(message, field, out);
      continue;
    }
    const int count = message.GetReflection()->FieldSize(message, field);
    AppendWord(static_cast<uint64_t>(count), out);
    for (int i = 0; i < count; ++i) AppendElement(message, field, i, out);
  }
}

}  // namespace

// Per field: number, then its value (repeated: a count, then the values). Numbers, enums and
// booleans are 8 bytes, little endian, signed ones extended; doubles their bits; strings and nested
// messages a length and the bytes.
std::string CanonicalEncoding(const Message& message) {
  std::string out;
  out.reserve(2048);
  AppendMessage(message, &out);
  return out;
}

std::string RunKey(const pb::RunSpec& run) {
  if (!run.has_init() && run.inputs().empty()) return Sha256Hex(CanonicalEncoding(run));
  // A checkpoint is its step and its bytes, whatever it is called.
  pb::RunSpec identity = run;
  if (!run.init().digest().empty()) {
    identity.mutable_init()->clear_run();
    identity.mutable_init()->clear_checkpoint();
  }
  for (pb::InputSpec& input : *identity.mutable_inputs()) {
    input.clear_run();
    input.clear_cell();
  }
  return Sha256Hex(CanonicalEncoding(identity));
}

std::string SweepHash(const pb::SweepSpec& sweep) {
  pb::SweepSpec identity = sweep;
  identity.clear_notes();
  return Sha256Hex(CanonicalEncoding(identity));
}

}  // namespace switchyard::spec
