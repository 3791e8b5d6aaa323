#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "client/output/text.h"
#include "client/plot/gnuplot.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr size_t kLabelCellsMax = 60;
constexpr size_t kTickCellsMax = 24;
constexpr size_t kKeyBesideCellsMax = 24;  // longer entries stand below the picture
constexpr size_t kTicksInARowCells = 100;  // more text than that is turned

// Colours that stay apart for colour-blind readers (Okabe and Ito, 2008).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#000000", "#8c6d31"};
constexpr size_t kColorCount = std::size(kColors);

const char* ColorOf(size_t i) { return kColors[i % kColorCount]; }

// gnuplot reads these forms of a double; anything that is not finite is a gap.
std::string Number(double value) { return std::isfinite(value) ? FormatDouble(value) : "NaN"; }

// Labels of one figure often differ in their ends only.
std::string CutInTheMiddle(const std::string& text, size_t width) {
  if (CellWidth(text) <= width) return text;
  const std::string head = CutToWidth(text, width / 2);
  size_t at = 0;
  while (CellWidth(std::string_view(text).substr(at)) > width - CellWidth(head)) {
    at += DecodeUtf8(text, at).bytes;
  }
  return head + text.substr(at);
}

std::string Short(std::string_view text) { return CutToWidth(text, kLabelCellsMax); }

std::string TerminalLine(const Canvas& canvas) {
  const std::string size = StrCat(canvas.width, ",", canvas.height);
  switch (canvas.kind) {
    case Canvas::Kind::kSvg:
      return StrCat("set terminal svg noenhanced size ", size,
                    " dynamic font \"sans-serif,12\" background \"#ffffff\"\n");
    case Canvas::Kind::kPng:
      return StrCat("set terminal pngcairo noenhanced size ", size,
                    " font \"sans,11\" background \"#ffffff\"\n");
  }
  return {};
}

class Script {
 public:
  Script(const Figure& figure, const Canvas& canvas) : figure_(figure) {
    out_ = "set encoding utf8\n" + TerminalLine(canvas);
    out_ += "unset output\n";
    Text("title", figure.title);
    Text("xlabel", figure.x_label);
    Text("ylabel", figure.y_label);
    if (figure.has_log_x) out_ += "set logscale x\n";
    if (figure.has_log_y) out_ += "set logscale y\n";
    out_ +=
        "set border 3 lc rgb \"#888888\"\nset tics nomirror textcolor rgb \"#333333\"\n"
        "set grid lc rgb \"#dddddd\" lw 0.5 dt 1\n";
  }

  std::string Take() {
    switch (figure_.kind) {
      case Figure::Kind::kCurves:
        Curves();
        break;
      case Figure::Kind::kPoints:
        Points();
        break;
      case Figure::Kind::kBars:
        Bars();
        break;
      case Figure::Kind::kHeatMap:
        HeatMap();
        break;
      case Figure::Kind::kParallel:
        Parallel();
        break;
    }
    return std::move(out_);
  }

 private:
  void Text(const char* what, const std::string& text) {
    if (!text.empty()) out_ += StrCat("set ", what, " ", GnuplotString(text), "\n");
  }

  template <typename Rows, typename Write>
  std::string Block(const Rows& rows, const Write& write) {
    const std::string name = StrCat("$data", blocks_++);
    out_ += StrCat(name, " << END\n");
    for (const auto& row : rows) out_ += write(row) + "\n";
    out_ += "END\n";
    return name;
  }

  void Plot(const std::vector<std::string>& parts) {
    if (parts.empty()) return;
    out_ += "plot " + StrJoin(parts, ", \\\n     ") + "\n";
  }

  void Key(size_t entries) {
    if (entries < 2 && figure_.kind != Figure::Kind::kCurves) {
      out_ += "unset key\n";
    } else {
      const bool is_beside = LongestLabel() <= kKeyBesideCellsMax;
      out_ += StrCat("set key outside ",
                     is_beside ? "right top vertical" : "bottom center vertical maxcols 2",
                     " Left reverse samplen 2\n");
    }
  }

  size_t LongestLabel() const {
    size_t longest = 0;
    for (const BandLine& line : figure_.lines) longest = std::max(longest, CellWidth(line.label));
    for (const PointGroup& group : figure_.groups) {
      longest = std::max(longest, CellWidth(group.label));
    }
    return longest;
  }

