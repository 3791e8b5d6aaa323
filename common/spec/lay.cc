#include "common/spec/lay.h"

#include <array>
#include <limits>
#include <set>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/strings.h"
#include "common/spec/scalar.h"
#include "common/spec/written.h"
#include "common/spec/yaml_reader.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;
using google::protobuf::Reflection;

constexpr uint64_t kSeedCountMax = 1'000'000;

// The order of a space's axes is that of the file, not that of the fields.
void KeepOrder(const Node& fields, pb::SpaceSpec* space) {
  std::vector<const FieldDescriptor*> kinds;
  bool is_other = false;
  for (const Node::Entry& entry : fields.entries) {
    const FieldDescriptor* field = FindWritten(pb::SpaceSpec::descriptor(), entry.key);
    if (field == nullptr || field->message_type() == nullptr) continue;
    is_other |= !kinds.empty() && kinds.back()->number() > field->number();
    kinds.push_back(field);
  }
  space->clear_order();
  if (!is_other) return;
  for (const FieldDescriptor* kind : kinds) space->add_order(kind->name());
}

// The nearest by letters, else the only one that the word begins (`optim`).
std::string Nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string nearest = NearestWord(word, known);
  if (!nearest.empty() || word.size() < 3) return nearest;
  for (const std::string& candidate : known) {
    if (!candidate.starts_with(word)) continue;
    if (!nearest.empty()) return "";
    nearest = candidate;
  }
  return nearest;
}

std::string NearestOrKnown(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, known);
  if (!nearest.empty()) return StrCat("nearest: ", nearest);
  return StrCat("known: ", StrJoin(known, ", "));
}

struct KnownField {
  std::string name;
  std::string parent_path;
};

void Collect(const Descriptor* descriptor, const std::string& path, std::vector<KnownField>* out) {
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (!IsWritable(field)) continue;
    const std::string name = WrittenName(field);
    out->push_back({name, path});
    // Values and options of jobs have no fields of their own.
    if (field->message_type() != nullptr && field->message_type() != pb::ValueEntry::descriptor()) {
      Collect(field->message_type(), path.empty() ? name : StrCat(path, ".", name), out);
    }
  }
}

// "top_k (in model.moe)" for a word that is near a field of another place, else empty.
std::string NearestElsewhere(std::string_view word) {
  static const std::vector<KnownField> fields = [] {
    std::vector<KnownField> all;
    Collect(pb::RunSpec::descriptor(), "", &all);
    return all;
  }();
  std::vector<std::string> names;
  names.reserve(fields.size());
  for (const KnownField& field : fields) names.push_back(field.name);
  const std::string nearest = NearestWord(word, names);
  if (nearest.empty()) return "";
  std::set<std::string> places;
  for (const KnownField& field : fields) {
    if (field.name == nearest)
      places.insert(field.parent_path.empty() ? "base" : field.parent_path);
  }
  return StrCat(nearest, " (in ",
                StrJoin(std::vector<std::string>(places.begin(), places.end()), ", "), ")");
}

// Steps, tokens, data_epochs and active_flops say one thing: the last layer that says it wins.
void ClearOtherLengths(Message* message, const FieldDescriptor* field) {
  static constexpr std::array<int, 4> kLengths = {
      pb::TrainSpec::kStepsFieldNumber, pb::TrainSpec::kTokensFieldNumber,
      pb::TrainSpec::kDataEpochsFieldNumber, pb::TrainSpec::kActiveFlopsFieldNumber};
  if (message->GetDescriptor() != pb::TrainSpec::descriptor()) return;
  bool is_length = false;
  for (const int number : kLengths) is_length |= field->number() == number;
  if (!is_length) return;
  for (const int number : kLengths) {
    if (number != field->number()) {
      message->GetReflection()->ClearField(message,
                                           message->GetDescriptor()->FindFieldByNumber(number));
    }
  }
}

// Protobuf's merge appends lists; everything else it does as we want.
void MakeRoom(const Message& from, Message* to) {
  const Reflection* reflection = to->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  from.GetReflection()->ListFields(from, &fields);
  for (const FieldDescriptor* field : fields) {
    ClearOtherLengths(to, field);
    if (field->is_repeated()) {
      reflection->ClearField(to, field);
    } else if (field->message_type() != nullptr && reflection->HasField(*to, field)) {
      MakeRoom(from.GetReflection()->GetMessage(from, field),
               reflection->MutableMessage(to, field));
    }
  }
}

