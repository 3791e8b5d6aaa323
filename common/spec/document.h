#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/spec/fault.h"

namespace switchyard::v1 {
class Value;
}

namespace switchyard::spec {

// A YAML tree without anchors, tags and null: what a sweep file may hold. Values as written.
struct Node {
  enum class Kind { kScalar, kList, kMap };
  struct Entry;

  Kind kind = Kind::kScalar;
  std::string scalar;
  std::vector<Node> items;
  std::vector<Entry> entries;  // file order, keys distinct
  int line = 0;                // from 1; 0 where there is no text
  int column = 0;              // from 1
};
struct Node::Entry {
  std::string key;
  int line = 0;
  int column = 0;
  Node value;
};

inline constexpr size_t kDocumentBytesMax = 1 << 20;
inline constexpr int kDocumentLevelsMax = 64;
inline constexpr size_t kDocumentNodesMax = 100'000;

// Reads one YAML document, of any kind at its top. False, with at least one fault, when it is not
// one or holds what we refuse (see yaml_reader.h). Never throws; time and memory are linear in the
// text.
bool ParseDocument(std::string_view file_name, std::string_view text, Node* out,
                   std::vector<Fault>* faults);

// "sweep.yaml:12:7"; the name alone where there is no line.
std::string LocationText(std::string_view file_name, int line, int column);

Node NodeFromValue(const v1::Value& value);
void NodeToValue(const Node& node, v1::Value* value);
// One line of flow YAML: "smoe", "[0, 1]", "{kind: smoe}".
std::string NodeText(const Node& node);

}  // namespace switchyard::spec
