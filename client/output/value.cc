#include "client/output/value.h"

#include "common/base/strings.h"

namespace switchyard::client {

bool Value::is_number() const {
  return std::holds_alternative<int64_t>(data) || std::holds_alternative<uint64_t>(data) ||
         std::holds_alternative<double>(data);
}

std::string Value::ToText() const {
  if (const auto* flag = std::get_if<bool>(&data)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&data)) return std::to_string(*number);
  if (const auto* number = std::get_if<uint64_t>(&data)) return std::to_string(*number);
  if (const auto* number = std::get_if<double>(&data)) return FormatDouble(*number);
  if (const auto* words = text()) return *words;
  std::string out;
  if (const auto* items = list()) {
    for (const Value& item : *items) {
      if (!out.empty()) out += ' ';
      out += item.ToText();
    }
  }
  if (const auto* named = members()) {
    for (const Member& member : *named) {
      if (!out.empty()) out += ' ';
      out += StrCat(member.name, "=", member.value.ToText());
    }
  }
  return out;
}

}  // namespace switchyard::client
