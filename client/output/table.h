#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "client/output/text.h"
#include "client/output/value.h"

namespace switchyard::client {

enum class Format { kTable, kJson, kJsonLines, kCsv, kQuiet };

struct Column {
  std::string key;    // name in JSON and CSV
  std::string title;  // heading of the table; empty: not in the table
  Align align = Align::kLeft;
};

// A value, and how the table shows it where that is not simply its text.
struct Cell {
  Value value;
  std::string shown;
};

// Rows of equal shape: one thing per row, one property per column.
struct Listing {
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
  size_t quiet_column = 0;  // what -o quiet prints, one a line
  std::string empty_note;   // said instead of an empty table
};

// Aligned columns. `width` > 0: the widest left-aligned columns are cut until lines fit.
std::string RenderTable(const Listing& listing, size_t width);

// The listing in any format; ends in a newline unless empty. JSON is one array of objects.
std::string RenderListing(const Listing& listing, Format format, size_t width);

// One document: JSON, one-line JSON, CSV as `field,value` lines with dotted names. The table form
// is YAML.
std::string RenderDocument(const Value& document, Format format);

}  // namespace switchyard::client
