#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace switchyard::spec {

enum class Direction { kMinimize, kMaximize };

// Which way is better, by the metric part of SPLIT/METRIC: losses and perplexities down, accuracy,
// mcc and f1 up; none for what has no direction (lr, entropy, counts).
std::optional<Direction> SeriesDirection(std::string_view series);

// Replaces the metric `primary` by the data kind's primary metric ("valid/primary" ->
// "valid/bits_per_byte"): bits_per_byte for bytes256 and bytes205, bits_per_token for txl204,
// word_ppl for word.
std::string ResolvePrimary(std::string_view series, std::string_view primary_metric);

}  // namespace switchyard::spec
