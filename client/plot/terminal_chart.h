#pragma once

#include <cstddef>
#include <string>

#include "client/plot/figure.h"

namespace switchyard::client {

struct ChartStyle {
  size_t columns = 100;  // cells
  size_t rows = 28;
  bool has_color = false;
};

// A figure in characters, lines with their ends, none wider than `columns`. Curves, points and
// parallel coordinates are drawn in dots of two by four a cell (braille patterns) and take `rows`
// lines and the legend; bars and heat maps take the lines they need. Lines and groups have a letter
// of their own, so that they are told apart without colours. Curves are shown without their bands.
std::string RenderChart(const Figure& figure, const ChartStyle& style);

}  // namespace switchyard::client
