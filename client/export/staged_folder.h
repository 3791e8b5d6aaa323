#pragma once

#include <string>
#include <string_view>

#include "common/base/file.h"
#include "common/base/status.h"

namespace switchyard::client {

// A folder that is filled under another name beside its place and appears whole or not at all. One
// that is not published goes with the object; what a killed process has left goes with the next
// attempt at the same place.
class StagedFolder {
 public:
  // kAlreadyExists: something is at `target`, whatever it is; kNotFound: its parent is missing.
  static Result<StagedFolder> Make(const std::string& target);
  ~StagedFolder();
  StagedFolder(StagedFolder&&) noexcept;
  StagedFolder& operator=(StagedFolder&&) = delete;

  // Where to write now.
  const std::string& path() const { return path_; }
  // Absolute name that it will have.
  const std::string& target() const { return target_; }
  // Syncs everything and puts it in place. kAlreadyExists: somebody else was faster.
  Status Publish();

 private:
  StagedFolder(std::string target, std::string path, UniqueFd lock);

  std::string target_;
  std::string path_;  // empty: published, or moved from
  UniqueFd lock_;     // held on the folder while it is being filled
};

// A new file that is written from front to end. Errors come from the call that meets them.
class OutputFile {
 public:
  // kAlreadyExists: the file is there.
  static Result<OutputFile> Make(const std::string& path);
  Status Append(std::string_view data);
  // Writes what is buffered; nothing may be appended afterwards.
  Status Close();

 private:
  OutputFile(std::string path, UniqueFd fd);

  std::string path_;
  UniqueFd fd_;
  std::string buffer_;
};

// A small file whose folder is made as well.
Status WriteNewFile(const std::string& path, std::string_view data);
// Behind what is there; file and folder are made where they are missing.
Status AppendToFile(const std::string& path, std::string_view data);

}  // namespace switchyard::client
