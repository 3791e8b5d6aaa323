#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

namespace switchyard::client {

// `text` as one component of a path that any file system takes: letters, digits, `.`, `_` and `-`;
// anything else becomes `_`. No leading dot, at most `bytes_max` bytes, never empty.
std::string SafeComponent(std::string_view text, size_t bytes_max = 100);

// Gives names that may hold anything (series, axes, domains) relative paths, one for each, always
// the same one for the same name. A path never leaves its folder, and none is the folder of another
// one. Names that are fine already keep their form: "valid/c/bits_per_byte".
class PathTable {
 public:
  const std::string& PathOf(const std::string& name);

 private:
  // A file must be no folder and no other file; folders are shared.
  std::string FreePath(const std::string& wanted, bool is_file) const;

  std::map<std::string, std::string> paths_;  // by name
  std::set<std::string> files_;
  std::set<std::string> folders_;  // all levels
};

}  // namespace switchyard::client
