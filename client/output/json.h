#pragma once

#include <string>
#include <string_view>

#include "client/output/value.h"

namespace switchyard::client {

enum class JsonStyle { kOneLine, kIndented };

// Strict JSON (RFC 8259). Non-finite numbers are the strings "NaN", "Inf", "-Inf"; ill-formed UTF-8
// becomes U+FFFD; control and bidirectional characters are escaped, so that the text is harmless on
// a terminal. Without a final newline.
std::string ToJson(const Value& value, JsonStyle style);

// `text` as a JSON string with its quotes.
std::string QuoteJson(std::string_view text);

}  // namespace switchyard::client
