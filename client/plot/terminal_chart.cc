#include "client/plot/terminal_chart.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "client/output/number.h"
#include "client/output/text.h"
#include "client/plot/dot_canvas.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kNarrowestPlot = 16;  // cells
constexpr size_t kLowestPlot = 4;

std::string Cut(const std::string& text, size_t width) {
  return CutToWidth(EscapeForTerminal(text), width);
}

std::string LetterOf(size_t i) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  return i < kLetters.size() ? std::string(1, kLetters[i]) : "•";
}

// Values of one direction, brought to 0..1.
class Axis {
 public:
  explicit Axis(bool is_log) : is_log_(is_log) {}
  void Include(double value) {
    if (!IsDrawn(value)) return;
    low_ = std::min(low_, value);
    high_ = std::max(high_, value);
  }
  // Room for a single value.
  void Close() {
    if (low_ > high_) low_ = high_ = is_log_ ? 1 : 0;
    if (low_ < high_) return;
    const double room = low_ == 0 ? 1 : std::abs(low_) * 0.1;
    low_ -= is_log_ ? low_ / 2 : room;
    high_ += room;
  }
  bool IsDrawn(double value) const { return std::isfinite(value) && (!is_log_ || value > 0); }
  double At(double value) const {
    return is_log_ ? std::log(value / low_) / std::log(high_ / low_)
                   : (value - low_) / (high_ - low_);
  }
  double Value(double share) const {
    return is_log_ ? low_ * std::pow(high_ / low_, share) : low_ + (high_ - low_) * share;
  }

 private:
  const bool is_log_;
  double low_ = kInfinity;
  double high_ = -kInfinity;
};

// Text of `width` cells with `left`, `middle` and `right` at its ends and between, as far as they
// fit.
std::string Spread(const std::string& left, const std::string& middle, const std::string& right,
                   size_t width) {
  const size_t used = CellWidth(left) + CellWidth(middle) + CellWidth(right);
  if (used + 2 > width) {
    const size_t ends = CellWidth(left) + CellWidth(right);
    return ends + 1 > width ? CutToWidth(left, width)
                            : left + std::string(width - ends, ' ') + right;
  }
  const size_t before =
      std::max<size_t>(1, width / 2 - std::min(width / 2, CellWidth(left) + CellWidth(middle) / 2));
  const size_t behind = width - std::min(width, used + before);
  return left + std::string(before, ' ') + middle + std::string(behind, ' ') + right;
}

// The frame: values of y at the left of the canvas, values of x below.
std::string Framed(const Figure& figure, const DotCanvas& canvas, const Axis& x, const Axis& y,
                   size_t gutter, bool has_color) {
  const std::vector<std::string> lines = canvas.Lines(has_color);
  std::string out;
  for (size_t row = 0; row < lines.size(); ++row) {
    std::string label;
    if (row == 0) label = FormatValue(y.Value(1));
    if (row == lines.size() / 2) label = FormatValue(y.Value(0.5));
    if (row + 1 == lines.size()) label = FormatValue(y.Value(0));
    out += StrCat(PadToWidth(label, gutter, Align::kRight), label.empty() ? " │" : " ┤", lines[row],
                  "\n");
  }
  std::string rule;
  for (size_t i = 0; i < canvas.columns(); ++i) rule += "─";
  const std::string indent(gutter + 2, ' ');
  out += StrCat(std::string(gutter + 1, ' '), "└", rule, "\n", indent,
                Spread(FormatValue(x.Value(0)), FormatValue(x.Value(0.5)), FormatValue(x.Value(1)),
                       canvas.columns()),
                "\n");
  return out + StrCat(indent,
                      Spread("", Cut(figure.x_label, canvas.columns()), "", canvas.columns()),
                      "\n");
}

size_t GutterOf(const Axis& y) {
  size_t gutter = 0;
  for (const double share : {0.0, 0.5, 1.0}) {
    gutter = std::max(gutter, CellWidth(FormatValue(y.Value(share))));
  }
  return gutter;
}

class Chart {
 public:
  Chart(const Figure& figure, const ChartStyle& style) : figure_(figure), style_(style) {}

  std::string Render() const {
    std::string out = StrCat(Cut(figure_.title, style_.columns), "\n");
    switch (figure_.kind) {
      case Figure::Kind::kCurves:
        return out + Curves();
      case Figure::Kind::kPoints:
        return out + Points();
      case Figure::Kind::kBars:
        return out + Bars();
      case Figure::Kind::kHeatMap:
        return out + HeatMap();
      case Figure::Kind::kParallel:
        return out + Parallel();
    }
    return out;
  }

 private:
  DotCanvas MakeCanvas(size_t gutter) const {
    const size_t columns = style_.columns - std::min(style_.columns, gutter + 2);
    return DotCanvas(std::max(kNarrowestPlot, columns),
                     std::max(kLowestPlot, style_.rows - std::min<size_t>(style_.rows, 4)));
  }

  std::string Legend(size_t i, const std::string& label) const {
    return StrCat("  ", Colored(LetterOf(i), i, style_.has_color), " ",
                  Cut(label, style_.columns - std::min<size_t>(style_.columns, 4)), "\n");
  }

