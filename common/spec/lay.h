#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/document.h"
#include "common/spec/fault.h"

namespace google::protobuf {
class Descriptor;
class FieldDescriptor;
class Message;
}  // namespace google::protobuf

namespace switchyard::spec {

// Lays nodes on messages by their descriptors: a mapping on a message, a list on a repeated field,
// a scalar by the field's type (docs/spec-reference.md). Collects faults and goes on. One thread at
// a time.
class Layer {
 public:
  // `file_name` stands before line and column, or alone for nodes without a line.
  Layer(std::string_view file_name, std::vector<Fault>* faults)
      : file_name_(file_name), faults_(faults) {}

  // Field by field; a list, or another case of a oneof, replaces what is there.
  void LayMessage(google::protobuf::Message* message, const Node& node, const std::string& path);
  void LayField(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                const Node& node, const std::string& path);
  // Replaces what is at the dotted `path` under `root`. The message that holds the field; null when
  // the path leads nowhere.
  google::protobuf::Message* LayAt(google::protobuf::Message* root, std::string_view path,
                                   const Node& node);

  // An unknown key or path segment, with the nearest known one or the list of all.
  void Unknown(const google::protobuf::Descriptor* descriptor, std::string_view key,
               const std::string& location, const std::string& path);
  void AddFault(const Node& node, const std::string& path, std::string message);
  std::string Location(int line, int column) const;

 private:
  bool SelectCase(google::protobuf::Message* message, const Node& node, const std::string& path);
  void LayBase(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
               const Node& node, const std::string& path);
  void LayPreset(google::protobuf::Message* message, const Node& node, const std::string& path);
  void LayKeyedList(google::protobuf::Message* message,
                    const google::protobuf::FieldDescriptor* field, const Node& node,
                    const std::string& path);
  void LayList(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
               const Node& node, const std::string& path);
  void LayScalar(google::protobuf::Message* message, const google::protobuf::FieldDescriptor* field,
                 const Node& node, const std::string& path);

  std::string_view file_name_;
  std::vector<Fault>* faults_;
};

// Lays what is present in `from` over `to`, as `base` over a preset: field by field; a list, or
// another case of a oneof, replaces; one way to say the length of training replaces the others.
void MergeOver(const google::protobuf::Message& from, google::protobuf::Message* to);

// The path's first segment is a field of the PolicySpec.
bool IsPolicyPath(std::string_view path);

}  // namespace switchyard::spec
