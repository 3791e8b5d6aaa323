#include "common/spec/document.h"

#include <map>
#include <optional>

#include <yaml-cpp/yaml.h>

#include <yaml-cpp/eventhandler.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Carries a refusal out of yaml-cpp's callbacks; never leaves this file.
struct Refused {
  YAML::Mark mark;
  std::string message;
};

// Builds the tree from yaml-cpp's events. The events come before aliases are expanded, so an alias
// bomb costs nothing.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view file_name, std::vector<Fault>* faults)
      : file_name_(file_name), faults_(faults) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    throw Refused{mark, StrCat("anchors are not allowed: &", name)};
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{mark, "aliases are not allowed"};
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Check(mark, "?", anchor);
    const bool has_key =
        !stack_.empty() && stack_.back().kind == Node::Kind::kMap && stack_.back().key;
    if (!has_key) {
      const bool is_key = !stack_.empty() && stack_.back().kind == Node::Kind::kMap;
      throw Refused{mark, stack_.empty() ? "the document is empty"
                          : is_key       ? "a key is null; if the word is meant, write \"null\""
                                         : "null (an empty value) is not allowed"};
    }
    // yaml-cpp gives an empty value the place of what follows it.
    const Key& key = *stack_.back().key;
    YAML::Mark place;
    place.line = key.line - 1;
    place.column = key.column - 1;
    throw Refused{place, StrCat("null (an empty value) is not allowed: '", key.name, "'")};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Check(mark, tag, anchor);
    if (!stack_.empty() && stack_.back().kind == Node::Kind::kMap && !stack_.back().key) {
      BeginEntry(mark, value);
      return;
    }
    Node node;
    node.scalar = value;
    Place(mark, std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    Open(mark, Node::Kind::kList);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Check(mark, tag, anchor);
    Open(mark, Node::Kind::kMap);
  }
  void OnMapEnd() override { Close(); }

  bool have_root() const { return have_root_; }
  Node TakeRoot() { return std::move(root_); }

 private:
  struct Key {
    std::string name;
    int line = 0;
    int column = 0;
    bool is_repeated = false;
  };
  struct Level {
    Node::Kind kind = Node::Kind::kMap;
    Node node;
    std::optional<Key> key;                        // map: read, its value not yet
    std::map<std::string, Key, std::less<>> seen;  // map: where each key stands
  };

  void Check(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (anchor != 0) throw Refused{mark, "anchors are not allowed"};
    if (!tag.empty() && tag != "?" && tag != "!") {
      throw Refused{mark, StrCat("tags are not allowed: ", tag)};
    }
    if (++nodes_ > kDocumentNodesMax) {
      throw Refused{mark, StrCat("more than ", kDocumentNodesMax, " nodes")};
    }
  }

  void BeginEntry(const YAML::Mark& mark, const std::string& name) {
    Level& level = stack_.back();
    Key key{name, mark.line + 1, mark.column + 1};
    if (name == "<<") throw Refused{mark, "merge keys are not allowed: <<"};
    const auto [at, is_new] = level.seen.emplace(name, key);
    if (!is_new) {
      key.is_repeated = true;
      faults_->push_back({LocationText(file_name_, key.line, key.column), "",
                          StrCat("key '", name, "' is given twice in one mapping: on line ",
                                 at->second.line, " and on line ", key.line)});
    }
    level.key = std::move(key);
  }

  void Open(const YAML::Mark& mark, Node::Kind kind) {
    if (!stack_.empty() && stack_.back().kind == Node::Kind::kMap && !stack_.back().key) {
      throw Refused{mark, "a key must be a plain word (or a bracket is not closed)"};
    }
    if (stack_.size() >= kDocumentLevelsMax) {
      throw Refused{mark, StrCat("more than ", kDocumentLevelsMax, " levels")};
    }
    Level level;
    level.kind = kind;
    level.node.kind = kind;
    level.node.line = mark.line + 1;
    level.node.column = mark.column + 1;
    stack_.push_back(std::move(level));
  }

  void Close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    Place({}, std::move(node));
  }

  void Place(const YAML::Mark& mark, Node node) {
    if (node.line == 0) {
      node.line = mark.line + 1;
      node.column = mark.column + 1;
    }
    if (stack_.empty()) {
      root_ = std::move(node);
      have_root_ = true;
      return;
    }
    Level& level = stack_.back();
    if (level.kind == Node::Kind::kList) {
      level.node.items.push_back(std::move(node));
      return;
    }
    if (!level.key->is_repeated) {
      level.node.entries.push_back(
          {std::move(level.key->name), level.key->line, level.key->column, std::move(node)});
    }
    level.key.reset();
  }

  std::string_view file_name_;
  std::vector<Fault>* faults_;
  std::vector<Level> stack_;
  Node root_;
  bool have_root_ = false;
  size_t nodes_ = 0;
};