std::string Join(const std::string& path, std::string_view name) {
  return path.empty() ? std::string(name) : StrCat(path, ".", name);
}

// `essi` and `{essi: {rank: 128}}` in a list of jobs. False for another form.
template <typename LayBody>
bool LayListedJob(const Node& item, LayBody lay_body) {
  if (item.kind == Node::Kind::kScalar) {
    Node no_options = item;
    no_options.kind = Node::Kind::kMap;
    lay_body(item.scalar, no_options, false);
    return true;
  }
  if (item.entries.size() != 1 || item.entries.front().key == "id") return false;
  lay_body(item.entries.front().key, item.entries.front().value, false);
  return true;
}

std::string_view KindWord(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kScalar:
      return "a single value";
    case Node::Kind::kList:
      return "a list";
    case Node::Kind::kMap:
      return "a mapping";
  }
  return "";
}

}  // namespace

bool IsPolicyPath(std::string_view path) {
  return FindWritten(pb::PolicySpec::descriptor(), path.substr(0, path.find('.'))) != nullptr;
}

std::string Layer::Location(int line, int column) const {
  return LocationText(file_name_, line, column);
}

void Layer::AddFault(const Node& node, const std::string& path, std::string message) {
  faults_->push_back({Location(node.line, node.column), path, std::move(message)});
}

void Layer::Unknown(const Descriptor* descriptor, std::string_view key, const std::string& location,
                    const std::string& path) {
  std::vector<std::string> known = WrittenNames(descriptor);
  if (const FieldDescriptor* beside = Beside(descriptor); beside != nullptr) {
    for (std::string& name : WrittenNames(beside->message_type())) {
      known.push_back(std::move(name));
    }
  }
  std::string hint = Nearest(key, known);
  if (hint.empty()) hint = NearestElsewhere(key);
  hint = hint.empty() ? StrCat("known: ", StrJoin(known, ", ")) : StrCat("nearest: ", hint);
  faults_->push_back({location, path,
                      StrCat("'", EscapeForTerminal(key), "' is not a field of ",
                             descriptor->name(), "; ", hint)});
}

bool Layer::SelectCase(Message* message, const Node& node, const std::string& path) {
  const OneofDescriptor* oneof = CaseOf(message->GetDescriptor());
  std::vector<std::string> known;
  for (int i = 0; i < oneof->field_count(); ++i) known.push_back(oneof->field(i)->name());
  if (node.kind != Node::Kind::kScalar) {
    AddFault(node, path,
             StrCat("a kind is one word, not ", KindWord(node), "; known: ", StrJoin(known, ", ")));
    return false;
  }
  for (int i = 0; i < oneof->field_count(); ++i) {
    const FieldDescriptor* field = oneof->field(i);
    if (field->name() != node.scalar) continue;
    // Keeps the options of a case that is already selected; clears another case.
    message->GetReflection()->MutableMessage(message, field);
    return true;
  }
  AddFault(node, path,
           StrCat("'", EscapeForTerminal(node.scalar), "' is not a kind of ",
                  message->GetDescriptor()->name(), "; ", NearestOrKnown(node.scalar, known)));
  return false;
}

