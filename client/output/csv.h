#pragma once

#include <string>
#include <vector>

#include "client/output/value.h"

namespace switchyard::client {

// One CSV cell (RFC 4180 quoting). Text that a spreadsheet would run as a formula (it starts with
// = + - @, or with a tab or carriage return in front of one) gets a leading '; numbers do not.
std::string CsvCell(const Value& value);

// The cells and a line end.
std::string CsvLine(const std::vector<Value>& cells);

}  // namespace switchyard::client