// What yaml-cpp would take, or take differently, and YAML or we do not. Line ends become LF.
bool Prepare(std::string_view file_name, std::string_view text, std::string* out,
             std::vector<Fault>* faults) {
  const auto refuse = [&](int line, int column, std::string message) {
    faults->push_back({LocationText(file_name, line, column), "", std::move(message)});
    return false;
  };
  if (text.size() > kDocumentBytesMax) {
    return refuse(
        0, 0,
        StrCat("the file has ", text.size(), " bytes, at most ", kDocumentBytesMax, " are read"));
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  out->reserve(text.size() + 1);
  int line = 1;
  int column = 0;
  bool is_indent = true;
  int tab_column = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    ++column;
    if (c == '\r') {
      if (i + 1 >= text.size() || text[i + 1] != '\n') {
        return refuse(line, column, "a carriage return without a line feed");
      }
      continue;
    }
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
      return refuse(line, column, StrCat("control character ", static_cast<int>(c)));
    }
    if (c == '\n') {
      ++line;
      column = 0;
      is_indent = true;
      tab_column = 0;
    } else if (c == '\t' && is_indent) {
      if (tab_column == 0) tab_column = column;
    } else if (c != ' ' && c != '\t' && is_indent) {
      is_indent = false;
      if (tab_column != 0 && c != '#') {
        return refuse(line, tab_column, "a tab in the indentation; indent with blanks");
      }
    }
    out->push_back(c);
  }
  if (!IsValidUtf8(text)) {
    return refuse(0, 0, "the file is not valid UTF-8");
  }
  // yaml-cpp takes a quote that the end of the text leaves open, but not one that this line cuts.
  if (!out->empty() && out->back() != '\n') out->push_back('\n');
  out->append("...\n");
  return true;
}

}  // namespace

std::string LocationText(std::string_view file_name, int line, int column) {
  if (line == 0) return std::string(file_name);
  return StrCat(file_name, ":", line, ":", column);
}

bool ParseDocument(std::string_view file_name, std::string_view text, Node* out,
                   std::vector<Fault>* faults) {
  std::string prepared;
  if (!Prepare(file_name, text, &prepared, faults)) return false;
  const size_t faults_before = faults->size();
  TreeBuilder builder(file_name, faults);
  const auto refuse = [&](const YAML::Mark& mark, std::string message) {
    const bool is_placed = !mark.is_null();
    faults->push_back({LocationText(file_name, is_placed ? mark.line + 1 : 0, mark.column + 1), "",
                       std::move(message)});
    return false;
  };
  // The one place outside torch code that catches: yaml-cpp reports by throwing.
  try {
    std::istringstream stream(prepared);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder) || !builder.have_root()) {
      return refuse(YAML::Mark::null_mark(), "the document is empty");
    }
    TreeBuilder second("", faults);
    if (parser.HandleNextDocument(second)) {
      return refuse(YAML::Mark::null_mark(), "more than one document in the file");
    }
  } catch (const Refused& refused) {
    return refuse(refused.mark, refused.message);
  } catch (const YAML::Exception& error) {
    return refuse(error.mark, StrCat("not valid YAML: ", error.msg));
  } catch (const std::exception& error) {
    return refuse(YAML::Mark::null_mark(), StrCat("not readable as YAML: ", error.what()));
  }
  if (faults->size() != faults_before) return false;
  *out = builder.TakeRoot();
  return true;
}

// Depth is bounded by the sender's parser here, and by protobuf's limit of 100 on the wire.
Node NodeFromValue(const pb::Value& value) {
  Node node;
  switch (value.kind_case()) {
    case pb::Value::kScalar:
    case pb::Value::KIND_NOT_SET:
      node.scalar = value.scalar();
      break;
    case pb::Value::kList:
      node.kind = Node::Kind::kList;
      for (const pb::Value& item : value.list().items()) node.items.push_back(NodeFromValue(item));
      break;
    case pb::Value::kMap:
      node.kind = Node::Kind::kMap;
      for (const pb::ValueEntry& entry : value.map().entries()) {
        node.entries.push_back({entry.key(), 0, 0, NodeFromValue(entry.value())});
      }
      break;
  }
  return node;
}

void NodeToValue(const Node& node, pb::Value* value) {
  switch (node.kind) {
    case Node::Kind::kScalar:
      value->set_scalar(node.scalar);
      break;
    case Node::Kind::kList:
      value->mutable_list();
      for (const Node& item : node.items) NodeToValue(item, value->mutable_list()->add_items());
      break;
    case Node::Kind::kMap:
      value->mutable_map();
      for (const Node::Entry& entry : node.entries) {
        pb::ValueEntry* out = value->mutable_map()->add_entries();
        out->set_key(entry.key);
        NodeToValue(entry.value, out->mutable_value());
      }
      break;
  }
}

std::string NodeText(const Node& node) {
  std::string text;
  switch (node.kind) {
    case Node::Kind::kScalar:
      return node.scalar;
    case Node::Kind::kList:
      for (const Node& item : node.items) {
        text += StrCat(text.empty() ? "" : ", ", NodeText(item));
      }
      return StrCat("[", text, "]");
    case Node::Kind::kMap:
      for (const Node::Entry& entry : node.entries) {
        text += StrCat(text.empty() ? "" : ", ", entry.key, ": ", NodeText(entry.value));
      }
      return StrCat("{", text, "}");
  }
  return text;
}

}  // namespace switchyard::spec