void Layer::LayMessage(Message* message, const Node& node, const std::string& path) {
  const Descriptor* descriptor = message->GetDescriptor();
  const OneofDescriptor* oneof = CaseOf(descriptor);
  if (node.kind == Node::Kind::kScalar && oneof != nullptr) {
    SelectCase(message, node, path);
    return;
  }
  if (const FieldDescriptor* body = BodyField(descriptor, node.kind); body != nullptr) {
    LayField(message, body, node, path);
    return;
  }
  if (node.kind != Node::Kind::kMap) {
    const std::string found = node.kind == Node::Kind::kScalar
                                  ? StrCat("'", EscapeForTerminal(node.scalar), "'")
                                  : "a list";
    AddFault(node, path,
             StrCat("expected a mapping of the fields of ", descriptor->name(), ", found ", found));
    return;
  }
  std::string selected;  // the case that this mapping names
  const auto select = [&](const std::string& name, const Node& at) {
    if (selected.empty() || selected == name) {
      selected = name;
      return true;
    }
    AddFault(at, path, StrCat("both ", selected, " and ", name, ", of which only one can be"));
    return false;
  };
  const FieldDescriptor* beside = Beside(descriptor);
  for (const Node::Entry& entry : node.entries) {
    const std::string entry_path = Join(path, entry.key);
    const FieldDescriptor* field = FindWritten(descriptor, entry.key);
    if (field == nullptr && beside != nullptr) {
      const FieldDescriptor* inner = FindWritten(beside->message_type(), entry.key);
      if (inner != nullptr) {
        LayField(message->GetReflection()->MutableMessage(message, beside), inner, entry.value,
                 entry_path);
        continue;
      }
    }
    if (field != nullptr && field->message_type() == pb::RunSpec::descriptor()) {
      LayBase(message, field, entry.value, entry_path);
      continue;
    }
    if (field != nullptr && field->name() == "preset") {
      LayPreset(message, entry.value, entry_path);
      continue;
    }
    if (field == nullptr && oneof != nullptr && entry.key == "kind") {
      if (entry.value.kind != Node::Kind::kScalar || select(entry.value.scalar, entry.value)) {
        SelectCase(message, entry.value, entry_path);
      }
      continue;
    }
    if (field == nullptr) {
      Unknown(descriptor, entry.key, Location(entry.line, entry.column), path);
      continue;
    }
    if (field->real_containing_oneof() != nullptr && !select(entry.key, entry.value)) continue;
    LayField(message, field, entry.value, entry_path);
  }
  if (descriptor == pb::SpaceSpec::descriptor()) {
    KeepOrder(node, static_cast<pb::SpaceSpec*>(message));
  } else if (auto* alternative = dynamic_cast<pb::Alternative*>(message);
             alternative != nullptr && alternative->has_space()) {
    KeepOrder(node, alternative->mutable_space());
  }
}

// `preset` stands beside `base` or in it, which it lies under.
void Layer::LayBase(Message* message, const FieldDescriptor* field, const Node& node,
                    const std::string& path) {
  Node fields = node;
  std::erase_if(fields.entries, [&](const Node::Entry& inner) {
    if (inner.key != "preset") return false;
    LayPreset(message, inner.value, Join(path, inner.key));
    return true;
  });
  LayMessage(message->GetReflection()->MutableMessage(message, field), fields, path);
}

void Layer::LayPreset(Message* message, const Node& node, const std::string& path) {
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName("preset");
  const Reflection* reflection = message->GetReflection();
  const std::string before = reflection->GetString(*message, field);
  LayScalar(message, field, node, path);
  if (!before.empty() && before != reflection->GetString(*message, field)) {
    AddFault(node, path, StrCat("another preset is given already: ", before));
  }
}

void Layer::LayField(Message* message, const FieldDescriptor* field, const Node& node,
                     const std::string& path) {
  if (IdField(field) != nullptr) {
    LayKeyedList(message, field, node, path);
  } else if (field->is_repeated()) {
    LayList(message, field, node, path);
  } else if (field->message_type() == pb::Value::descriptor()) {
    NodeToValue(node,
                static_cast<pb::Value*>(message->GetReflection()->MutableMessage(message, field)));
  } else if (field->message_type() != nullptr) {
    LayMessage(message->GetReflection()->MutableMessage(message, field), node, path);
  } else {
    LayScalar(message, field, node, path);
  }
}

