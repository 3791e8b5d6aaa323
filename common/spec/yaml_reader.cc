#include "common/spec/yaml_reader.h"

#include <google/protobuf/descriptor.h>

#include "common/base/strings.h"
#include "common/spec/document.h"
#include "common/spec/lay.h"
#include "common/spec/sweep_layout.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::FieldDescriptor;

class SweepReader {
 public:
  SweepReader(std::string_view file_name, std::vector<Fault>* faults, pb::SweepSpec* out)
      : layer_(file_name, faults), file_name_(file_name), faults_(faults), out_(out) {}

  void Read(const Node& document) {
    if (document.kind != Node::Kind::kMap) {
      layer_.AddFault(document, "", "a sweep file is a mapping: name, base, space, ...");
      return;
    }
    for (const Node::Entry& entry : document.entries) ReadEntry(entry);
  }

  void AddOverride(const Override& set) {
    const std::string location =
        StrCat("--set ", EscapeForTerminal(set.path), "=", EscapeForTerminal(set.value));
    Node value;
    value.scalar = set.value;
    // Only what looks like structure is read as YAML: a text or a number needs no quotes.
    if (!set.value.empty() &&
        std::string_view("[{\"'").find(set.value.front()) != std::string_view::npos) {
      if (!ParseDocument(location, set.value, &value, faults_)) return;
    } else if (!IsValidUtf8(set.value)) {
      faults_->push_back({location, "", "the value is not valid UTF-8"});
      return;
    }
    if (!IsValidUtf8(set.path)) {
      faults_->push_back({location, "", "the path is not valid UTF-8"});
      return;
    }
    pb::SetEntry* entry = out_->add_sets();
    entry->set_path(set.path);
    NodeToValue(value, entry->mutable_value());
  }

  const std::vector<Axis>& axes() const { return axes_; }

 private:
  void ReadEntry(const Node::Entry& entry) {
    const FieldDescriptor* field = FindWritten(pb::SweepSpec::descriptor(), entry.key);
    if (field == nullptr) {
      field = FindWritten(pb::PolicySpec::descriptor(), entry.key);
      if (field != nullptr) {
        layer_.LayField(out_->mutable_policy(), field, entry.value, entry.key);
      } else {
        layer_.Unknown(pb::SweepSpec::descriptor(), entry.key,
                       layer_.Location(entry.line, entry.column), "");
      }
      return;
    }
    if (field->number() == pb::SweepSpec::kBaseFieldNumber) {
      ReadBase(entry);
      return;
    }
    if (field->number() == pb::SweepSpec::kPresetFieldNumber) {
      ReadPreset(entry.value, "preset");
      return;
    }
    layer_.LayField(out_, field, entry.value, entry.key);
    if (field->number() == pb::SweepSpec::kSpaceFieldNumber) KeepAxes(entry.value);
  }

  // `preset` stands at the top or in `base`, which it lies under.
  void ReadBase(const Node::Entry& entry) {
    Node fields = entry.value;
    std::erase_if(fields.entries, [&](const Node::Entry& inner) {
      if (inner.key != "preset") return false;
      ReadPreset(inner.value, "base.preset");
      return true;
    });
    layer_.LayMessage(out_->mutable_base(), fields, "base");
  }

  void ReadPreset(const Node& value, const std::string& path) {
    const std::string before = out_->preset();
    layer_.LayField(
        out_, pb::SweepSpec::descriptor()->FindFieldByNumber(pb::SweepSpec::kPresetFieldNumber),
        value, path);
    if (!before.empty() && before != out_->preset()) {
      layer_.AddFault(value, path, StrCat("another preset is given already: ", before));
    }
  }

  // The grid once more, with its places in the file, for the faults of paths and values.
  void KeepAxes(const Node& space) {
    for (const Node::Entry& entry : space.entries) {
      if (entry.key != "grid") continue;
      for (const Node::Entry& axis : entry.value.entries) {
        axes_.push_back({.path = axis.key, .values = axis.value.items});
      }
      for (const Node& axis : entry.value.items) {
        layer_.AddFault(axis, "space.grid", "the grid is a mapping from paths to lists of values");
      }
    }
  }

  Layer layer_;
  std::string_view file_name_;
  std::vector<Fault>* faults_;
  pb::SweepSpec* out_;
  std::vector<Axis> axes_;
};

const Node::Entry* FindEntry(const Node& node, std::string_view key) {
  for (const Node::Entry& entry : node.entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

// The deepest entry on `path` below `node`, and in `depth` how many segments it covers.
const Node::Entry* Descend(const Node& node, std::string_view path, int* depth) {
  const Node* at = &node;
  const Node::Entry* deepest = nullptr;
  *depth = 0;
  while (!path.empty()) {
    const size_t dot = path.find('.');
    const Node::Entry* entry = FindEntry(*at, path.substr(0, dot));
    if (entry == nullptr) break;
    deepest = entry;
    ++*depth;
    at = &entry->value;
    path = dot == std::string_view::npos ? std::string_view() : path.substr(dot + 1);
  }
  return deepest;
}

}  // namespace

void LocateFaults(std::string_view file_name, std::string_view text, std::vector<Fault>* faults) {
  Node document;
  std::vector<Fault> unreadable;
  if (!ParseDocument(file_name, text, &document, &unreadable)) return;
  const Node::Entry* base = FindEntry(document, "base");
  const Node::Entry* space = FindEntry(document, "space");
  const Node::Entry* grid = space == nullptr ? nullptr : FindEntry(space->value, "grid");
  for (Fault& fault : *faults) {
    if (!fault.location.empty() || fault.path.empty()) continue;
    int depth = 0;
    const Node::Entry* place = Descend(document, fault.path, &depth);
    if (base != nullptr) {
      int depth_in_base = 0;
      const Node::Entry* in_base = Descend(base->value, fault.path, &depth_in_base);
      if (depth_in_base > depth) place = in_base;
      if (place == nullptr) place = base;
    }
    // An axis lies over the base.
    static const std::vector<Node::Entry> no_axes;
    for (const Node::Entry& axis : grid == nullptr ? no_axes : grid->value.entries) {
      if (IsAtOrBelow(fault.path, axis.key) || IsAtOrBelow(axis.key, fault.path)) place = &axis;
    }
    if (place != nullptr) fault.location = LocationText(file_name, place->line, place->column);
  }
}

std::vector<Fault> ReadSweepYaml(std::string_view file_name, std::string_view text,
                                 const std::vector<Override>& overrides, pb::SweepSpec* out) {
  std::vector<Fault> faults;
  out->Clear();
  Node document;
  if (!ParseDocument(file_name, text, &document, &faults)) return faults;
  SweepReader reader(file_name, &faults, out);
  reader.Read(document);
  for (const Override& set : overrides) reader.AddOverride(set);
  // Wrong paths and values of axes are wanted beside the other faults; what follows from a wrong
  // base is not.
  const size_t own_faults = faults.size();
  std::vector<Fault> of_layout;
  SweepLayout::Make(*out, &reader.axes(), file_name, &of_layout);
  for (Fault& fault : of_layout) {
    if (own_faults == 0 || fault.location.find(':') != std::string::npos) {
      faults.push_back(std::move(fault));
    }
  }
  return faults;
}

}  // namespace switchyard::spec
