#include "common/spec/checker.h"

namespace switchyard::spec {

std::string WordHint(std::string_view word, const std::vector<std::string>& known,
                     std::string_view none) {
  if (known.empty() && !none.empty()) return std::string(none);
  const std::string nearest = NearestWord(word, known);
  return nearest.empty() ? StrCat("known: ", StrJoin(known, ", ")) : StrCat("nearest: ", nearest);
}

}  // namespace switchyard::spec
