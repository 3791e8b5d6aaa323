#include "common/spec/path.h"

#include <algorithm>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/strings.h"
#include "common/spec/document.h"
#include "common/spec/quantity.h"
#include "common/spec/written.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// An option as a file has it: numbers by value, everything else as text.
ExpressionValue FromValue(const pb::Value& value) {
  const std::string text = NodeText(NodeFromValue(value));
  if (value.has_scalar()) {
    if (const std::optional<double> number = ParseDouble(text)) return *number;
    if (text == "true" || text == "false") return text == "true";
  }
  return text;
}

ExpressionValue FromField(const Message& message, const FieldDescriptor* field) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return static_cast<double>(reflection->GetInt32(message, field));
    case FieldDescriptor::CPPTYPE_INT64:
      return static_cast<double>(reflection->GetInt64(message, field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return static_cast<double>(reflection->GetUInt32(message, field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return static_cast<double>(reflection->GetUInt64(message, field));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return reflection->GetDouble(message, field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return static_cast<double>(reflection->GetFloat(message, field));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection->GetBool(message, field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return ShortName(reflection->GetEnum(message, field));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetString(message, field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return std::monostate{};
  }
  return std::monostate{};
}

std::string ElementText(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* reflection = message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      return StrCat(reflection->GetRepeatedUInt32(message, field, index));
    case FieldDescriptor::CPPTYPE_UINT64:
      return StrCat(reflection->GetRepeatedUInt64(message, field, index));
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return FormatDouble(reflection->GetRepeatedDouble(message, field, index));
    case FieldDescriptor::CPPTYPE_ENUM:
      return ShortName(reflection->GetRepeatedEnum(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection->GetRepeatedString(message, field, index);
    default:
      return "?";
  }
}

// The element whose id `rest` begins with, the longest; `rest` is left behind it.
const Message* ElementAt(const Message& message, const FieldDescriptor* list,
                         std::string_view* rest) {
  const Reflection* reflection = message.GetReflection();
  const Message* found = nullptr;
  size_t length = 0;
  for (int i = 0; i < reflection->FieldSize(message, list); ++i) {
    const Message& element = reflection->GetRepeatedMessage(message, list, i);
    const std::string id = element.GetReflection()->GetString(element, IdField(list));
    const bool fits =
        rest->starts_with(id) && (rest->size() == id.size() || (*rest)[id.size()] == '.');
    if (fits && id.size() >= length) {
      found = &element;
      length = id.size();
    }
  }
  if (found != nullptr) rest->remove_prefix(std::min(rest->size(), length + 1));
  return found;
}

struct Found {
  const Message* message = nullptr;  // null: the path leads nowhere
  const FieldDescriptor* field = nullptr;
  bool is_kind = false;
  ExpressionValue option;  // of a job
};

Found Find(const Message& root, std::string_view path) {
  const Message* message = &root;
  while (true) {
    const size_t dot = path.find('.');
    const Descriptor* descriptor = message->GetDescriptor();
    const FieldDescriptor* field = FindWritten(descriptor, path.substr(0, dot));
    if (field == nullptr) {
      if (path == "kind" && CaseOf(descriptor) != nullptr) {
        return {.message = message, .is_kind = true};
      }
      return {};
    }
    if (dot == std::string_view::npos) return {.message = message, .field = field};
    path.remove_prefix(dot + 1);
    const Reflection* reflection = message->GetReflection();
    if (IdField(field) != nullptr) {
      message = ElementAt(*message, field, &path);
      if (message == nullptr) return {};
      if (const auto* job = dynamic_cast<const pb::JobSpec*>(message); job != nullptr) {
        for (const pb::ValueEntry& option : job->options()) {
          if (option.key() == path) return {.message = job, .option = FromValue(option.value())};
        }
        return {};
      }
      if (path.empty()) return {.message = message};
      continue;
    }
    if (field->is_repeated() || field->message_type() == nullptr ||
        !reflection->HasField(*message, field)) {
      return {};
    }
    message = &reflection->GetMessage(*message, field);
  }
}

// Could `path` be a field, whatever cases are chosen?
bool CanBe(const Descriptor* descriptor, std::string_view path) {
  while (true) {
    const size_t dot = path.find('.');
    const FieldDescriptor* field = FindWritten(descriptor, path.substr(0, dot));
    if (field == nullptr) return path == "kind" && CaseOf(descriptor) != nullptr;
    if (dot == std::string_view::npos) return true;
    path.remove_prefix(dot + 1);
    if (field->message_type() == nullptr) return false;
    descriptor = field->message_type();
    if (IdField(field) == nullptr) {
      if (field->is_repeated()) return false;
      continue;
    }
    if (descriptor == pb::JobSpec::descriptor()) return true;
    // Ids may hold dots: any way to cut one off will do.
    for (size_t end = path.find('.'); end != std::string_view::npos;
         end = path.find('.', end + 1)) {
      if (CanBe(descriptor, path.substr(end + 1))) return true;
    }
    return false;
  }
}

void Collect(const Descriptor* descriptor, const std::string& path, std::vector<std::string>* out) {
  for (const std::string& name : WrittenNames(descriptor)) {
    const std::string inner = path.empty() ? name : StrCat(path, ".", name);
    out->push_back(inner);
    const FieldDescriptor* field = FindWritten(descriptor, name);
    if (field != nullptr && field->message_type() != nullptr && !field->is_repeated()) {
      Collect(field->message_type(), inner, out);
    }
  }
}

}  // namespace

ExpressionValue ReadAt(const Message& message, std::string_view path) {
  const Found found = Find(message, path);
  if (found.message == nullptr) return std::monostate{};
  const Reflection* reflection = found.message->GetReflection();
  if (found.is_kind) {
    const FieldDescriptor* current =
        reflection->GetOneofFieldDescriptor(*found.message, CaseOf(found.message->GetDescriptor()));
    if (current == nullptr) return std::monostate{};
    return current->name();
  }
  if (found.field == nullptr) return found.option;
  if (found.field->is_repeated()) {
    const int count = reflection->FieldSize(*found.message, found.field);
    if (count == 0 || found.field->message_type() != nullptr) return std::monostate{};
    std::vector<std::string> items;
    for (int i = 0; i < count; ++i) items.push_back(ElementText(*found.message, found.field, i));
    return StrCat("[", StrJoin(items, ", "), "]");
  }
  const bool is_set = found.field->has_presence()
                          ? reflection->HasField(*found.message, found.field)
                          : found.field->cpp_type() != FieldDescriptor::CPPTYPE_ENUM ||
                                reflection->HasField(*found.message, found.field);
  if (!is_set) return std::monostate{};
  return FromField(*found.message, found.field);
}

bool IsPresent(const Message& message, std::string_view path) {
  const Found found = Find(message, path);
  if (found.message == nullptr) return false;
  const Reflection* reflection = found.message->GetReflection();
  if (found.is_kind) {
    return reflection->HasOneof(*found.message, CaseOf(found.message->GetDescriptor()));
  }
  if (found.field == nullptr) return true;
  if (found.field->is_repeated()) return reflection->FieldSize(*found.message, found.field) > 0;
  return reflection->HasField(*found.message, found.field);
}

std::string UnknownPathHint(std::string_view path, const std::vector<std::string>& others) {
  std::vector<std::string> known = others;
  for (const std::string& quantity : QuantityNames()) known.push_back(quantity);
  for (const std::string& name : known) {
    if (name == path) return "";
  }
  if (CanBe(pb::RunSpec::descriptor(), path) || CanBe(pb::PolicySpec::descriptor(), path)) {
    return "";
  }
  std::vector<std::string> fields;
  Collect(pb::RunSpec::descriptor(), "", &fields);
  Collect(pb::PolicySpec::descriptor(), "", &fields);
  // The same last word in the right place is the likelier slip than a few wrong letters.
  std::string last(path);
  if (path.find('.') == std::string_view::npos) {
    std::vector<std::string> words;
    for (const std::string& field : fields) words.push_back(field.substr(field.rfind('.') + 1));
    const std::string nearest = NearestWord(path, known);
    if (!nearest.empty()) return StrCat("nearest: ", nearest);
    last = NearestWord(path, words);
  }
  for (const std::string& field : fields) {
    if (!last.empty() && field.ends_with(StrCat(".", last))) return StrCat("nearest: ", field);
  }
  for (std::string& name : known) fields.push_back(std::move(name));
  const std::string nearest = NearestWord(path, fields);
  if (!nearest.empty()) return StrCat("nearest: ", nearest);
  return StrCat("a text is written in quotes: \"", EscapeForTerminal(path), "\"");
}

}  // namespace switchyard::spec
