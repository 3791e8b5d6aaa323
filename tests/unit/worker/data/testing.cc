#include "tests/unit/worker/data/testing.h"

#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/check.h"
#include "common/base/file.h"
#include "common/base/strings.h"

namespace switchyard::data {
namespace fs = std::filesystem;

TempFolder::TempFolder() {
  std::string pattern = (fs::temp_directory_path() / "switchyard-data-XXXXXX").string();
  SWITCHYARD_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TempFolder::Path(std::string_view name) const { return StrCat(path_, "/", name); }

std::string TempFolder::Write(std::string_view name, std::string_view content) const {
  const std::string path = Path(name);
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  file.close();
  SWITCHYARD_CHECK(file.good()) << path;
  return path;
}

std::string Gzip(std::string_view text) {
  z_stream stream{};
  SWITCHYARD_CHECK(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  SWITCHYARD_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::optional<std::string> SharedData() {
  const char* given = std::getenv("SWITCHYARD_SHARED");
  const std::string path =
      StrCat(given != nullptr ? given : SWITCHYARD_SOURCE_DIR "/../shared", "/data");
  if (!fs::is_directory(path)) return std::nullopt;
  return path;
}

std::string ReadAll(const std::string& path) {
  Result<std::string> data = ReadFile(path);
  SWITCHYARD_CHECK(data.ok()) << data.status().ToString();
  return *std::move(data);
}

}  // namespace switchyard::data
