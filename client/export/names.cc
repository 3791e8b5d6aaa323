#include "client/export/names.h"

#include <vector>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

bool IsSafe(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '_' || c == '-';
}

}  // namespace

std::string SafeComponent(std::string_view text, size_t bytes_max) {
  std::string safe;
  for (const char c : text.substr(0, bytes_max)) safe += IsSafe(c) ? c : '_';
  if (safe.empty()) return "_";
  if (safe[0] == '.') safe[0] = '_';
  return safe;
}

const std::string& PathTable::PathOf(const std::string& name) {
  const auto known = paths_.find(name);
  if (known != paths_.end()) return known->second;
  const std::vector<std::string> parts = StrSplit(name, '/');
  std::string path;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_file = i + 1 == parts.size();
    path = FreePath(StrCat(path, i > 0 ? "/" : "", SafeComponent(parts[i])), is_file);
    (is_file ? files_ : folders_).insert(path);
  }
  return paths_.emplace(name, path).first->second;
}

std::string PathTable::FreePath(const std::string& wanted, bool is_file) const {
  std::string path = wanted;
  for (int copy = 2; files_.contains(path) || (is_file && folders_.contains(path)); ++copy) {
    path = StrCat(wanted, "-", copy);
  }
  return path;
}

}  // namespace switchyard::client
