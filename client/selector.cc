#include "client/selector.h"

#include <algorithm>

#include "common/base/ids.h"
#include "common/base/strings.h"
#include "common/spec/validate.h"

namespace switchyard::client {
namespace {

Status Bad(std::string_view text, std::string_view why) {
  return InvalidArgument(StrCat("selector \"", EscapeForTerminal(text), "\": ", why,
                                "; forms: last, all, SWEEP, SWEEP/N, 3-9, 7,9, sweep:NAME, "
                                "state:STATE, an id"));
}

bool LooksLikeNumbers(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789,-") == std::string_view::npos &&
         text[0] >= '0' && text[0] <= '9';
}

Result<std::vector<NumberRange>> ParseNumbers(std::string_view text, std::string_view whole) {
  std::vector<NumberRange> ranges;
  for (const std::string& part : StrSplit(text, ',')) {
    const size_t dash = part.find('-');
    const auto first = ParseUint64(std::string_view(part).substr(0, dash));
    const auto last = dash == std::string::npos ? first : ParseUint64(part.substr(dash + 1));
    if (!first.has_value() || !last.has_value()) {
      return Bad(whole, StrCat("\"", part, "\" is neither a run number nor a range like 3-9"));
    }
    if (*first == 0) return Bad(whole, "runs are numbered from 1");
    if (*first > *last) return Bad(whole, StrCat("range ", part, " is the wrong way round"));
    ranges.push_back({.first = *first, .last = *last});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const NumberRange& a, const NumberRange& b) { return a.first < b.first; });
  std::vector<NumberRange> merged;
  for (const NumberRange& range : ranges) {
    if (!merged.empty() && range.first <= merged.back().last) {
      merged.back().last = std::max(merged.back().last, range.last);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

constexpr std::string_view kStates[] = {"queued",    "backoff",     "active",
                                        "paused",    "succeeded",   "failed",
                                        "cancelled", "quarantined", "stopped_early"};

Status CheckState(std::string_view state, std::string_view whole) {
  if (std::find(std::begin(kStates), std::end(kStates), state) != std::end(kStates)) {
    return OkStatus();
  }
  std::string known;
  for (const std::string_view name : kStates) known += StrCat(known.empty() ? "" : ", ", name);
  return Bad(whole, StrCat("no state \"", state, "\"; states: ", known));
}

}  // namespace

Result<Selector> ParseSelector(std::string_view text) {
  Selector selector;
  selector.text = std::string(text);
  if (text.empty()) return Bad(text, "empty");
  if (text == "all") {
    selector.kind = Selector::Kind::kAll;
    return selector;
  }
  if (Uuid::Parse(text).ok()) {
    selector.kind = Selector::Kind::kId;
    selector.id = selector.text;
    return selector;
  }
  if (text.substr(0, 6) == "state:") {
    selector.kind = Selector::Kind::kState;
    selector.state = std::string(text.substr(6));
    SWITCHYARD_RETURN_IF_ERROR(CheckState(selector.state, text));
    return selector;
  }
  if (LooksLikeNumbers(text)) {
    selector.kind = Selector::Kind::kRuns;
    selector.sweep = "last";
    SWITCHYARD_ASSIGN_OR_RETURN(selector.numbers, ParseNumbers(text, text));
    return selector;
  }
  std::string_view name = text;
  if (name.substr(0, 6) == "sweep:") name.remove_prefix(6);
  const size_t slash = name.find('/');
  selector.sweep = std::string(name.substr(0, slash));
  if (!spec::IsValidName(selector.sweep) && !Uuid::Parse(selector.sweep).ok()) {
    return Bad(text, StrCat("\"", EscapeForTerminal(selector.sweep), "\" is not a sweep name"));
  }
  if (slash == std::string_view::npos) return selector;
  const std::string_view rest = name.substr(slash + 1);
  if (rest.substr(0, 6) == "state:") {
    selector.kind = Selector::Kind::kState;
    selector.state = std::string(rest.substr(6));
    SWITCHYARD_RETURN_IF_ERROR(CheckState(selector.state, text));
    return selector;
  }
  selector.kind = Selector::Kind::kRuns;
  SWITCHYARD_ASSIGN_OR_RETURN(selector.numbers, ParseNumbers(rest, text));
  return selector;
}

}  // namespace switchyard::client
