#include "client/commands/watch_frame.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "client/output/bar.h"
#include "client/output/number.h"
#include "client/output/sparkline.h"
#include "client/output/text.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kNameWidthMax = 28;
constexpr size_t kLabelWidthMax = 24;
constexpr size_t kLinesPerSweep = 2;

// One column of the run rows. `shed`: order in which columns go when the window is narrow; 0 stays.
struct RunColumn {
  std::string title;
  Align align = Align::kLeft;
  int shed = 0;
  std::function<std::string(const WatchRun&)> text;
  size_t width = 0;
};

std::string Known(const std::optional<double>& value,
                  const std::function<std::string(double)>& format) {
  return value.has_value() ? format(*value) : "-";
}

std::string FormatEntropy(double value) {
  if (!std::isfinite(value)) return FormatValue(value);
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.3f", value);
  return buffer;
}

std::string StepText(const WatchRun& run) {
  return run.steps_total > 0 ? StrCat(run.step, "/", run.steps_total) : std::to_string(run.step);
}

double Fraction(const WatchRun& run) {
  if (run.steps_total == 0) return 0;
  return static_cast<double>(run.step) / static_cast<double>(run.steps_total);
}

std::vector<RunColumn> MakeColumns(size_t curve_width) {
  std::vector<RunColumn> columns;
  columns.push_back({"RUN", Align::kLeft, 0, [](const WatchRun& run) {
                       return CutToWidth(EscapeForTerminal(run.name), kNameWidthMax);
                     }});
  columns.push_back({"CELL", Align::kLeft, 4, [](const WatchRun& run) {
                       return CutToWidth(EscapeForTerminal(run.label), kLabelWidthMax);
                     }});
  columns.push_back({"STATE", Align::kLeft, 0, [](const WatchRun& run) { return run.state; }});
  columns.push_back({"STEP", Align::kRight, 0, StepText});
  columns.push_back({"PROGRESS", Align::kLeft, 3,
                     [](const WatchRun& run) { return ProgressBar(Fraction(run), 10); }});
  columns.push_back(
      {"LOSS", Align::kRight, 0, [](const WatchRun& run) { return Known(run.loss, FormatValue); }});
  columns.push_back({"LOSS CURVE", Align::kLeft, 2, [curve_width](const WatchRun& run) {
                       return Sparkline(run.loss_curve, curve_width);
                     }});
  columns.push_back({"ENTROPY", Align::kRight, 7,
                     [](const WatchRun& run) { return Known(run.entropy, FormatEntropy); }});
  columns.push_back({"ENTROPY CURVE", Align::kLeft, 1, [curve_width](const WatchRun& run) {
                       return Sparkline(run.entropy_curve, curve_width, Scale{.low = 0, .high = 1});
                     }});
  columns.push_back({"TOK/S", Align::kRight, 5,
                     [](const WatchRun& run) { return Known(run.tokens_per_second, FormatSi); }});
  columns.push_back({"ETA", Align::kRight, 6,
                     [](const WatchRun& run) { return FormatDuration(run.eta_seconds); }});
  return columns;
}

size_t TotalWidth(const std::vector<RunColumn>& columns) {
  size_t total = 0;
  for (const RunColumn& column : columns) total += column.width + kGap;
  return total - kGap;
}

void Measure(const std::vector<WatchRun>& runs, std::vector<RunColumn>* columns) {
  for (RunColumn& column : *columns) {
    column.width = CellWidth(column.title);
    for (const WatchRun& run : runs) {
      column.width = std::max(column.width, CellWidth(column.text(run)));
    }
  }
}

// The columns that fit into `width`.
std::vector<RunColumn> FitColumns(const std::vector<WatchRun>& runs, size_t width) {
  std::vector<RunColumn> columns = MakeColumns(width >= 150 ? 20 : 13);
  // A label that says nothing, for a sweep without axes, takes no column.
  if (std::all_of(runs.begin(), runs.end(),
                  [](const WatchRun& run) { return run.label.empty(); })) {
    columns.erase(columns.begin() + 1);
  }
  Measure(runs, &columns);
  for (int shed = 1; shed <= 7 && TotalWidth(columns) > width; ++shed) {
    std::erase_if(columns, [shed](const RunColumn& column) { return column.shed == shed; });
  }
  return columns;
}

std::string Trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

const char* ColorOf(const std::string& state) {
  if (state == "active") return "\x1b[36m";
  if (state == "succeeded" || state == "completed") return "\x1b[32m";
  if (state == "failed" || state == "quarantined") return "\x1b[31m";
  return "\x1b[33m";
}

std::string RunLine(const WatchRun* run, const std::vector<RunColumn>& columns,
                    const FrameStyle& style) {
  std::string line;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i > 0) line.append(kGap, ' ');
    line += PadToWidth(run == nullptr ? columns[i].title : columns[i].text(*run), columns[i].width,
                       columns[i].align);
  }
  line = CutToWidth(Trimmed(std::move(line)), style.columns);
  if (style.has_color && run == nullptr) return StrCat("\x1b[1m", line, "\x1b[0m");
  if (style.has_color) {
    // The state's word alone is coloured: it appears once, behind the name.
    const size_t at = line.find(" " + run->state + " ");
    if (at != std::string::npos) {
      line.insert(at + 1 + run->state.size(), "\x1b[0m");
      line.insert(at + 1, ColorOf(run->state));
    }
  }
  return line;
}

