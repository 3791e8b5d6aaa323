#include "common/events/line.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include <nlohmann/json.hpp>

#include "common/base/crc32c.h"
#include "common/base/strings.h"

namespace switchyard::events {
namespace {

constexpr std::string_view kTrailerStart = ",\"crc32c\":\"";
constexpr size_t kTrailerBytes = kTrailerStart.size() + 8 + 2;  // 8 hex digits, `"}`
constexpr size_t kNameBytesMax = 256;
constexpr uint64_t kDefaultNan = 0x7ff8000000000000ULL;

template <typename T>
void AppendNumber(T value, std::string* out) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  (void)error;
  out->append(buffer.data(), end);
}

void AppendHex(uint64_t value, int digits, std::string* out) {
  static constexpr char kDigits[] = "0123456789abcdef";
  for (int shift = (digits - 1) * 4; shift >= 0; shift -= 4) {
    out->push_back(kDigits[(value >> shift) & 15]);
  }
}

std::optional<uint64_t> ParseHex(std::string_view text) {
  uint64_t value = 0;
  for (const char c : text) {
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    value = (value << 4) | static_cast<uint64_t>(digit);
  }
  return value;
}

// A float's NaN keeps its sign and payload in the upper bits of a double's; a conversion by the
// processor would make a signalling one quiet.
uint64_t WidenNanBits(uint32_t bits) {
  return (uint64_t{bits & 0x80000000u} << 32) | 0x7ff0000000000000ULL |
         (uint64_t{bits & 0x007fffffu} << 29);
}
uint32_t NarrowNanBits(uint64_t bits) {
  return static_cast<uint32_t>((bits >> 32) & 0x80000000u) | 0x7f800000u |
         static_cast<uint32_t>((bits >> 29) & 0x007fffffu);
}

void AppendNan(uint64_t bits, std::string* out) {
  out->append("\"NaN");
  if (bits != kDefaultNan) {
    out->push_back(':');
    AppendHex(bits, 16, out);
  }
  out->push_back('"');
}

template <typename T>
void AppendValue(T value, std::string* out) {
  if (std::isnan(value)) {
    if constexpr (sizeof(T) == 8) {
      AppendNan(std::bit_cast<uint64_t>(value), out);
    } else {
      AppendNan(WidenNanBits(std::bit_cast<uint32_t>(value)), out);
    }
  } else if (std::isinf(value)) {
    out->append(value > 0 ? "\"Inf\"" : "\"-Inf\"");
  } else if (value == 0 && std::signbit(value)) {
    out->append("-0.0");
  } else {
    AppendNumber(value, out);
  }
}

void AppendQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out->append("\\u00");
      AppendHex(static_cast<unsigned char>(c), 2, out);
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

void AppendStart(uint64_t seq, std::string_view type, std::string* out) {
  out->append("{\"v\":1,\"seq\":");
  AppendNumber(seq, out);
  out->append(",\"t\":\"");
  out->append(type);
  out->push_back('"');
}

void AppendMetricStart(uint64_t seq, uint64_t step, uint64_t ms, std::string* out) {
  AppendStart(seq, "m", out);
  out->append(",\"step\":");
  AppendNumber(step, out);
  out->append(",\"ms\":");
  AppendNumber(ms, out);
}

// Closes the line that begins at `start` of `out`.
void AppendTrailer(size_t start, std::string* out) {
  const uint32_t crc = Crc32c(std::string_view(*out).substr(start));
  out->append(kTrailerStart);
  AppendHex(crc, 8, out);
  out->append("\"}\n");
}

bool IsSeriesName(std::string_view name) {
  if (name.empty() || name.size() > kNameBytesMax) return false;
  const bool plain =
      std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  return plain || (name.find('\t') == std::string_view::npos && EscapeForTerminal(name) == name);
}

// Reads the members of a metric line. JSON whitespace is taken, members may come in any order.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : at_(text.data()), end_(text.data() + text.size()) {}

