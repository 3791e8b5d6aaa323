#include "worker/data/jsonl.h"

#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/strings.h"

namespace switchyard::data {
namespace {

// Keeps one string and no document, so that a deep row costs nothing.
class RowHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& error() const { return error_; }
  std::optional<std::string>& text() { return text_; }

  bool null() override { return Value("null"); }
  bool boolean(bool /*value*/) override { return Value("a truth value"); }
  bool number_integer(number_integer_t /*value*/) override { return Value("a number"); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return Value("a number"); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override {
    return Value("a number");
  }
  bool binary(binary_t& /*value*/) override { return Value("binary data"); }
  bool string(string_t& value) override {
    if (!IsTextMember()) return Value("a string");
    text_ = std::move(value);
    is_text_next_ = false;
    return true;
  }
  bool start_object(std::size_t /*elements*/) override {
    if (depth_ > 0 && !Value("an object")) return false;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t /*elements*/) override {
    if (!Value("an array")) return false;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& value) override {
    is_text_next_ = depth_ == 1 && value == "text";
    if (is_text_next_ && text_) return Fail("has two members named text");
    return true;
  }
  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const nlohmann::json::exception& /*error*/) override {
    if (error_.empty()) error_ = StrCat("is not valid JSON at its byte ", position);
    return false;
  }

 private:
  bool IsTextMember() const { return depth_ == 1 && is_text_next_; }
  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }
  // Any value but the text itself.
  bool Value(std::string_view what) {
    if (depth_ == 0) return Fail(StrCat("is ", what, ", expected an object"));
    if (IsTextMember()) return Fail(StrCat("has ", what, " as its text, expected a string"));
    return true;
  }

  size_t depth_ = 0;
  bool is_text_next_ = false;
  std::optional<std::string> text_;
  std::string error_;
};

}  // namespace

Result<std::string> TextOfRow(std::string_view row) {
  RowHandler handler;
  if (!nlohmann::json::sax_parse(row.begin(), row.end(), &handler)) {
    return InvalidArgument(handler.error());
  }
  if (!handler.text()) return InvalidArgument("has no member named text");
  return *std::move(handler.text());
}

}  // namespace switchyard::data
