#include "client/output/table.h"

#include <algorithm>

#include "client/output/csv.h"
#include "client/output/json.h"
#include "client/output/yaml.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kNarrowest = 8;

std::string Shown(const Cell& cell) {
  return EscapeForTerminal(cell.shown.empty() ? cell.value.ToText() : cell.shown);
}

// Takes cells from the widest column that may be cut until the whole fits, or none can give.
void Shrink(const std::vector<Column>& columns, size_t width, std::vector<size_t>* widths) {
  const auto total = [&] {
    size_t sum = 0;
    for (const size_t w : *widths) sum += w + kGap;
    return sum - kGap;
  };
  while (total() > width) {
    size_t widest = widths->size();
    for (size_t i = 0; i < widths->size(); ++i) {
      if (columns[i].align == Align::kRight || (*widths)[i] <= kNarrowest) continue;
      if (widest == widths->size() || (*widths)[i] > (*widths)[widest]) widest = i;
    }
    if (widest == widths->size()) return;
    --(*widths)[widest];
  }
}

Value RowObject(const Listing& listing, const std::vector<Cell>& row) {
  Value::Members members;
  for (size_t i = 0; i < row.size(); ++i) {
    members.push_back({.name = listing.columns[i].key, .value = row[i].value});
  }
  return members;
}

void Flatten(const std::string& prefix, const Value& value, std::string* out) {
  const auto under = [&](const std::string& name) {
    return prefix.empty() ? name : StrCat(prefix, ".", name);
  };
  if (value.members() != nullptr) {
    for (const Member& member : *value.members()) Flatten(under(member.name), member.value, out);
  } else if (value.list() != nullptr) {
    size_t index = 0;
    for (const Value& item : *value.list()) Flatten(under(std::to_string(index++)), item, out);
  } else {
    *out += CsvLine({Value(prefix), value});
  }
}

}  // namespace

std::string RenderTable(const Listing& listing, size_t width) {
  if (listing.rows.empty()) {
    return listing.empty_note.empty() ? "" : StrCat(listing.empty_note, "\n");
  }
  std::vector<Column> columns;
  std::vector<std::vector<std::string>> lines(listing.rows.size() + 1);
  for (size_t c = 0; c < listing.columns.size(); ++c) {
    if (listing.columns[c].title.empty()) continue;
    columns.push_back(listing.columns[c]);
    lines[0].push_back(EscapeForTerminal(listing.columns[c].title));
    for (size_t r = 0; r < listing.rows.size(); ++r) {
      lines[r + 1].push_back(Shown(listing.rows[r][c]));
    }
  }
  std::vector<size_t> widths(columns.size(), 0);
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], CellWidth(line[c]));
  }
  if (width > 0) Shrink(columns, width, &widths);
  std::string out;
  for (const auto& line : lines) {
    std::string text;
    for (size_t c = 0; c < line.size(); ++c) {
      if (c > 0) text.append(kGap, ' ');
      text += PadToWidth(CutToWidth(line[c], widths[c]), widths[c], columns[c].align);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    out += text;
    out += '\n';
  }
  return out;
}

std::string RenderListing(const Listing& listing, Format format, size_t width) {
  std::string out;
  switch (format) {
    case Format::kTable:
      return RenderTable(listing, width);
    case Format::kJson: {
      out = "[";
      for (size_t r = 0; r < listing.rows.size(); ++r) {
        out += r == 0 ? "\n  " : ",\n  ";
        out += ToJson(RowObject(listing, listing.rows[r]), JsonStyle::kOneLine);
      }
      return out + (listing.rows.empty() ? "]\n" : "\n]\n");
    }
    case Format::kJsonLines:
      for (const auto& row : listing.rows) {
        out += ToJson(RowObject(listing, row), JsonStyle::kOneLine);
        out += '\n';
      }
      return out;
    case Format::kCsv: {
      std::vector<Value> cells;
      for (const Column& column : listing.columns) cells.emplace_back(column.key);
      out = CsvLine(cells);
      for (const auto& row : listing.rows) {
        cells.clear();
        for (const Cell& cell : row) cells.push_back(cell.value);
        out += CsvLine(cells);
      }
      return out;
    }
    case Format::kQuiet:
      for (const auto& row : listing.rows) {
        out += EscapeForTerminal(row[listing.quiet_column].value.ToText());
        out += '\n';
      }
      return out;
  }
  return out;
}

std::string RenderDocument(const Value& document, Format format) {
  switch (format) {
    case Format::kTable:
      return ToYaml(document);
    case Format::kJson:
      return ToJson(document, JsonStyle::kIndented) + "\n";
    case Format::kJsonLines:
      return ToJson(document, JsonStyle::kOneLine) + "\n";
    case Format::kCsv: {
      std::string out = "field,value\n";
      Flatten("", document, &out);
      return out;
    }
    case Format::kQuiet:
      if (document.members() != nullptr && !document.members()->empty()) {
        return EscapeForTerminal(document.members()->front().value.ToText()) + "\n";
      }
      return {};
  }
  return {};
}

}  // namespace switchyard::client
