#pragma once

#include <cstdint>
#include <string>

namespace switchyard::client {

// For people; machines get Value::ToText().

// About five significant digits, no exponent between 1e-4 and 1e15: "2.3125", "31,885,068",
// "7e-05", "NaN", "-Inf".
std::string FormatValue(double value);
// "31,885,068".
std::string FormatCount(uint64_t value);
// "63.8M", "1.2k", "950".
std::string FormatSi(double value);
// "0.4s", "42s", "3m12s", "2h05m", "3d04h"; "-" when negative or not finite.
std::string FormatDuration(double seconds);
// "512 B", "1.5 MiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace switchyard::client
