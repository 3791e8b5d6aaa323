#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard::data {

// A folder of its own that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string Path(std::string_view name) const;
  // Writes a file, making its folders; returns its path.
  std::string Write(std::string_view name, std::string_view content) const;

 private:
  std::string path_;
};

// A gzip member of `text`.
std::string Gzip(std::string_view text);

// Folder of sample data ($SWITCHYARD_SHARED/data, or shared/data beside the source tree); nothing
// where there is none.
std::optional<std::string> SharedData();
std::string ReadAll(const std::string& path);

}  // namespace switchyard::data
