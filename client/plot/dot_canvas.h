#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard::client {

inline constexpr size_t kNoColor = SIZE_MAX;

// `text` in the colour of line or group `i`, unless colours are off.
std::string Colored(std::string_view text, size_t i, bool has_color);

// A drawing area of terminal cells, each of two by four dots (braille patterns, U+2800). Places are
// shares of width and height, (0, 0) at the lower left; what lies outside is moved to the edge.
class DotCanvas {
 public:
  DotCanvas(size_t columns, size_t rows);

  size_t columns() const { return columns_; }
  void Line(std::pair<double, double> from, std::pair<double, double> to, size_t color);
  // One character over a cell, above all dots.
  void Put(std::pair<double, double> at, std::string_view text, size_t color);
  // A character down a whole column, where nothing was put yet.
  void Column(double x, std::string_view text);

  // Row by row, `columns` cells each.
  std::vector<std::string> Lines(bool has_color) const;

 private:
  struct Cell {
    uint8_t dots = 0;
    std::string text;  // instead of the dots
    size_t color = kNoColor;
  };
  void Dot(size_t x, size_t y, size_t color);
  // The place in dots.
  std::pair<size_t, size_t> DotOf(std::pair<double, double> at) const;

  size_t columns_;
  size_t rows_;
  std::vector<Cell> cells_;
};

}  // namespace switchyard::client
