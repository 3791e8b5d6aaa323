#include "client/output/yaml.h"

#include <algorithm>

#include "client/output/json.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

bool IsBareWord(const std::string& text) {
  if (text.empty() || text.size() > 200) return false;
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '.' || c == '/' || c == '+' || c == '-';
  };
  if (!std::all_of(text.begin(), text.end(), is_plain)) return false;
  if (text.front() == '-' || text.front() == '.' || text.front() == '+') return false;
  static const char* const kTaken[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  if (std::any_of(std::begin(kTaken), std::end(kTaken),
                  [&](const char* w) { return lower == w; })) {
    return false;
  }
  return !ParseDouble(text).has_value();
}

std::string Scalar(const Value& value) {
  const std::string* text = value.text();
  if (text == nullptr) return value.ToText();
  // A JSON string is a YAML double-quoted scalar.
  return IsBareWord(*text) ? *text : QuoteJson(*text);
}

bool IsFlow(const Value& value) {
  if (value.members() != nullptr) return value.members()->empty();
  if (value.list() == nullptr) return true;
  return std::all_of(value.list()->begin(), value.list()->end(),
                     [](const Value& item) { return item.members() == nullptr && IsFlow(item); });
}

std::string Flow(const Value& value) {
  if (value.members() != nullptr) return "{}";
  if (value.list() == nullptr) return Scalar(value);
  std::string out = "[";
  for (const Value& item : *value.list()) {
    if (out.size() > 1) out += ", ";
    out += Flow(item);
  }
  return out + "]";
}

void Append(std::string& out, const Value& value, int indent) {
  const std::string margin(static_cast<size_t>(indent), ' ');
  if (IsFlow(value)) {
    out += StrCat(margin, Flow(value), "\n");
  } else if (value.members() != nullptr) {
    for (const Member& member : *value.members()) {
      out += StrCat(margin, IsBareWord(member.name) ? member.name : QuoteJson(member.name), ":");
      if (IsFlow(member.value)) {
        out += StrCat(" ", Flow(member.value), "\n");
      } else {
        out += '\n';
        Append(out, member.value, indent + 2);
      }
    }
  } else {
    for (const Value& item : *value.list()) {
      std::string block;
      Append(block, item, indent + 2);
      block[static_cast<size_t>(indent)] = '-';
      out += block;
    }
  }
}

}  // namespace

std::string ToYaml(const Value& value, int indent) {
  std::string out;
  if (!value.is_absent()) Append(out, value, indent);
  return out;
}

}  // namespace switchyard::client