  std::string Curves() const {
    Axis x(figure_.has_log_x);
    Axis y(figure_.has_log_y);
    for (const BandLine& line : figure_.lines) {
      for (const BandPoint& point : line.points) {
        if (!x.IsDrawn(point.x) || !y.IsDrawn(point.mean)) continue;
        x.Include(point.x);
        y.Include(point.mean);
      }
    }
    x.Close();
    y.Close();
    const size_t gutter = GutterOf(y);
    DotCanvas canvas = MakeCanvas(gutter);
    for (size_t i = 0; i < figure_.lines.size(); ++i) {
      std::pair<double, double> last;
      bool has_last = false;
      for (const BandPoint& point : figure_.lines[i].points) {
        if (!x.IsDrawn(point.x) || !y.IsDrawn(point.mean)) {
          has_last = false;
          continue;
        }
        const std::pair<double, double> at(x.At(point.x), y.At(point.mean));
        canvas.Line(has_last ? last : at, at, i);
        last = at;
        has_last = true;
      }
    }
    // Letters lie over the lines, each at a place of its own along them.
    for (size_t i = 0; i < figure_.lines.size(); ++i) {
      const std::vector<BandPoint>& points = figure_.lines[i].points;
      const size_t parts = figure_.lines.size() + 1;
      for (const size_t at : {points.size() * (i + 1) / parts, points.size() - 1}) {
        if (at >= points.size()) continue;
        const BandPoint& point = points[at];
        if (!x.IsDrawn(point.x) || !y.IsDrawn(point.mean)) continue;
        canvas.Put({x.At(point.x), y.At(point.mean)}, LetterOf(i), i);
      }
    }
    std::string out = Framed(figure_, canvas, x, y, gutter, style_.has_color);
    for (size_t i = 0; i < figure_.lines.size(); ++i) out += Legend(i, figure_.lines[i].label);
    return out;
  }

  std::string Points() const {
    Axis x(figure_.has_log_x);
    Axis y(figure_.has_log_y);
    for (const PointGroup& group : figure_.groups) {
      for (const LabelledPoint& point : group.points) {
        x.Include(point.x);
        y.Include(point.y);
      }
    }
    x.Close();
    y.Close();
    const size_t gutter = GutterOf(y);
    DotCanvas canvas = MakeCanvas(gutter);
    const auto place = [&](double px, double py) { return std::pair(x.At(px), y.At(py)); };
    for (size_t i = 1; i < figure_.front.size(); ++i) {
      const auto& [x0, y0] = figure_.front[i - 1];
      const auto& [x1, y1] = figure_.front[i];
      if (!x.IsDrawn(x0) || !y.IsDrawn(y0) || !x.IsDrawn(x1) || !y.IsDrawn(y1)) continue;
      canvas.Line(place(x0, y0), place(x1, y0), kNoColor);
      canvas.Line(place(x1, y0), place(x1, y1), kNoColor);
    }
    std::string on_front;
    for (size_t i = 0; i < figure_.groups.size(); ++i) {
      for (const LabelledPoint& point : figure_.groups[i].points) {
        if (x.IsDrawn(point.x) && y.IsDrawn(point.y)) {
          canvas.Put(place(point.x, point.y), LetterOf(i), i);
        }
        if (std::ranges::find(figure_.front, std::pair(point.x, point.y)) != figure_.front.end()) {
          on_front += StrCat(on_front.empty() ? "" : ", ", point.label);
        }
      }
    }
    std::string out = Framed(figure_, canvas, x, y, gutter, style_.has_color);
    for (size_t i = 0; i < figure_.groups.size(); ++i) out += Legend(i, figure_.groups[i].label);
    if (!on_front.empty()) out += StrCat(Cut("  on the front: " + on_front, style_.columns), "\n");
    return out;
  }

  std::string Bars() const {
    Axis x(figure_.has_log_y);
    size_t labels = 0;
    size_t values = 0;
    for (const Bar& bar : figure_.bars) {
      for (const double value : {bar.mean, bar.low, bar.high}) x.Include(value);
      labels = std::max(labels, CellWidth(EscapeForTerminal(bar.label)));
      values = std::max(values, CellWidth(FormatValue(bar.mean)));
    }
    x.Close();
    labels = std::min(labels, style_.columns / 3);
    const size_t used = labels + values + 4;
    const size_t width = std::max(kNarrowestPlot, style_.columns - std::min(style_.columns, used));
    std::string out;
    for (size_t i = 0; i < figure_.bars.size(); ++i) {
      const Bar& bar = figure_.bars[i];
      const auto cell = [&](double value) {
        const double share = x.IsDrawn(value) ? x.At(value) : 0;
        return static_cast<size_t>(std::lround(share * static_cast<double>(width - 1)));
      };
      std::vector<std::string> cells(width, "·");
      for (size_t c = cell(bar.low); c <= cell(bar.high); ++c) cells[c] = "━";
      cells[cell(bar.mean)] = "█";
      out += StrCat(PadToWidth(Cut(bar.label, labels), labels, Align::kLeft), "  ",
                    Colored(StrJoin(cells, ""), i, style_.has_color), "  ",
                    PadToWidth(FormatValue(bar.mean), values, Align::kRight), "\n");
    }
    return out + StrCat(std::string(labels + 2, ' '),
                        Spread(FormatValue(x.Value(0)), FormatValue(x.Value(0.5)),
                               FormatValue(x.Value(1)), width),
                        "\n");
  }

