#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

namespace internal {
inline void AppendPiece(std::string& out, std::string_view piece) { out.append(piece); }
inline void AppendPiece(std::string& out, const char* piece) { out.append(piece); }
inline void AppendPiece(std::string& out, char piece) { out.push_back(piece); }
inline void AppendPiece(std::string& out, bool piece) { out.append(piece ? "true" : "false"); }
template <std::integral T>
void AppendPiece(std::string& out, T piece) {
  out.append(std::to_string(piece));
}
// Shortest form that reads back to the same bits.
void AppendPiece(std::string& out, double piece);
inline void AppendPiece(std::string& out, float piece) {
  AppendPiece(out, static_cast<double>(piece));
}
}  // namespace internal

// Text of the pieces, one behind the other.
template <typename... Pieces>
std::string StrCat(const Pieces&... pieces) {
  std::string out;
  (internal::AppendPiece(out, pieces), ...);
  return out;
}

std::vector<std::string> StrSplit(std::string_view text, char separator);
std::string StrJoin(const std::vector<std::string>& parts, std::string_view separator);
std::string_view StripWhitespace(std::string_view text);

// Whole text or nothing; no leading blanks or plus sign. Doubles take nan and inf too.
std::optional<double> ParseDouble(std::string_view text);
std::optional<int64_t> ParseInt64(std::string_view text);
std::optional<uint64_t> ParseUint64(std::string_view text);

// Shortest round-trip form of a finite double; "NaN", "Inf", "-Inf" otherwise; "-0.0".
std::string FormatDouble(double value);

// The member of `known` with the smallest edit distance to `word`, if at most a third of its
// characters (and at least one) differ; else empty. For "did you mean" hints.
std::string NearestWord(std::string_view word, const std::vector<std::string>& known);

bool IsValidUtf8(std::string_view text);
// Control characters (C0, C1, DEL), escapes, bidirectional marks and ill-formed bytes written out
// as \xNN or \u{NNNN}: for any text of foreign origin that reaches a terminal.
std::string EscapeForTerminal(std::string_view text);
// Number of terminal cells, code points counted as one.
size_t DisplayWidth(std::string_view text);

std::string HexEncode(std::string_view bytes);

}  // namespace switchyard
