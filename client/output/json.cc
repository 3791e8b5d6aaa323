#include "client/output/json.h"

#include <cmath>
#include <cstdio>

#include "client/output/text.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

void AppendUnit(std::string& out, uint32_t unit) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "\\u%04x", unit);
  out += buffer;
}

void AppendEscaped(std::string& out, uint32_t code_point) {
  if (code_point > 0xffff) {
    AppendUnit(out, 0xd800 + ((code_point - 0x10000) >> 10));
    AppendUnit(out, 0xdc00 + ((code_point - 0x10000) & 0x3ff));
  } else {
    AppendUnit(out, code_point);
  }
}

void Append(std::string& out, const Value& value, JsonStyle style, int depth);

void Break(std::string& out, JsonStyle style, int depth) {
  if (style == JsonStyle::kOneLine) return;
  out += '\n';
  out.append(static_cast<size_t>(depth) * 2, ' ');
}

bool HasOnlyScalars(const Value::List& list) {
  for (const Value& item : list) {
    if (item.list() != nullptr || item.members() != nullptr) return false;
  }
  return true;
}

void AppendList(std::string& out, const Value::List& list, JsonStyle style, int depth) {
  // A list of numbers or words stays on one line: a vector of 64 loads is one value to a reader.
  const JsonStyle inner = HasOnlyScalars(list) ? JsonStyle::kOneLine : style;
  out += '[';
  bool is_first = true;
  for (const Value& item : list) {
    if (!is_first) out += inner == JsonStyle::kOneLine && style != inner ? ", " : ",";
    is_first = false;
    Break(out, inner, depth + 1);
    Append(out, item, inner, depth + 1);
  }
  if (!list.empty()) Break(out, inner, depth);
  out += ']';
}

void AppendMembers(std::string& out, const Value::Members& members, JsonStyle style, int depth) {
  out += '{';
  bool is_first = true;
  for (const Member& member : members) {
    if (!is_first) out += ',';
    is_first = false;
    Break(out, style, depth + 1);
    out += QuoteJson(member.name);
    out += style == JsonStyle::kOneLine ? ":" : ": ";
    Append(out, member.value, style, depth + 1);
  }
  if (!members.empty()) Break(out, style, depth);
  out += '}';
}

void Append(std::string& out, const Value& value, JsonStyle style, int depth) {
  if (value.is_absent()) {
    out += "null";
  } else if (const auto* list = value.list()) {
    AppendList(out, *list, style, depth);
  } else if (const auto* members = value.members()) {
    AppendMembers(out, *members, style, depth);
  } else if (const auto* text = value.text()) {
    out += QuoteJson(*text);
  } else if (const auto* number = std::get_if<double>(&value.data);
             number != nullptr && !std::isfinite(*number)) {
    out += QuoteJson(value.ToText());
  } else {
    out += value.ToText();
  }
}

}  // namespace

std::string QuoteJson(std::string_view text) {
  std::string out = "\"";
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint next = DecodeUtf8(text, at);
    const std::string_view bytes = text.substr(at, next.bytes);
    at += next.bytes;
    if (!next.is_valid) {
      out += "\xef\xbf\xbd";
    } else if (next.value == '"' || next.value == '\\') {
      out += '\\';
      out += bytes;
    } else if (next.value == '\n') {
      out += "\\n";
    } else if (next.value == '\t') {
      out += "\\t";
    } else if (IsUnsafeOnTerminal(next.value)) {
      AppendEscaped(out, next.value);
    } else {
      out += bytes;
    }
  }
  out += '"';
  return out;
}

std::string ToJson(const Value& value, JsonStyle style) {
  std::string out;
  Append(out, value, style, 0);
  return out;
}

}  // namespace switchyard::client
