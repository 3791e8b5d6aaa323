#include "client/plot/dot_canvas.h"

#include <algorithm>
#include <cmath>

#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr size_t kDotsAcross = 2;
constexpr size_t kDotsDown = 4;

// Colours of the 256-colour palette near those of the pictures.
constexpr int kColors[] = {32, 172, 36, 175, 214, 74, 247, 94};

// Bit of the dot (x, y) in a braille pattern, y from the top: the standard numbers dots 1 to 6 by
// columns and the lowest row 7 and 8.
uint8_t BitOf(size_t x, size_t y) {
  if (y == 3) return x == 0 ? 0x40 : 0x80;
  return static_cast<uint8_t>(1U << (x * 3 + y));
}

std::string Utf8(uint32_t code_point) {
  return {static_cast<char>(0xe0 | (code_point >> 12)),
          static_cast<char>(0x80 | ((code_point >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

}  // namespace

std::string Colored(std::string_view text, size_t i, bool has_color) {
  if (!has_color || i == kNoColor) return std::string(text);
  return StrCat("\x1b[38;5;", kColors[i % std::size(kColors)], "m", text, "\x1b[0m");
}

DotCanvas::DotCanvas(size_t columns, size_t rows)
    : columns_(columns), rows_(rows), cells_(columns * rows) {}

std::pair<size_t, size_t> DotCanvas::DotOf(std::pair<double, double> at) const {
  const auto scaled = [](double share, size_t dots) {
    const double end = static_cast<double>(dots) - 1;
    return static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * end));
  };
  const size_t y = scaled(at.second, rows_ * kDotsDown);
  return {scaled(at.first, columns_ * kDotsAcross), rows_ * kDotsDown - 1 - y};
}

void DotCanvas::Dot(size_t x, size_t y, size_t color) {
  Cell& cell = cells_[y / kDotsDown * columns_ + x / kDotsAcross];
  cell.dots |= BitOf(x % kDotsAcross, y % kDotsDown);
  cell.color = color;
}

void DotCanvas::Line(std::pair<double, double> from, std::pair<double, double> to, size_t color) {
  const auto [x0, y0] = DotOf(from);
  const auto [x1, y1] = DotOf(to);
  const auto distance = [](size_t a, size_t b) { return a > b ? a - b : b - a; };
  const size_t steps = std::max({distance(x0, x1), distance(y0, y1), size_t{1}});
  for (size_t i = 0; i <= steps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(steps);
    const auto between = [&](size_t a, size_t b) {
      return static_cast<size_t>(
          std::lround(static_cast<double>(a) * (1 - share) + static_cast<double>(b) * share));
    };
    Dot(between(x0, x1), between(y0, y1), color);
  }
}

void DotCanvas::Put(std::pair<double, double> at, std::string_view text, size_t color) {
  const auto [x, y] = DotOf(at);
  Cell& cell = cells_[y / kDotsDown * columns_ + x / kDotsAcross];
  cell.text = text;
  cell.color = color;
}

void DotCanvas::Column(double x, std::string_view text) {
  const size_t column = DotOf({x, 0}).first / kDotsAcross;
  for (size_t row = 0; row < rows_; ++row) {
    Cell& cell = cells_[row * columns_ + column];
    if (!cell.text.empty()) continue;
    cell.text = text;
    cell.color = kNoColor;
  }
}

std::vector<std::string> DotCanvas::Lines(bool has_color) const {
  std::vector<std::string> lines;
  for (size_t row = 0; row < rows_; ++row) {
    std::string line;
    for (size_t column = 0; column < columns_; ++column) {
      const Cell& cell = cells_[row * columns_ + column];
      if (cell.text.empty() && cell.dots == 0) {
        line += ' ';
      } else {
        line += Colored(cell.text.empty() ? Utf8(0x2800 + cell.dots) : cell.text, cell.color,
                        has_color);
      }
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace switchyard::client