  bool Take(char c) {
    SkipBlanks();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool AtEnd() {
    SkipBlanks();
    return at_ == end_;
  }

  bool ReadString(std::string* out) {
    if (!Take('"')) return false;
    const char* start = at_;
    bool escaped = false;
    for (; at_ != end_ && *at_ != '"'; ++at_) {
      if (static_cast<unsigned char>(*at_) < 0x20) return false;
      if (*at_ == '\\') {
        escaped = true;
        if (++at_ == end_) return false;
      }
    }
    if (at_ == end_) return false;
    if (!escaped) {
      out->assign(start, at_++);
      return true;
    }
    const auto parsed = nlohmann::json::parse(start - 1, ++at_, nullptr, false);
    if (!parsed.is_string()) return false;
    *out = parsed.get_ref<const std::string&>();
    return true;
  }

  template <typename T>
  bool ReadInteger(T* out) {
    SkipBlanks();
    const auto [stop, error] = std::from_chars(at_, end_, *out);
    if (error != std::errc{} || (stop != end_ && (*stop == '.' || *stop == 'e' || *stop == 'E'))) {
      return false;
    }
    at_ = stop;
    return true;
  }

  // A number, or a string for one that is not finite.
  template <typename T>
  bool ReadValue(T* out) {
    SkipBlanks();
    if (at_ == end_) return false;
    if (*at_ == '"') return ReadNonFinite(out);
    // from_chars takes "inf" and "nan" as well, which are no JSON.
    const char first = *at_ == '-' && at_ + 1 != end_ ? at_[1] : *at_;
    if (first < '0' || first > '9') return false;
    const auto [stop, error] = std::from_chars(at_, end_, *out);
    if (error != std::errc{}) return false;
    at_ = stop;
    return true;
  }

  // Any JSON value, left unread.
  bool SkipValue() {
    SkipBlanks();
    const char* start = at_;
    int depth = 0;
    do {
      SkipBlanks();
      if (at_ == end_) return false;
      if (*at_ == '"') {
        std::string ignored;
        if (!ReadString(&ignored)) return false;
      } else {
        depth += *at_ == '{' || *at_ == '[' ? 1 : *at_ == '}' || *at_ == ']' ? -1 : 0;
        if (depth < 0) return false;
        ++at_;
      }
    } while (depth > 0 || (at_ != end_ && *at_ != ',' && *at_ != '}' && *at_ != ']'));
    return nlohmann::json::accept(start, at_);
  }

 private:
  void SkipBlanks() {
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }

  template <typename T>
  bool ReadNonFinite(T* out) {
    std::string text;
    if (!ReadString(&text)) return false;
    if (text == "Inf" || text == "-Inf") {
      *out =
          text[0] == '-' ? -std::numeric_limits<T>::infinity() : std::numeric_limits<T>::infinity();
      return true;
    }
    uint64_t bits = kDefaultNan;
    if (text != "NaN") {
      if (text.size() != 20 || !text.starts_with("NaN:")) return false;
      const std::optional<uint64_t> hex = ParseHex(std::string_view(text).substr(4));
      if (!hex) return false;
      bits = *hex;
    }
    if constexpr (sizeof(T) == 8) {
      *out = std::bit_cast<T>(bits);
    } else {
      *out = std::bit_cast<T>(NarrowNanBits(bits));
    }
    // "NaN:" followed by the bits of a number is a forged line.
    return std::isnan(*out) && (bits & 0x7ff0000000000000ULL) == 0x7ff0000000000000ULL;
  }

  const char* at_;
  const char* end_;
};

bool ReadScalars(Scanner& in, std::vector<Scalar>* out) {
  if (!in.Take('{')) return false;
  if (in.Take('}')) return true;
  do {
    Scalar& scalar = out->emplace_back();
    if (!in.ReadString(&scalar.first) || !in.Take(':') || !in.ReadValue(&scalar.second))
      return false;
    if (!IsSeriesName(scalar.first)) return false;
  } while (in.Take(','));
  return in.Take('}');
}

bool ReadVector(Scanner& in, VectorPoint* out) {
  if (!in.ReadString(&out->name) || !IsSeriesName(out->name) || !in.Take(':') || !in.Take('{')) {
    return false;
  }
  bool has_shape = false;
  bool has_values = false;
  do {
    std::string key;
    if (!in.ReadString(&key) || !in.Take(':')) return false;
    if (key == "shape" && !has_shape) {
      has_shape = true;
      if (!in.Take('[')) return false;
      do {
        if (!in.ReadInteger(&out->shape.emplace_back())) return false;
      } while (in.Take(','));
      if (!in.Take(']')) return false;
    } else if (key == "f32" && !has_values) {
      has_values = true;
      if (!in.Take('[')) return false;
      if (in.Take(']')) continue;
      do {
        if (!in.ReadValue(&out->values.emplace_back())) return false;
      } while (in.Take(','));
      if (!in.Take(']')) return false;
    } else {
      return false;
    }
  } while (in.Take(','));
  if (!has_shape || !has_values || !in.Take('}')) return false;
  uint64_t count = 1;
  for (const uint32_t extent : out->shape) {
    if (extent != 0 && count > kLineBytesMax / extent) return false;
    count *= extent;
  }
  return count > 0 && count == out->values.size();
}

bool ReadVectors(Scanner& in, std::vector<VectorPoint>* out) {
  if (!in.Take('{')) return false;
  if (in.Take('}')) return true;
  do {
    if (!ReadVector(in, &out->emplace_back())) return false;
  } while (in.Take(','));
  return in.Take('}');
}

template <typename Items, typename Name>
bool HasDuplicate(const Items& items, Name name) {
  if (items.size() < 2) return false;
  std::vector<std::string_view> names;
  names.reserve(items.size());
  for (const auto& item : items) names.push_back(name(item));
  std::sort(names.begin(), names.end());
  return std::adjacent_find(names.begin(), names.end()) != names.end();
}

// Members of the object whose opening brace is behind the caller, up to the checksum. Takes metric
// lines; false for others and for malformed ones.
bool ReadMetricMembers(std::string_view members, ParsedLine* out) {
  Scanner in(members);
  enum : unsigned {
    kV = 1,
    kSeq = 2,
    kType = 4,
    kStep = 8,
    kMs = 16,
    kScalars = 32,
    kVectors = 64
  };
  unsigned seen = 0;
  const auto first = [&seen](unsigned member) {
    const bool is_new = (seen & member) == 0;
    seen |= member;
    return is_new;
  };
  std::string key;
  do {
    if (!in.ReadString(&key) || !in.Take(':')) return false;
    bool ok = false;
    if (key == "v") {
      unsigned version = 0;
      ok = first(kV) && in.ReadInteger(&version) && version == 1;
    } else if (key == "seq") {
      ok = first(kSeq) && in.ReadInteger(&out->seq) && out->seq > 0;
    } else if (key == "t") {
      ok = first(kType) && in.ReadString(&out->type) && out->type == "m";
    } else if (key == "step") {
      ok = first(kStep) && in.ReadInteger(&out->step);
    } else if (key == "ms") {
      ok = first(kMs) && in.ReadInteger(&out->ms);
    } else if (key == "s") {
      ok = first(kScalars) && ReadScalars(in, &out->scalars);
    } else if (key == "vec") {
      ok = first(kVectors) && ReadVectors(in, &out->vectors);
    } else {
      ok = in.SkipValue();
    }
    if (!ok) return false;
  } while (in.Take(','));
  constexpr unsigned kNeeded = kV | kSeq | kType | kStep | kMs;
  constexpr uint64_t kIntegerMax = uint64_t{1} << 62;
  return in.AtEnd() && (seen & kNeeded) == kNeeded && out->step < kIntegerMax &&
         out->ms < kIntegerMax &&
         !HasDuplicate(out->scalars, [](const Scalar& s) -> std::string_view { return s.first; }) &&
         !HasDuplicate(out->vectors,
                       [](const VectorPoint& v) -> std::string_view { return v.name; });
}

std::optional<uint64_t> Unsigned(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned()) return std::nullopt;
  return it->get<uint64_t>();
}

