#include "worker/data/glob.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>

#include "common/base/strings.h"

namespace switchyard::data {
namespace {

constexpr size_t kMaxMatches = 1000000;
constexpr size_t kMaxVisited = 5000000;
constexpr size_t kMaxDepth = 256;

// Whether `c` is in the bracket expression at pattern[at] ('['); `end` is set behind its ']'. An
// unclosed bracket is a plain '['.
bool MatchesBracket(std::string_view pattern, size_t at, char c, size_t& end) {
  size_t i = at + 1;
  const bool is_negated = i < pattern.size() && (pattern[i] == '!' || pattern[i] == '^');
  if (is_negated) ++i;
  const size_t first = i;
  bool is_in = false;
  const auto value = static_cast<unsigned char>(c);
  while (i < pattern.size() && (pattern[i] != ']' || i == first)) {
    const auto low = static_cast<unsigned char>(pattern[i]);
    auto high = low;
    if (i + 2 < pattern.size() && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
      high = static_cast<unsigned char>(pattern[i + 2]);
      i += 2;
    }
    if (value >= low && value <= high) is_in = true;
    ++i;
  }
  if (i >= pattern.size()) {
    end = at + 1;
    return c == '[';
  }
  end = i + 1;
  return is_in != is_negated;
}

struct DirectoryEntry {
  std::string name;
  bool is_folder = false;  // itself, not through a link
  bool is_link = false;
};

class Expander {
 public:
  explicit Expander(std::vector<std::string> components) : components_(std::move(components)) {}

  Status Run(const std::string& start) {
    SWITCHYARD_RETURN_IF_ERROR(Expand(start, 0, 0));
    return OkStatus();
  }
  std::set<std::string>& matches() { return matches_; }
  std::set<std::string>& unreadable() { return unreadable_; }

 private:
  static std::string Join(const std::string& folder, std::string_view name) {
    if (folder.empty() || folder.back() == '/') return folder + std::string(name);
    return StrCat(folder, "/", name);
  }

  static bool IsFolder(const std::string& path) {
    struct stat info {};
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  }

  Status Add(const std::string& path) {
    matches_.insert(path);
    if (matches_.size() > kMaxMatches) {
      return ResourceExhausted(StrCat("a glob matches more than ", kMaxMatches, " names"));
    }
    return OkStatus();
  }

  Status List(const std::string& folder, std::vector<DirectoryEntry>* entries) {
    const std::unique_ptr<DIR, int (*)(DIR*)> directory(
        ::opendir(folder.empty() ? "." : folder.c_str()), ::closedir);
    if (directory == nullptr) {
      // A pattern may well name folders that are not there, or are files.
      if (errno != ENOENT && errno != ENOTDIR) unreadable_.insert(folder);
      return OkStatus();
    }
    while (const dirent* entry = ::readdir(directory.get())) {
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      if (++visited_ > kMaxVisited) {
        return ResourceExhausted(
            StrCat("a glob looked at more than ", kMaxVisited, " names; make it narrower"));
      }
      bool is_folder = entry->d_type == DT_DIR;
      bool is_link = entry->d_type == DT_LNK;
      if (entry->d_type == DT_UNKNOWN) {
        struct stat info {};
        if (::lstat(Join(folder, name).c_str(), &info) != 0) continue;
        is_folder = S_ISDIR(info.st_mode);
        is_link = S_ISLNK(info.st_mode);
      }
      entries->push_back({.name = std::string(name), .is_folder = is_folder, .is_link = is_link});
    }
    return OkStatus();
  }

  Status Expand(const std::string& folder, size_t at, size_t depth) {
    if (depth > kMaxDepth) {
      return ResourceExhausted(
          StrCat("folders lie deeper than ", kMaxDepth, " levels below a glob"));
    }
    const std::string& component = components_[at];
    const bool is_last = at + 1 == components_.size();
    if (component == "**") {
      SWITCHYARD_RETURN_IF_ERROR(Expand(folder, at + 1, depth));
      std::vector<DirectoryEntry> entries;
      SWITCHYARD_RETURN_IF_ERROR(List(folder, &entries));
      for (const DirectoryEntry& entry : entries) {
        if (!entry.is_folder || entry.name.front() == '.') continue;
        SWITCHYARD_RETURN_IF_ERROR(Expand(Join(folder, entry.name), at, depth + 1));
      }
      return OkStatus();
    }
    if (!IsGlob(component)) {
      const std::string path = Join(folder, component);
      if (!is_last) return Expand(path, at + 1, depth);
      struct stat info {};
      return ::lstat(path.c_str(), &info) == 0 ? Add(path) : OkStatus();
    }
    std::vector<DirectoryEntry> entries;
    SWITCHYARD_RETURN_IF_ERROR(List(folder, &entries));
    for (const DirectoryEntry& entry : entries) {
      if (!MatchesComponent(component, entry.name)) continue;
      const std::string path = Join(folder, entry.name);
      if (is_last) {
        SWITCHYARD_RETURN_IF_ERROR(Add(path));
      } else if (entry.is_folder || (entry.is_link && IsFolder(path))) {
        SWITCHYARD_RETURN_IF_ERROR(Expand(path, at + 1, depth + 1));
      }
    }
    return OkStatus();
  }

  std::vector<std::string> components_;
  std::set<std::string> matches_;
  std::set<std::string> unreadable_;
  size_t visited_ = 0;
};

}  // namespace

bool IsGlob(std::string_view pattern) {
  return pattern.find_first_of("*?[") != std::string_view::npos;
}

bool MatchesComponent(std::string_view pattern, std::string_view name) {
  if (name.starts_with('.') && !pattern.starts_with('.')) return false;
  size_t p = 0;
  size_t n = 0;
  // Where to go on after a mismatch: behind the last star, one more byte swallowed by it.
  size_t star = std::string_view::npos;
  size_t star_name = 0;
  while (n < name.size()) {
    size_t next = p + 1;
    bool matches = false;
    if (p < pattern.size()) {
      if (pattern[p] == '*') {
        star = p++;
        star_name = n;
        continue;
      }
      if (pattern[p] == '?') {
        matches = true;
      } else if (pattern[p] == '[') {
        matches = MatchesBracket(pattern, p, name[n], next);
      } else {
        matches = pattern[p] == name[n];
      }
    }
    if (matches) {
      p = next;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Result<GlobMatches> ExpandGlob(std::string_view pattern) {
  std::vector<std::string> components;
  for (std::string& part : StrSplit(pattern, '/')) {
    if (part.empty() || part == ".") continue;
    // Two in a row say the same as one, at twice the work.
    if (part == "**" && !components.empty() && components.back() == "**") continue;
    components.push_back(std::move(part));
  }
  if (components.empty()) return GlobMatches{};
  if (components.back() == "**") components.emplace_back("*");
  Expander expander(std::move(components));
  SWITCHYARD_RETURN_IF_ERROR(expander.Run(pattern.starts_with('/') ? "/" : ""));
  GlobMatches out;
  out.paths.assign(expander.matches().begin(), expander.matches().end());
  out.unreadable.assign(expander.unreadable().begin(), expander.unreadable().end());
  return out;
}

}  // namespace switchyard::data
