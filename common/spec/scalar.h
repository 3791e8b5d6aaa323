#pragma once

#include <cstdint>
#include <string_view>

#include "common/base/status.h"

namespace switchyard::spec {

// Scalars of a sweep file, read by the type of the field they are for. kInvalidArgument with a
// message that quotes the text. Decimal only: no hexadecimal, no leading zeros (an octal look), no
// plus sign.

// Finite; -0.0 becomes 0.0. Too large and too small for a double are errors.
Result<double> ReadDouble(std::string_view text);
// "64", "2e6", "1.5e3", "64Ki" (Ki, Mi, Gi, Ti: powers of 1024), exactly a whole number.
Result<uint64_t> ReadUnsigned(std::string_view text, uint64_t max);
Result<int64_t> ReadSigned(std::string_view text, int64_t min, int64_t max);
// true or false in any case; nothing else.
Result<bool> ReadBool(std::string_view text);
// A number and one of ms, s, m, h, d: whole milliseconds. A bare 0 is 0.
Result<uint64_t> ReadDurationMs(std::string_view text);

}  // namespace switchyard::spec