  void Curves() {
    Key(figure_.lines.size());
    out_ += "set style fill transparent solid 0.18 noborder\n";
    std::vector<std::string> bands;
    std::vector<std::string> lines;
    for (size_t i = 0; i < figure_.lines.size(); ++i) {
      const BandLine& line = figure_.lines[i];
      const std::string name = Block(line.points, [](const BandPoint& point) {
        return StrCat(Number(point.x), " ", Number(point.mean), " ", Number(point.low), " ",
                      Number(point.high));
      });
      const bool has_band = std::ranges::any_of(
          line.points, [](const BandPoint& point) { return point.low < point.high; });
      const std::string color = StrCat("lc rgb \"", ColorOf(i), "\"");
      if (has_band) {
        bands.push_back(StrCat(name, " using 1:3:4 with filledcurves ", color, " notitle"));
      }
      const bool is_dashed = line.is_dashed || (i / kColorCount) % 2 == 1;
      lines.push_back(StrCat(name, " using 1:2 with ",
                             line.points.size() == 1 ? "points pt 7 " : "lines lw 2 ", color,
                             is_dashed && line.points.size() > 1 ? " dt 2" : "", " title ",
                             GnuplotString(Short(line.label))));
    }
    bands.insert(bands.end(), lines.begin(), lines.end());
    Plot(bands);
  }

  void Points() {
    Key(figure_.groups.size());
    std::vector<std::string> parts;
    if (!figure_.front.empty()) {
      const std::string name = Block(figure_.front, [](const std::pair<double, double>& point) {
        return StrCat(Number(point.first), " ", Number(point.second));
      });
      parts.push_back(StrCat(name, " using 1:2 with steps lw 1.5 dt 2 lc rgb \"#555555\" title ",
                             GnuplotString("Pareto front")));
    }
    for (size_t i = 0; i < figure_.groups.size(); ++i) {
      const PointGroup& group = figure_.groups[i];
      const std::string name = Block(group.points, [](const LabelledPoint& point) {
        return StrCat(Number(point.x), " ", Number(point.y));
      });
      parts.push_back(StrCat(name, " using 1:2 with points pt 7 ps 0.8 lc rgb \"", ColorOf(i),
                             "\" title ", GnuplotString(Short(group.label))));
    }
    Margins();
    Plot(parts);
  }

  void Margins() { out_ += "set offsets graph 0.05, graph 0.05, graph 0.05, graph 0.05\n"; }

  void Bars() {
    out_ += "unset key\nset style fill solid 0.55 noborder\nset boxwidth 0.6\n";
    out_ += StrCat("set xrange [-0.6:", static_cast<double>(figure_.bars.size()) - 0.4, "]\n");
    std::vector<std::string> labels;
    size_t cells = 0;
    for (const Bar& bar : figure_.bars) {
      labels.push_back(bar.label);
      cells += std::min(kTickCellsMax, CellWidth(bar.label)) + 2;
    }
    out_ += StrCat("set xtics ", cells > kTicksInARowCells ? "rotate by -25 " : "", Ticks(labels),
                   "\n");
    size_t at = 0;
    const std::string name = Block(figure_.bars, [&](const Bar& bar) {
      return StrCat(at++, " ", Number(bar.mean), " ", Number(bar.low), " ", Number(bar.high));
    });
    // A bar that starts at 0 hides differences of a percent: values are points with their spread.
    out_ += "set offsets 0, 0, graph 0.08, graph 0.08\n";
    Plot({StrCat(name, " using 1:2:3:4 with yerrorbars pt 7 ps 1 lw 1.5 lc rgb \"", ColorOf(0),
                 "\" notitle")});
  }

  // Labels at 0, 1, 2 …
  static std::string Ticks(const std::vector<std::string>& labels) {
    std::string ticks;
    for (size_t i = 0; i < labels.size(); ++i) {
      ticks += StrCat(i > 0 ? ", " : "", TickText(labels[i]), " ", i);
    }
    return StrCat("(", ticks, ")");
  }

  // Labels of ticks go through gnuplot's own format.
  static std::string TickText(const std::string& label) {
    std::string text;
    for (const char c : CutInTheMiddle(label, kTickCellsMax)) {
      text += c;
      if (c == '%') text += c;
    }
    return GnuplotString(text);
  }

