#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::client {

// Ends of the vertical scale.
struct Scale {
  double low = 0;
  double high = 1;
};

// A curve in block characters, at most `width` cells. More values than cells: each cell is the mean
// of its finite values, and "×" where a cell has none. Without `scale` the lowest value of the line
// is its lowest block and the highest its highest; a flat line is drawn half high.
std::string Sparkline(const std::vector<double>& values, size_t width,
                      std::optional<Scale> scale = std::nullopt);

// Means over the finite members of at most `width` buckets; NaN for a bucket without any.
std::vector<double> Thin(const std::vector<double>& values, size_t width);

}  // namespace switchyard::client