Result<ParsedLine> ReadOther(std::string json) {
  const auto object = nlohmann::json::parse(json, nullptr, false);
  if (!object.is_object()) return InvalidArgument("event line is not a JSON object");
  const auto type = object.find("t");
  if (Unsigned(object, "v") != 1) return InvalidArgument("event line is not of version 1");
  ParsedLine line;
  line.seq = Unsigned(object, "seq").value_or(0);
  if (line.seq == 0) return InvalidArgument("event line has no sequence number");
  if (type == object.end() || !type->is_string()) return InvalidArgument("event line has no type");
  line.type = type->get<std::string>();
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  if (line.type.empty() || line.type.size() > 16 ||
      !std::all_of(line.type.begin(), line.type.end(), is_letter)) {
    return InvalidArgument(StrCat("event type ", EscapeForTerminal(line.type.substr(0, 32)),
                                  " is not 1 to 16 lower-case letters"));
  }
  if (line.type == "m") return InvalidArgument(StrCat("metric line ", line.seq, " is malformed"));
  line.step = Unsigned(object, "step").value_or(0);
  line.ms = Unsigned(object, "ms").value_or(0);
  line.json = std::move(json);
  return line;
}

}  // namespace

void AppendScalarLine(uint64_t seq, uint64_t step, uint64_t ms, std::span<const Scalar> values,
                      std::string* out) {
  const size_t start = out->size();
  AppendMetricStart(seq, step, ms, out);
  out->append(",\"s\":{");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendQuoted(values[i].first, out);
    out->push_back(':');
    AppendValue(values[i].second, out);
  }
  out->push_back('}');
  AppendTrailer(start, out);
}

