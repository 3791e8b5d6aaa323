#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/status.h"

// The event file (docs/attempt-directory.md): one JSON object a line, `seq` gap-free from 1, last
// member `crc32c` over all bytes of the line before `,"crc32c"`.
namespace switchyard::events {

inline constexpr size_t kLineBytesMax = 1 << 20;

using Scalar = std::pair<std::string, double>;

// Builders append one line with its newline to `out`. Values keep their bits: shortest round-trip
// form, -0.0, "NaN", "Inf", "-Inf", "NaN:<16 hex digits>" for another payload.
void AppendScalarLine(uint64_t seq, uint64_t step, uint64_t ms, std::span<const Scalar> values,
                      std::string* out);
void AppendVectorLine(uint64_t seq, uint64_t step, uint64_t ms, std::string_view name,
                      std::span<const uint32_t> shape, std::span<const float> values,
                      std::string* out);
// `members`: JSON members after "t" without braces, for instance "\"step\":5,\"digest\":\"x\"";
// may be empty.
void AppendOtherLine(uint64_t seq, std::string_view type, std::string_view members,
                     std::string* out);

struct VectorPoint {
  std::string name;
  std::vector<uint32_t> shape;
  std::vector<float> values;
};

struct ParsedLine {
  uint64_t seq = 0;
  std::string type;  // "m", "hello", "resume", "log", "phase", "ckpt", "result", "drop", "end"
  uint64_t step = 0;
  uint64_t ms = 0;
  std::vector<Scalar> scalars;       // type m
  std::vector<VectorPoint> vectors;  // type m
  std::string json;                  // other types: the object without its checksum
};

// `line` without its newline. kDataLoss: the checksum does not match; kInvalidArgument: not a line
// of this format (says what).
Result<ParsedLine> ParseLine(std::string_view line);

}  // namespace switchyard::events