  std::string HeatMap() const {
    static const char* const kShades[] = {" ", "░", "▒", "▓", "█"};
    Axis scale(false);
    for (const Matrix& matrix : figure_.matrices) {
      for (const double value : matrix.values) scale.Include(value);
    }
    scale.Close();
    std::string out;
    for (const Matrix& matrix : figure_.matrices) {
      out += "\n";
      if (!matrix.title.empty()) out += Cut(matrix.title, style_.columns) + "\n";
      const auto label = [&](uint64_t row) {
        return Cut(
            matrix.row_labels.empty() ? StrCat(figure_.y_label, " ", row) : matrix.row_labels[row],
            style_.columns / 3);
      };
      size_t labels = 0;
      for (uint64_t row = 0; row < matrix.rows; ++row) {
        labels = std::max(labels, CellWidth(label(row)) + 1);
      }
      // Two cells a column where there is room, else one.
      const size_t each = matrix.columns * 2 + labels + 2 <= style_.columns ? 2 : 1;
      for (uint64_t row = 0; row < matrix.rows; ++row) {
        out += PadToWidth(label(row), labels, Align::kLeft) + "│";
        for (uint64_t column = 0; column < matrix.columns; ++column) {
          const double value = matrix.values[row * matrix.columns + column];
          const char* shade = "×";
          if (std::isfinite(value)) {
            shade = kShades[std::min<size_t>(4, static_cast<size_t>(scale.At(value) * 5))];
          }
          for (size_t i = 0; i < each; ++i) out += shade;
        }
        out += "│\n";
      }
    }
    const std::vector<std::string>& names = figure_.matrices.front().column_labels;
    const std::string columns = names.empty() ? StrCat(figure_.x_label, " from left to right")
                                              : StrCat(figure_.x_label, ": ", StrJoin(names, ", "));
    return out + StrCat("\n", Cut(columns, style_.columns), "\nblank ", FormatValue(scale.Value(0)),
                        ", █ ", FormatValue(scale.Value(1)), "\n");
  }

  std::string Parallel() const {
    DotCanvas canvas(std::max(kNarrowestPlot, style_.columns),
                     std::max(kLowestPlot, style_.rows - std::min<size_t>(style_.rows, 5)));
    const size_t axes = figure_.axes.size();
    const double last = std::max<double>(1, static_cast<double>(axes) - 1);
    Axis color(false);
    for (const ParallelLine& line : figure_.parallel) color.Include(line.color);
    color.Close();
    for (const ParallelLine& line : figure_.parallel) {
      const auto step = static_cast<size_t>(std::min(3.0, std::floor(color.At(line.color) * 4)));
      for (size_t a = 1; a < line.places.size(); ++a) {
        if (!std::isfinite(line.places[a - 1]) || !std::isfinite(line.places[a])) continue;
        canvas.Line({static_cast<double>(a - 1) / last, line.places[a - 1]},
                    {static_cast<double>(a) / last, line.places[a]}, step);
      }
    }
    for (size_t a = 0; a < axes; ++a) canvas.Column(static_cast<double>(a) / last, "│");
    const auto along = [&](const auto& text_of) {
      const size_t room = axes < 2 ? style_.columns : style_.columns / axes;
      std::string line;
      for (size_t a = 0; a < axes; ++a) {
        const std::string text = Cut(text_of(figure_.axes[a]), room > 1 ? room - 1 : 1);
        // Centred on its axis, the first at the left and the last at the right end.
        const auto centre = static_cast<size_t>(static_cast<double>(a) / last *
                                                static_cast<double>(canvas.columns() - 1));
        size_t begin = a == 0 ? 0 : centre - std::min(centre, CellWidth(text) / 2);
        begin = std::min(begin, canvas.columns() - std::min(canvas.columns(), CellWidth(text)));
        const size_t at = CellWidth(line);
        if (begin > at) line += std::string(begin - at, ' ');
        line += text;
      }
      return line + "\n";
    };
    const auto tick = [](const ParallelAxis& axis, bool is_top) -> std::string {
      if (axis.ticks.empty()) return "-";
      return is_top ? axis.ticks.back().second : axis.ticks.front().second;
    };
    std::string out = along([&](const ParallelAxis& axis) { return tick(axis, true); });
    for (const std::string& line : canvas.Lines(style_.has_color)) out += line + "\n";
    out += along([&](const ParallelAxis& axis) { return tick(axis, false); });
    return out + along([](const ParallelAxis& axis) { return axis.name; });
  }

  const Figure& figure_;
  const ChartStyle& style_;
};

}  // namespace

std::string RenderChart(const Figure& figure, const ChartStyle& style) {
  return Chart(figure, style).Render();
}

}  // namespace switchyard::client
