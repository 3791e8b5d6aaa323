#include "client/curves/csv_reader.h"

#include "common/base/strings.h"

namespace switchyard::client {

CsvReader::CsvReader(std::string_view text) : text_(text) {
  if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
}

// `at_` is behind the opening mark; afterwards behind the closing one.
Result<std::string> CsvReader::Quoted() {
  const uint64_t opened = line_;
  std::string cell;
  while (at_ < text_.size()) {
    const char c = text_[at_++];
    if (c == '\n') ++line_;
    if (c != '"') {
      cell += c;
    } else if (at_ < text_.size() && text_[at_] == '"') {
      cell += '"';
      ++at_;
    } else {
      return cell;
    }
  }
  return InvalidArgument(StrCat(opened, ": a quotation mark is not closed"));
}

Result<bool> CsvReader::Next(std::vector<std::string>* cells) {
  cells->clear();
  const auto is_line_end = [this] {
    return text_[at_] == '\n' || text_.substr(at_).starts_with("\r\n");
  };
  while (at_ < text_.size() && is_line_end()) {
    at_ += text_[at_] == '\n' ? 1 : 2;
    ++line_;
  }
  if (at_ == text_.size()) return false;
  row_line_ = line_;
  while (true) {
    std::string cell;
    if (at_ < text_.size() && text_[at_] == '"') {
      ++at_;
      SWITCHYARD_ASSIGN_OR_RETURN(cell, Quoted());
      if (at_ < text_.size() && text_[at_] != ',' && !is_line_end()) {
        return InvalidArgument(
            StrCat(line_, ": cell ", cells->size() + 1, ": text behind a closing quotation mark"));
      }
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != ',' && !is_line_end()) ++at_;
      cell = text_.substr(begin, at_ - begin);
    }
    cells->push_back(std::move(cell));
    if (at_ < text_.size() && text_[at_] == ',') {
      ++at_;
      continue;
    }
    if (at_ < text_.size()) {
      at_ += text_[at_] == '\n' ? 1 : 2;
      ++line_;
    }
    return true;
  }
}

}  // namespace switchyard::client
