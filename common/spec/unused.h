#pragma once

#include <string>
#include <vector>

namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::spec {

// A field that is set, but that the run's kinds of data, backbone or router never read.
struct UnusedField {
  std::string path;
  // "a decoder has no memory".
  std::string reason;
  bool operator==(const UnusedField&) const = default;
};

// Clears such fields of a run as written (before defaults) and names them. After that, and after
// FillDefaults, there are none.
std::vector<UnusedField> DropUnused(v1::RunSpec* run);

}  // namespace switchyard::spec
