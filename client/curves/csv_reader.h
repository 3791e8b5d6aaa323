#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"

namespace switchyard::client {

// Rows of a CSV text (RFC 4180): cells in quotation marks may hold commas, line ends and doubled
// marks. Lines end in LF or CRLF only; a byte order mark in front is none of the first cell; empty
// lines are skipped. The text outlives the reader.
class CsvReader {
 public:
  explicit CsvReader(std::string_view text);

  // False at the end. kInvalidArgument: a quotation mark that is not closed, or text behind a
  // closing one; the message names line and cell, not the file.
  Result<bool> Next(std::vector<std::string>* cells);
  // Line on which the row of the last Next begins, from 1.
  uint64_t line() const { return row_line_; }

 private:
  Result<std::string> Quoted();

  std::string_view text_;
  size_t at_ = 0;
  uint64_t line_ = 1;
  uint64_t row_line_ = 1;
};

}  // namespace switchyard::client
