#include "server/store/page_token.h"

#include <optional>

#include "common/base/crc32c.h"
#include "common/base/strings.h"

namespace switchyard::store {

std::string MakePageToken(std::string_view query, std::span<const uint64_t> position) {
  std::string token = StrCat("p", Crc32c(query));
  for (const uint64_t part : position) token += StrCat(".", part);
  return token;
}

Result<std::vector<uint64_t>> ReadPageToken(std::string_view token, std::string_view query,
                                            size_t count) {
  std::vector<uint64_t> position;
  if (token.empty()) return position;
  const std::vector<std::string> parts = StrSplit(token, '.');
  bool is_good = parts.size() == count + 1 && parts[0] == StrCat("p", Crc32c(query));
  for (size_t i = 1; is_good && i < parts.size(); ++i) {
    const std::optional<uint64_t> part = ParseUint64(parts[i]);
    is_good = part.has_value();
    if (is_good) position.push_back(*part);
  }
  if (!is_good) {
    return InvalidArgument(
        StrCat("page token ", EscapeForTerminal(token.substr(0, 80)), " is none of this query's"));
  }
  return position;
}

}  // namespace switchyard::store
