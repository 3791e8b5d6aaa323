#include "common/spec/yaml_reader.h"

#include <algorithm>
#include <optional>

#include <google/protobuf/descriptor.h>

#include "common/base/strings.h"
#include "common/spec/document.h"
#include "common/spec/lay.h"
#include "common/spec/space.h"
#include "common/spec/sweep_layout.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;
using google::protobuf::FieldDescriptor;

class SweepReader {
 public:
  SweepReader(std::string_view file_name, std::vector<Fault>* faults, pb::SweepSpec* out)
      : layer_(file_name, faults), faults_(faults), out_(out) {}

  void Read(const Node& document) {
    if (document.kind != Node::Kind::kMap) {
      layer_.AddFault(document, "", "a sweep file is a mapping: name, base, space, ...");
      return;
    }
    layer_.LayMessage(out_, document, "");
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
    // STAGE:PATH; no path has a colon.
    const size_t colon = set.path.find(':');
    if (colon != std::string::npos) entry->set_stage(set.path.substr(0, colon));
    entry->set_path(colon == std::string::npos ? set.path : set.path.substr(colon + 1));
    NodeToValue(value, entry->mutable_value());
  }

 private:
  Layer layer_;
  std::vector<Fault>* faults_;
  pb::SweepSpec* out_;
};

const Node::Entry* FindEntry(const Node& node, std::string_view key) {
  for (const Node::Entry& entry : node.entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

// The deepest entry on `path` below `node`, and in `depth` how many segments it covers. Keys may
// hold dots: the longest one that fits is meant. "jobs[2]" is the third item of `jobs`.
const Node::Entry* Descend(const Node& node, std::string_view path, int* depth) {
  const Node* at = &node;
  const Node::Entry* deepest = nullptr;
  *depth = 0;
  while (!path.empty()) {
    const Node::Entry* found = nullptr;
    for (const Node::Entry& entry : at->entries) {
      const bool fits = path.starts_with(entry.key) &&
                        (path.size() == entry.key.size() || path[entry.key.size()] == '.' ||
                         path[entry.key.size()] == '[');
      if (fits && (found == nullptr || entry.key.size() > found->key.size())) found = &entry;
    }
    if (found == nullptr) break;
    deepest = found;
    *depth += 1 + static_cast<int>(std::count(found->key.begin(), found->key.end(), '.'));
    at = &found->value;
    path.remove_prefix(found->key.size());
    if (path.starts_with('[')) {
      const size_t close = std::min(path.find(']'), path.size() - 1);
      const std::optional<uint64_t> index = ParseUint64(path.substr(1, close - 1));
      if (index && *index < at->items.size()) at = &at->items[*index];
      path.remove_prefix(close + 1);
    }
    if (path.starts_with('.')) path.remove_prefix(1);
  }
  return deepest;
}

// Every entry of a space that lays something at a path, those of alternatives included.
void CollectLaid(const Node& space, std::vector<const Node::Entry*>* out) {
  for (const Node::Entry& block : space.entries) {
    if (block.key == "zip") {
      for (const Node::Entry& group : block.value.entries) {
        for (const Node::Entry& path : group.value.entries) out->push_back(&path);
      }
    } else if (block.key == "choice") {
      for (const Node::Entry& choice : block.value.entries) {
        for (const Node::Entry& alternative : choice.value.entries) {
          if (const Node::Entry* set = FindEntry(alternative.value, "set"); set != nullptr) {
            for (const Node::Entry& path : set->value.entries) out->push_back(&path);
          }
          CollectLaid(alternative.value, out);
        }
      }
    } else {
      for (const Node::Entry& axis : block.value.entries) out->push_back(&axis);
    }
  }
}

// The place of a field: in the document, in a base, or where an axis lays it.
class Locator {
 public:
  explicit Locator(const Node& document) : document_(document) {}

  const Node::Entry* Find(std::string_view path) const {
    int depth = 0;
    const Node::Entry* place = Descend(document_, path, &depth);
    const Node* part = &document_;
    if (path.starts_with("stages.") && depth >= 2) {
      // "stages.NAME.base.FIELD": by its base, else by the base of the sweep.
      const Node::Entry* stages = FindEntry(document_, "stages");
      const std::string_view below = path.substr(std::string_view("stages.").size());
      for (const Node::Entry& stage : stages->value.entries) {
        if (IsAtOrBelow(below, stage.key)) part = &stage.value;
      }
      const size_t base = path.find(".base.");
      path = base == std::string_view::npos ? "" : path.substr(base + 6);
      depth -= 3;
    }
    if (path.empty()) return place;
    place = InBase(*part, path, depth, place);
    if (part != &document_ && depth <= 0) place = InBase(document_, path, depth, place);
    if (const Node::Entry* space = FindEntry(*part, "space"); space != nullptr) {
      // An axis lies over the base.
      std::vector<const Node::Entry*> laid;
      CollectLaid(space->value, &laid);
      for (const Node::Entry* entry : laid) {
        if (IsAtOrBelow(path, entry->key) || IsAtOrBelow(entry->key, path)) place = entry;
      }
    }
    return place;
  }

 private:
  static const Node::Entry* InBase(const Node& part, std::string_view path, int depth,
                                   const Node::Entry* place) {
    const Node::Entry* base = FindEntry(part, "base");
    if (base == nullptr) return place;
    int depth_in_base = 0;
    const Node::Entry* in_base = Descend(base->value, path, &depth_in_base);
    if (depth_in_base > depth) return in_base;
    return place == nullptr ? base : place;
  }

  const Node& document_;
};

}  // namespace

void LocateFaults(std::string_view file_name, std::string_view text, std::vector<Fault>* faults) {
  Node document;
  std::vector<Fault> unreadable;
  if (!ParseDocument(file_name, text, &document, &unreadable)) return;
  const Locator locator(document);
  for (Fault& fault : *faults) {
    if (!fault.location.empty() || fault.path.empty()) continue;
    const Node::Entry* place = locator.Find(fault.path);
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
  if (out->stages().empty()) {
    SweepLayout::Make({.sweep = out, .document = &document, .file_name = file_name}, &of_layout);
  }
  for (const pb::StageSpec& stage : out->stages()) {
    if (stage.has_needs()) {
      // What its axes lie over is known only with its parents.
      const Node::Entry* stages = FindEntry(document, "stages");
      const Node::Entry* part = stages == nullptr ? nullptr : FindEntry(stages->value, stage.id());
      const Node::Entry* space = part == nullptr ? nullptr : FindEntry(part->value, "space");
      ReadSpace(stage.space(), StrCat("stages.", stage.id(), ".space"),
                space == nullptr ? nullptr : &space->value, file_name, &of_layout);
    } else {
      SweepLayout::Make(
          {.sweep = out, .stage = &stage, .document = &document, .file_name = file_name},
          &of_layout);
    }
  }
  for (Fault& fault : of_layout) {
    if (own_faults == 0 || fault.location.find(':') != std::string::npos) {
      faults.push_back(std::move(fault));
    }
  }
  return faults;
}

}  // namespace switchyard::spec
