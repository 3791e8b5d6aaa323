#include "worker/eval/text_metrics.h"

#include <cmath>
#include <numbers>

#include "common/base/strings.h"

namespace switchyard::eval {
namespace {

double Ratio(double sum, double count) { return count > 0 ? sum / count : std::nan(""); }

}  // namespace

void TextTotals::Add(const TextTotals& other) {
  nats += other.nats;
  tokens += other.tokens;
  bytes += other.bytes;
  chars += other.chars;
  words += other.words;
}

double NatsPerToken(const TextTotals& totals) {
  return Ratio(totals.nats, static_cast<double>(totals.tokens));
}
double BitsPerToken(const TextTotals& totals) { return NatsPerToken(totals) / std::numbers::ln2; }
double BitsPerByte(const TextTotals& totals) {
  return Ratio(totals.nats, totals.bytes) / std::numbers::ln2;
}
double BitsPerChar(const TextTotals& totals) {
  return Ratio(totals.nats, totals.chars) / std::numbers::ln2;
}
double TokenPpl(const TextTotals& totals) { return std::exp(NatsPerToken(totals)); }
double WordPpl(const TextTotals& totals) { return std::exp(Ratio(totals.nats, totals.words)); }

std::vector<std::pair<std::string, double>> TextSeries(std::string_view split, TextUnits units,
                                                       const TextTotals& totals) {
  std::vector<std::pair<std::string, double>> out;
  const auto add = [&](std::string_view name, double value) {
    out.emplace_back(StrCat(split, "/", name), value);
  };
  add("nats_per_token", NatsPerToken(totals));
  switch (units) {
    case TextUnits::kBytes:
      add("bits_per_byte", BitsPerByte(totals));
      add("bits_per_token", BitsPerToken(totals));
      add("bits_per_char", BitsPerChar(totals));
      break;
    case TextUnits::kTokens:
      add("bits_per_token", BitsPerToken(totals));
      break;
    case TextUnits::kWords:
      add("word_ppl", WordPpl(totals));
      add("token_ppl", TokenPpl(totals));
      break;
  }
  add("scored_tokens", static_cast<double>(totals.tokens));
  return out;
}

}  // namespace switchyard::eval
