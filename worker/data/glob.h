#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::data {

// One path component against a pattern of `*`, `?`, `[a-z]`, `[!a-z]` and plain bytes. A name that
// begins with a dot needs a pattern that does. Time is at most |name| * |pattern|.
bool MatchesComponent(std::string_view pattern, std::string_view name);

// True if `pattern` has `*`, `?` or `[`; anything else is a plain path.
bool IsGlob(std::string_view pattern);

struct GlobMatches {
  std::vector<std::string> paths;  // byte order, no duplicates; files of any kind, folders, links
  std::vector<std::string> unreadable;  // folders that could not be listed
};

// Names that match, relative ones from the working directory. A component `**` stands for any
// number of folders, none included; it does not enter folders through links, so that a loop ends
// and a tree counts once (links to files match as names do). A trailing `**` means `**/*`.
// kResourceExhausted: over a million matches, or over five million names looked at.
Result<GlobMatches> ExpandGlob(std::string_view pattern);

}  // namespace switchyard::data
