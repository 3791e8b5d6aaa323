#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/fault.h"

namespace google::protobuf {
class Message;
}
namespace switchyard::v1 {
class SweepSpec;
class Value;
}  // namespace switchyard::v1

namespace switchyard::spec {

// `--set PATH=VALUE`: laid over `base`, below the axes; refused on a path that an axis owns.
struct Override {
  std::string path;
  std::string value;
};

// Reads a sweep file (docs/spec-reference.md): YAML text into a SweepSpec, with preset, base and
// overrides kept apart as written. Types come from the field. Returns the faults; `out` is whole
// only when there are none. Never throws. `text` over 1 MiB, anchors, aliases, tags, null,
// duplicate keys, more than 64 levels or 100,000 nodes are faults.
std::vector<Fault> ReadSweepYaml(std::string_view file_name, std::string_view text,
                                 const std::vector<Override>& overrides, v1::SweepSpec* out);

// Gives faults about fields (of SweepPlan, or from a coordinator) the place in `text` where the
// field or its nearest enclosing mapping stands. Leaves located ones, and all of them when `text`
// is no YAML.
void LocateFaults(std::string_view file_name, std::string_view text, std::vector<Fault>* faults);

// Lays `value` on the field at dotted `path` of `message`, replacing what is there; the field's
// type decides how scalars are read. The path may end in `.kind` of a oneof, and may go through
// list elements by id. `location` goes into the faults.
std::vector<Fault> LayValue(google::protobuf::Message* message, std::string_view path,
                            const v1::Value& value, std::string_view location);

}  // namespace switchyard::spec
