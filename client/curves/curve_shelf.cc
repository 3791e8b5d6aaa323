#include "client/curves/curve_shelf.h"

#include <cerrno>
#include <cstdio>

#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr char kEnding[] = ".csv";
constexpr size_t kNameBytesMax = 64;
constexpr uint64_t kFileBytesMax = uint64_t{1} << 30;

bool IsName(const std::string& name) {
  const auto is_end = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
  if (name.empty() || name.size() > kNameBytesMax) return false;
  if (!is_end(name.front()) || !is_end(name.back())) return false;
  if (name.find("..") != std::string::npos) return false;
  for (const char c : name) {
    if (!is_end(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

}  // namespace

Result<CurveShelf> CurveShelf::Open(const std::function<const char*(const char*)>& getenv) {
  const auto variable = [&](const char* name) {
    const char* value = getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  std::string base = variable("XDG_DATA_HOME");
  if (base.empty() && !variable("HOME").empty()) base = variable("HOME") + "/.local/share";
  if (base.empty()) {
    return FailedPrecondition(
        "imported curves have no place: neither $XDG_DATA_HOME nor $HOME is set");
  }
  return CurveShelf(base + "/switchyard/curves");
}

Result<std::string> CurveShelf::PathOf(const std::string& name) const {
  if (!IsName(name)) {
    return InvalidArgument(
        StrCat("\"", name, "\" is no name of a set of curves: up to 64 of a-z, 0-9, \".\", \"_\", ",
               "\"-\", the first and the last a letter or digit (--name gives one)"));
  }
  return StrCat(folder_, "/", name, kEnding);
}

Status CurveShelf::NotThere(const std::string& name) const {
  const Result<std::vector<std::string>> names = Names();
  if (!names.ok()) return names.status();
  return NotFound(StrCat("no imported curves are called ", name,
                         "; there are: ", names->empty() ? "none" : StrJoin(*names, ", ")));
}

Status CurveShelf::Put(const CurveSet& set, bool replaces) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string path, PathOf(set.name));
  if (!replaces && FileExists(path)) {
    return AlreadyExists(
        StrCat("there are imported curves called ", set.name, "; --replace takes their place"));
  }
  SWITCHYARD_RETURN_IF_ERROR(MakeDirectories(folder_));
  return WriteFileAtomically(path, WriteCurveFile(set));
}

Result<CurveSet> CurveShelf::Get(const std::string& name) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string path, PathOf(name));
  const Result<std::string> text = ReadFile(path, kFileBytesMax);
  if (text.status().code() == Code::kNotFound) return NotThere(name);
  if (!text.ok()) return text.status();
  CurveFileNotes notes;
  return ReadCurveFile(path, *text, name, {}, &notes);
}

Status CurveShelf::Remove(const std::string& name) const {
  SWITCHYARD_ASSIGN_OR_RETURN(const std::string path, PathOf(name));
  if (std::remove(path.c_str()) == 0) return OkStatus();
  return errno == ENOENT ? NotThere(name) : ErrnoStatus("cannot remove", path, errno);
}

Result<std::vector<std::string>> CurveShelf::Names() const {
  const Result<std::vector<std::string>> files = ListDirectory(folder_);
  if (files.status().code() == Code::kNotFound) return std::vector<std::string>();
  if (!files.ok()) return files.status();
  std::vector<std::string> names;
  for (const std::string& file : *files) {
    if (!file.ends_with(kEnding)) continue;
    const std::string name = file.substr(0, file.size() - (sizeof kEnding - 1));
    if (IsName(name)) names.push_back(name);
  }
  return names;
}

}  // namespace switchyard::client
