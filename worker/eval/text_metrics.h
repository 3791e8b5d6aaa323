#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Definitions of language-modelling metrics (data.md 9.1). Sums first, one
// division and one exponential at the end; the unit is part of the name.
namespace switchyard::eval {

// Of scored text. Sums in float64.
struct TextTotals {
  double nats = 0;      // sum of NLL
  uint64_t tokens = 0;  // scored
  double bytes = 0;     // of UTF-8 text that the scored tokens stand for
  double chars = 0;     // code points of it
  double words = 0;     // of it, end-of-line tokens included

  void Add(const TextTotals& other);
};

// NaN where the divisor is 0.
double NatsPerToken(const TextTotals& totals);
double BitsPerToken(const TextTotals& totals);
double BitsPerByte(const TextTotals& totals);
double BitsPerChar(const TextTotals& totals);
double TokenPpl(const TextTotals& totals);
double WordPpl(const TextTotals& totals);

// What a tokenisation makes meaningful.
enum class TextUnits {
  kBytes,   // a token is one byte: bits per byte, per token, per character
  kTokens,  // tokens do not say which bytes they stand for: bits per token
  kWords,   // words: perplexity per word (end-of-line tokens counted) and per token
};

// The series of one split, "valid/nats_per_token" and so on, in a fixed order.
std::vector<std::pair<std::string, double>> TextSeries(std::string_view split, TextUnits units,
                                                       const TextTotals& totals);

}  // namespace switchyard::eval