void Layer::LayKeyedList(Message* message, const FieldDescriptor* field, const Node& node,
                         const std::string& path) {
  const Reflection* reflection = message->GetReflection();
  const Descriptor* element_type = field->message_type();
  const FieldDescriptor* id_field = IdField(field);
  reflection->ClearField(message, field);
  std::set<std::string> ids;
  const auto lay_body = [&](const std::string& id, const Node& body, bool is_listed) {
    if (!ids.insert(id).second) {
      AddFault(body, path, StrCat("'", EscapeForTerminal(id), "' is in the list twice"));
      return;
    }
    Message* element = reflection->AddMessage(message, field);
    element->GetReflection()->SetString(element, id_field, id);
    const std::string element_path = Join(path, id);
    Node fields = body;
    if (is_listed) {
      std::erase_if(fields.entries, [](const Node::Entry& entry) { return entry.key == "id"; });
    }
    if (const FieldDescriptor* field = BodyField(element_type, body.kind); field != nullptr) {
      LayField(element, field, fields, element_path);
    } else if (body.kind == Node::Kind::kList && PairField(element_type, 0) != nullptr) {
      if (body.items.size() != 2) {
        AddFault(
            body, element_path,
            StrCat("has ", body.items.size(), " numbers; [", PairField(element_type, 0)->name(),
                   ", ", PairField(element_type, 1)->name(), "] is wanted"));
        return;
      }
      for (int i = 0; i < 2; ++i) {
        LayField(element, PairField(element_type, i), body.items[static_cast<size_t>(i)],
                 element_path);
      }
    } else if (element_type == pb::GridAxis::descriptor()) {
      AddFault(body, element_path, StrCat("expected a list of values, found ", KindWord(body)));
    } else if (body.kind == Node::Kind::kMap) {
      LayMessage(element, fields, element_path);
    } else {
      AddFault(body, element_path,
               StrCat("expected a mapping of the fields of ", element_type->name(), ", found ",
                      KindWord(body)));
    }
  };
  switch (node.kind) {
    case Node::Kind::kMap:
      for (const Node::Entry& entry : node.entries) {
        if (!IsValidUtf8(entry.key)) {
          AddFault(entry.value, path, "a name is not valid UTF-8");
          continue;
        }
        lay_body(entry.key, entry.value, false);
      }
      return;
    case Node::Kind::kList:
      for (const Node& item : node.items) {
        if (element_type == pb::JobSpec::descriptor() && LayListedJob(item, lay_body)) continue;
        const Node::Entry* id = nullptr;
        for (const Node::Entry& entry : item.entries) {
          if (entry.key == "id") id = &entry;
        }
        if (id == nullptr || id->value.kind != Node::Kind::kScalar) {
          AddFault(item, path, StrCat("an element of this list needs an id: {id: ..., ...}"));
          continue;
        }
        lay_body(id->value.scalar, item, true);
      }
      return;
    case Node::Kind::kScalar:
      AddFault(node, path,
               StrCat("expected a mapping from names to the fields of ", element_type->name(),
                      ", found '", EscapeForTerminal(node.scalar), "'"));
  }
}

void Layer::LayList(Message* message, const FieldDescriptor* field, const Node& node,
                    const std::string& path) {
  const Reflection* reflection = message->GetReflection();
  reflection->ClearField(message, field);
  if (node.kind == Node::Kind::kScalar &&
      message->GetDescriptor() == pb::ReplicatesSpec::descriptor()) {
    const Result<uint64_t> count = ReadUnsigned(node.scalar, kSeedCountMax);
    if (!count.ok() || *count == 0) {
      AddFault(node, path, count.ok() ? "at least one seed is needed" : count.status().message());
      return;
    }
    for (uint64_t seed = 1; seed <= *count; ++seed) reflection->AddUInt64(message, field, seed);
    return;
  }
  if (node.kind != Node::Kind::kList) {
    AddFault(node, path,
             StrCat("expected a list, found ",
                    node.kind == Node::Kind::kScalar
                        ? StrCat("'", EscapeForTerminal(node.scalar), "'; write [",
                                 EscapeForTerminal(node.scalar), "]")
                        : std::string("a mapping")));
    return;
  }
  // Without presence an empty list would be the default, silently. No tags is the default.
  if (node.items.empty() && field->name() != "tags") {
    AddFault(node, path, "the list is empty; leave it out for its default");
    return;
  }
  for (const Node& item : node.items) {
    if (field->message_type() == pb::Value::descriptor()) {
      NodeToValue(item, static_cast<pb::Value*>(reflection->AddMessage(message, field)));
    } else if (field->message_type() != nullptr) {
      const int index = reflection->FieldSize(*message, field);
      LayMessage(reflection->AddMessage(message, field), item, StrCat(path, "[", index, "]"));
    } else {
      LayScalar(message, field, item, path);
    }
  }
}