void AppendVectorLine(uint64_t seq, uint64_t step, uint64_t ms, std::string_view name,
                      std::span<const uint32_t> shape, std::span<const float> values,
                      std::string* out) {
  const size_t start = out->size();
  AppendMetricStart(seq, step, ms, out);
  out->append(",\"vec\":{");
  AppendQuoted(name, out);
  out->append(":{\"shape\":[");
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendNumber(shape[i], out);
  }
  out->append("],\"f32\":[");
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendValue(values[i], out);
  }
  out->append("]}}");
  AppendTrailer(start, out);
}

void AppendOtherLine(uint64_t seq, std::string_view type, std::string_view members,
                     std::string* out) {
  const size_t start = out->size();
  AppendStart(seq, type, out);
  if (!members.empty()) {
    out->push_back(',');
    out->append(members);
  }
  AppendTrailer(start, out);
}

Result<ParsedLine> ParseLine(std::string_view line) {
  if (line.size() > kLineBytesMax) {
    return InvalidArgument(
        StrCat("event line has ", line.size(), " bytes, at most ", kLineBytesMax));
  }
  if (line.size() <= kTrailerBytes || line.front() != '{') {
    return InvalidArgument("event line is not an object with a checksum");
  }
  const std::string_view body = line.substr(0, line.size() - kTrailerBytes);
  const std::string_view trailer = line.substr(body.size());
  const std::optional<uint64_t> crc = ParseHex(trailer.substr(kTrailerStart.size(), 8));
  if (!trailer.starts_with(kTrailerStart) || !trailer.ends_with("\"}") || !crc) {
    return InvalidArgument("event line does not end with its checksum");
  }
  if (*crc != Crc32c(body)) return DataLoss("checksum of the event line does not match");
  ParsedLine parsed;
  if (ReadMetricMembers(body.substr(1), &parsed)) return parsed;
  return ReadOther(StrCat(body, "}"));
}

}  // namespace switchyard::events