std::string Counts(const WatchSweep& sweep) {
  std::string text = StrCat(sweep.ended(), "/", sweep.runs, " done");
  if (sweep.active > 0) text += StrCat(", ", sweep.active, " active");
  if (sweep.waiting > 0) text += StrCat(", ", sweep.waiting, " queued");
  if (sweep.failed > 0) text += StrCat(", ", sweep.failed, " failed");
  if (sweep.cancelled > 0) text += StrCat(", ", sweep.cancelled, " cancelled");
  if (sweep.set_aside > 0) {
    const bool is_over = sweep.state == "completed" || sweep.state == "cancelled";
    text += StrCat(", ", sweep.set_aside, is_over ? " stopped early" : " stopped early or paused");
  }
  return text;
}

void AppendSweep(const WatchSweep& sweep, const FrameStyle& style, std::vector<std::string>* out) {
  std::string head = StrCat(EscapeForTerminal(sweep.name), "  ", sweep.state, "  ", Counts(sweep));
  if (sweep.elapsed_seconds >= 0) head += StrCat("  ", FormatDuration(sweep.elapsed_seconds));
  if (sweep.eta_seconds >= 0) head += StrCat("  eta ", FormatDuration(sweep.eta_seconds));
  out->push_back(CutToWidth(head, style.columns));
  const double share =
      sweep.runs > 0 ? static_cast<double>(sweep.ended()) / static_cast<double>(sweep.runs) : 1.0;
  const std::string percent =
      PadToWidth(StrCat(static_cast<int>(share * 100), "%"), 5, Align::kRight);
  const size_t bar_width = style.columns > 5 ? std::min<size_t>(style.columns - 5, 100) : 0;
  std::string bar = StackedBar({{sweep.succeeded, "█"},
                                {sweep.failed, "▚"},
                                {sweep.cancelled + sweep.set_aside, "▒"},
                                {sweep.active, "▓"},
                                {sweep.waiting, "·"}},
                               bar_width);
  out->push_back(CutToWidth(bar + percent, style.columns));
}

}  // namespace

size_t RunRowsThatFit(size_t sweep_count, size_t rows) {
  // The fleet, sweeps, a blank line, the heading, "… and N more", a note, the cursor's line.
  const size_t taken = sweep_count * kLinesPerSweep + 6;
  return rows > taken ? rows - taken : 0;
}

std::vector<std::string> RenderWatch(const WatchView& view, const FrameStyle& style) {
  std::vector<std::string> lines;
  if (!view.fleet.empty()) lines.push_back(CutToWidth(view.fleet, style.columns));
  for (const WatchSweep& sweep : view.sweeps) AppendSweep(sweep, style, &lines);
  if (view.sweeps.empty() && view.runs.empty()) lines.emplace_back("nothing is live");
  uint64_t hidden = view.runs_hidden;
  if (!view.runs.empty()) {
    const std::vector<RunColumn> columns = FitColumns(view.runs, style.columns);
    if (!lines.empty()) lines.emplace_back();
    lines.push_back(RunLine(nullptr, columns, style));
    const size_t fits = std::max<size_t>(1, RunRowsThatFit(view.sweeps.size(), style.rows));
    const size_t shown = std::min(fits, view.runs.size());
    for (size_t i = 0; i < shown; ++i) lines.push_back(RunLine(&view.runs[i], columns, style));
    hidden += view.runs.size() - shown;
  }
  if (hidden > 0) {
    lines.push_back(CutToWidth(StrCat("… and ", hidden, " more active"), style.columns));
  }
  if (!view.note.empty()) {
    lines.push_back(CutToWidth(EscapeForTerminal(view.note), style.columns));
  }
  const size_t most = style.rows > 1 ? style.rows - 1 : 1;
  if (lines.size() > most) lines.resize(most);
  return lines;
}

std::string Redraw(const std::vector<std::string>& previous, const std::vector<std::string>& lines,
                   size_t columns) {
  size_t rows_up = 0;
  for (const std::string& line : previous) {
    std::string plain;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '\x1b') {
        i = std::min(line.find('m', i), line.size() - 1);
      } else {
        plain += line[i];
      }
    }
    const size_t width = CellWidth(plain);
    rows_up += columns > 0 && width > columns ? (width + columns - 1) / columns : 1;
  }
  std::string out;
  if (rows_up > 0) out += StrCat("\x1b[", rows_up, "A");
  out += "\r";
  for (const std::string& line : lines) out += StrCat(line, "\x1b[K\n");
  return out + "\x1b[J";
}

std::string PlainLine(const WatchSweep& sweep) {
  return StrCat(EscapeForTerminal(sweep.name), " ", sweep.state, " ", Counts(sweep));
}

std::string PlainLine(const WatchRun& run) {
  std::string text = StrCat(EscapeForTerminal(run.name), " ", run.state, " step ", StepText(run));
  if (run.loss) text += StrCat(" loss ", FormatValue(*run.loss));
  if (run.entropy) text += StrCat(" entropy ", FormatValue(*run.entropy));
  if (run.tokens_per_second) text += StrCat(" ", FormatSi(*run.tokens_per_second), " tok/s");
  if (!run.reason.empty()) text += StrCat(" (", EscapeForTerminal(run.reason), ")");
  return text;
}

}  // namespace switchyard::client
