#include "client/output/csv.h"

#include "common/base/strings.h"

namespace switchyard::client {

std::string CsvCell(const Value& value) {
  std::string text = value.ToText();
  const bool is_text =
      value.text() != nullptr || value.list() != nullptr || value.members() != nullptr;
  if (is_text && !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string::npos &&
      !ParseDouble(text).has_value()) {
    text.insert(0, 1, '\'');
  }
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string CsvLine(const std::vector<Value>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    line += CsvCell(cells[i]);
  }
  return line + "\n";
}

}  // namespace switchyard::client