void Layer::LayScalar(Message* message, const FieldDescriptor* field, const Node& node,
                      const std::string& path) {
  if (node.kind != Node::Kind::kScalar) {
    AddFault(node, path, StrCat("expected a single value, found ", KindWord(node)));
    return;
  }
  const Reflection* reflection = message->GetReflection();
  const std::string& text = node.scalar;
  const bool is_repeated = field->is_repeated();
  const auto refuse = [&](const Status& status) { AddFault(node, path, status.message()); };
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE: {
      const Result<double> value = ReadDouble(text);
      if (!value.ok()) return refuse(value.status());
      return is_repeated ? reflection->AddDouble(message, field, *value)
                         : reflection->SetDouble(message, field, *value);
    }
    case FieldDescriptor::CPPTYPE_UINT64: {
      const Result<uint64_t> value = IsDuration(field)
                                         ? ReadDurationMs(text)
                                         : ReadUnsigned(text, std::numeric_limits<uint64_t>::max());
      if (!value.ok()) return refuse(value.status());
      return is_repeated ? reflection->AddUInt64(message, field, *value)
                         : reflection->SetUInt64(message, field, *value);
    }
    case FieldDescriptor::CPPTYPE_UINT32: {
      const Result<uint64_t> value = ReadUnsigned(text, std::numeric_limits<uint32_t>::max());
      if (!value.ok()) return refuse(value.status());
      const auto narrow = static_cast<uint32_t>(*value);
      return is_repeated ? reflection->AddUInt32(message, field, narrow)
                         : reflection->SetUInt32(message, field, narrow);
    }
    case FieldDescriptor::CPPTYPE_INT32: {
      const Result<int64_t> value = ReadSigned(text, std::numeric_limits<int32_t>::min(),
                                               std::numeric_limits<int32_t>::max());
      if (!value.ok()) return refuse(value.status());
      const auto narrow = static_cast<int32_t>(*value);
      return is_repeated ? reflection->AddInt32(message, field, narrow)
                         : reflection->SetInt32(message, field, narrow);
    }
    case FieldDescriptor::CPPTYPE_INT64: {
      const Result<int64_t> value = ReadSigned(text, std::numeric_limits<int64_t>::min(),
                                               std::numeric_limits<int64_t>::max());
      if (!value.ok()) return refuse(value.status());
      return is_repeated ? reflection->AddInt64(message, field, *value)
                         : reflection->SetInt64(message, field, *value);
    }
    case FieldDescriptor::CPPTYPE_BOOL: {
      const Result<bool> value = ReadBool(text);
      if (!value.ok()) return refuse(value.status());
      return is_repeated ? reflection->AddBool(message, field, *value)
                         : reflection->SetBool(message, field, *value);
    }
    case FieldDescriptor::CPPTYPE_STRING: {
      if (!IsValidUtf8(text)) return AddFault(node, path, "the text is not valid UTF-8");
      return is_repeated ? reflection->AddString(message, field, text)
                         : reflection->SetString(message, field, text);
    }
    case FieldDescriptor::CPPTYPE_ENUM: {
      const EnumValueDescriptor* value = FindEnumValue(field->enum_type(), text);
      if (value == nullptr) {
        std::vector<std::string> known;
        for (int i = 1; i < field->enum_type()->value_count(); ++i) {
          known.push_back(ShortName(field->enum_type()->value(i)));
        }
        return AddFault(node, path,
                        StrCat("'", EscapeForTerminal(text), "' is not a value of ",
                               field->enum_type()->name(), "; ", NearestOrKnown(text, known)));
      }
      return is_repeated ? reflection->AddEnum(message, field, value)
                         : reflection->SetEnum(message, field, value);
    }
    // The spec has no field of these types; a new one would meet this in the test of all fields.
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_MESSAGE:
      AddFault(node, path, "this field cannot be written in a sweep file");
  }
}

