#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::spec {

// Names for `preset`, in the order of docs/spec-reference.md.
std::vector<std::string> PresetNames();
// The fragment of that name; false when there is none.
bool LoadPreset(std::string_view name, v1::RunSpec* out);

}  // namespace switchyard::spec
