#include "common/spec/series.h"

#include <algorithm>
#include <array>

namespace switchyard::spec {
namespace {

// Metric names and the ends of compound ones ("bits_per_byte", "domain/c/bits_per_byte").
constexpr std::array<std::string_view, 13> kDown = {"loss",
                                                    "nll",
                                                    "nats_per_token",
                                                    "nats_per_byte",
                                                    "nats_per_word",
                                                    "bits_per_byte",
                                                    "bits_per_token",
                                                    "bits_per_char",
                                                    "bits_per_word",
                                                    "token_ppl",
                                                    "word_ppl",
                                                    "perplexity",
                                                    "ppl"};
constexpr std::array<std::string_view, 6> kUp = {"accuracy", "mcc",     "f1",
                                                 "f1_macro", "pearson", "spearman"};

std::string_view Metric(std::string_view series) {
  const size_t slash = series.rfind('/');
  return slash == std::string_view::npos ? series : series.substr(slash + 1);
}

}  // namespace

std::optional<Direction> SeriesDirection(std::string_view series) {
  const std::string_view metric = Metric(series);
  // `primary` is a loss of the data kind in every data set that we train language models on.
  if (metric == "primary") return Direction::kMinimize;
  if (std::ranges::find(kDown, metric) != kDown.end()) return Direction::kMinimize;
  if (std::ranges::find(kUp, metric) != kUp.end()) return Direction::kMaximize;
  return std::nullopt;
}

std::string ResolvePrimary(std::string_view series, std::string_view primary_metric) {
  const std::string_view metric = Metric(series);
  if (metric != "primary") return std::string(series);
  return std::string(series.substr(0, series.size() - metric.size())) + std::string(primary_metric);
}

}  // namespace switchyard::spec