  void HeatMap() {
    double low = std::numeric_limits<double>::infinity();
    double high = -low;
    for (const Matrix& matrix : figure_.matrices) {
      for (const double value : matrix.values) {
        if (!std::isfinite(value)) continue;
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
    if (!(low < high)) high = low + (low == 0 ? 1 : std::abs(low) * 0.1);
    const size_t count = std::max<size_t>(1, figure_.matrices.size());
    const auto across = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(count))));
    const size_t down = (count + across - 1) / across;
    out_ +=
        "set palette defined (0 \"#f7fbff\", 0.35 \"#9ecae1\", 0.7 \"#3182bd\", 1 \"#08306b\")\n"
        "unset key\nunset grid\nset tics out scale 0.5\nset xtics 1\nset ytics 1\n"
        "set style fill solid\n";
    out_ += StrCat("set cbrange [", Number(low), ":", Number(high), "]\n");
    out_ += StrCat("set multiplot layout ", down, ",", across, " title ",
                   GnuplotString(figure_.title), "\n");
    for (const Matrix& matrix : figure_.matrices) OneMatrix(matrix);
    out_ += "unset multiplot\n";
  }

  void OneMatrix(const Matrix& matrix) {
    Text("title", matrix.title.empty() ? " " : Short(matrix.title));
    std::vector<size_t> places(matrix.values.size());
    for (size_t i = 0; i < places.size(); ++i) places[i] = i;
    const std::string name = Block(places, [&](size_t i) {
      return StrCat(i % matrix.columns, " ", i / matrix.columns, " ", Number(matrix.values[i]));
    });
    const auto step = [](uint64_t extent) { return std::max<uint64_t>(1, (extent + 15) / 16); };
    const auto ticks = [&](const std::vector<std::string>& labels, uint64_t extent) {
      return labels.empty() ? std::to_string(step(extent)) : Ticks(labels);
    };
    out_ += StrCat("set xtics ", ticks(matrix.column_labels, matrix.columns), "\nset ytics ",
                   ticks(matrix.row_labels, matrix.rows), "\n");
    out_ += StrCat("set xrange [-0.5:", static_cast<double>(matrix.columns) - 0.5,
                   "]\nset yrange [", static_cast<double>(matrix.rows) - 0.5, ":-0.5]\n");
    out_ +=
        "set object 1 rectangle from graph 0,0 to graph 1,1 behind fc rgb \"#dddddd\" "
        "fs solid noborder\n";
    Plot({StrCat(name,
                 " using 1:2:($1-0.5):($1+0.5):($2-0.5):($2+0.5):3 with boxxyerror lc palette "
                 "notitle")});
  }

  void Parallel() {
    const size_t axes = figure_.axes.size();
    out_ += "unset key\nunset border\nunset grid\nunset ytics\n";
    out_ += StrCat("set xrange [-0.3:", static_cast<double>(axes) - 0.5,
                   "]\nset yrange [-0.08:1.08]\n");
    std::vector<std::string> names;
    for (size_t i = 0; i < axes; ++i) {
      const ParallelAxis& axis = figure_.axes[i];
      names.push_back(axis.name);
      out_ +=
          StrCat("set arrow from ", i, ",0 to ", i, ",1 nohead lw 1 lc rgb \"#555555\" front\n");
      for (const auto& [place, text] : axis.ticks) {
        out_ += StrCat("set label ", GnuplotString(Short(text)), " at ", i, ",", Number(place),
                       " offset character 0.6,0 front\n");
      }
    }
    out_ += StrCat("set xtics scale 0 ", Ticks(names), "\n");
    Text("cblabel", figure_.y_label);
    out_ +=
        "unset ylabel\n"
        "set palette defined (0 \"#08306b\", 0.5 \"#41b6c4\", 1 \"#fdae61\")\n";
    std::vector<std::string> rows;
    for (const ParallelLine& line : figure_.parallel) {
      std::string row;
      for (size_t i = 0; i < line.places.size(); ++i) {
        row += StrCat(i, " ", Number(line.places[i]), " ", Number(line.color), "\n");
      }
      rows.push_back(row);  // An empty line behind it ends the line that is drawn.
    }
    const std::string name = Block(rows, [](const std::string& row) { return row; });
    Plot({StrCat(name, " using 1:2:3 with lines lw 1.5 ", "lc palette notitle")});
  }

  const Figure& figure_;
  std::string out_;
  int blocks_ = 0;
};

}  // namespace

std::string GnuplotString(std::string_view text) {
  std::string out = "\"";
  bool was_escape = false;
  for (const char c : EscapeForTerminal(text)) {
    // gnuplot reads digits behind an escape as part of it.
    const bool is_digit = c >= '0' && c <= '9' && !was_escape;
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit || c == ' ';
    was_escape = !is_plain;
    if (is_plain) {
      out += c;
      continue;
    }
    char escape[8];
    std::snprintf(escape, sizeof escape, "\\%03o", static_cast<unsigned char>(c));
    out += escape;
  }
  return out + "\"";
}

std::string GnuplotScript(const Figure& figure, const Canvas& canvas) {
  return Script(figure, canvas).Take();
}

}  // namespace switchyard::client