Message* Layer::LayAt(Message* root, std::string_view path, const Node& node) {
  Message* message = root;
  const std::string whole(path);
  std::string_view rest = path;
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view segment = rest.substr(0, dot);
    const bool is_last = dot == std::string_view::npos;
    const Descriptor* descriptor = message->GetDescriptor();
    const Reflection* reflection = message->GetReflection();
    const OneofDescriptor* oneof = CaseOf(descriptor);
    const FieldDescriptor* field = FindWritten(descriptor, segment);
    if (field == nullptr && is_last && oneof != nullptr && segment == "kind") {
      const FieldDescriptor* current = reflection->GetOneofFieldDescriptor(*message, oneof);
      std::vector<const FieldDescriptor*> options;
      if (current != nullptr) {
        const Message& body = reflection->GetMessage(*message, current);
        body.GetReflection()->ListFields(body, &options);
      }
      if (!options.empty() && node.kind == Node::Kind::kScalar && node.scalar != current->name()) {
        AddFault(node, whole,
                 StrCat("'", EscapeForTerminal(node.scalar), "' would drop the options of ",
                        current->name(), " set under it (", options.front()->name(),
                        "); lay whole values on ",
                        path.substr(0, path.size() - std::string_view(".kind").size())));
        return nullptr;
      }
      return SelectCase(message, node, whole) ? message : nullptr;
    }
    if (field == nullptr) {
      Unknown(descriptor, segment, Location(node.line, node.column), whole);
      return nullptr;
    }
    const FieldDescriptor* current =
        field->real_containing_oneof() == nullptr
            ? nullptr
            : reflection->GetOneofFieldDescriptor(*message, field->real_containing_oneof());
    if (is_last) {
      ClearOtherLengths(message, field);
      reflection->ClearField(message, field);
      LayField(message, field, node, whole);
      return message;
    }
    rest.remove_prefix(dot + 1);
    if (current != nullptr && current != field) {
      AddFault(node, whole,
               StrCat("the path goes through ", field->name(), ", but ", current->name(),
                      " is what is used there"));
      return nullptr;
    }
    if (const FieldDescriptor* id_field = IdField(field); id_field != nullptr) {
      // Names may hold dots: the longest one that fits is meant.
      Message* found = nullptr;
      std::string found_id;
      std::vector<std::string> known;
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        Message* element = reflection->MutableRepeatedMessage(message, field, i);
        const std::string id = element->GetReflection()->GetString(*element, id_field);
        known.push_back(id);
        if (rest.starts_with(id) && rest.size() > id.size() && rest[id.size()] == '.' &&
            id.size() >= found_id.size()) {
          found = element;
          found_id = id;
        }
      }
      if (found == nullptr) {
        const std::string_view wanted = rest.substr(0, rest.find('.'));
        AddFault(node, whole,
                 known.empty() ? StrCat("'", EscapeForTerminal(wanted), "' is not in ",
                                        field->name(), ", which is empty")
                               : StrCat("'", EscapeForTerminal(wanted), "' is not in ",
                                        field->name(), "; ", NearestOrKnown(wanted, known)));
        return nullptr;
      }
      rest.remove_prefix(found_id.size() + 1);
      message = found;
      if (auto* job = dynamic_cast<pb::JobSpec*>(found); job != nullptr) {
        // Names of options are the job's own.
        pb::ValueEntry* option = nullptr;
        for (pb::ValueEntry& entry : *job->mutable_options()) {
          if (entry.key() == rest) option = &entry;
        }
        if (option == nullptr) option = job->add_options();
        option->set_key(std::string(rest));
        NodeToValue(node, option->mutable_value());
        return job;
      }
      continue;
    }
    if (field->is_repeated() || field->message_type() == nullptr) {
      AddFault(node, whole, StrCat(field->name(), " has no parts; it is laid as a whole"));
      return nullptr;
    }
    message = reflection->MutableMessage(message, field);
  }
}

void MergeOver(const Message& from, Message* to) {
  MakeRoom(from, to);
  to->MergeFrom(from);
}

std::vector<Fault> LayValue(Message* message, std::string_view path, const pb::Value& value,
                            std::string_view location) {
  std::vector<Fault> faults;
  Layer(location, &faults).LayAt(message, path, NodeFromValue(value));
  return faults;
}

}  // namespace switchyard::spec
