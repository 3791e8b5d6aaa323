#include "client/commands/results_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "client/output/number.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

// 0: finite, 1: not finite, 2: absent.
int Class(const std::optional<double>& value) {
  if (!value.has_value()) return 2;
  return std::isfinite(*value) ? 0 : 1;
}

bool IsBefore(const std::optional<double>& a, const std::optional<double>& b, bool is_maximized) {
  if (Class(a) != Class(b)) return Class(a) < Class(b);
  if (Class(a) != 0) return false;
  return is_maximized ? *a > *b : *a < *b;
}

bool IsCount(const std::string& series) {
  return series == kParamsTotal || series == kParamsActive || series == kTokensPerSecond;
}

std::string Shown(const ResultMetric& metric, double value) {
  if (IsCount(metric.series) && std::isfinite(value) && value >= 0) {
    return FormatCount(static_cast<uint64_t>(std::llround(value)));
  }
  return FormatValue(value);
}

std::string FindColumn(const ResultRow& row, const std::string& axis) {
  for (const auto& [name, value] : row.columns) {
    if (name == axis) return value;
  }
  return {};
}

void AppendAxes(const ResultTable& table, Listing* listing) {
  const std::vector<std::string> titles = AxisTitles(table.axes);
  for (size_t i = 0; i < table.axes.size(); ++i) {
    listing->columns.push_back({table.axes[i], titles[i]});
  }
}

// Counts of parameters are the same for every seed and need no deviation.
bool HasDeviation(const ResultMetric& metric) {
  return metric.series != kParamsTotal && metric.series != kParamsActive;
}

std::string MeanText(const ResultMetric& metric, const SeedSummary& summary) {
  if (summary.n == 0 && summary.non_finite == 0) return "-";
  std::string text = Shown(metric, summary.mean);
  if (summary.sd.has_value() && HasDeviation(metric)) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.2g", *summary.sd);
    text += StrCat(" ± ", IsCount(metric.series) ? Shown(metric, *summary.sd) : buffer);
  }
  return text;
}

}  // namespace

SeedSummary Summarize(const std::vector<double>& values) {
  SeedSummary summary;
  double sum = 0;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      ++summary.non_finite;
      continue;
    }
    ++summary.n;
    sum += value;
  }
  const auto n = static_cast<double>(summary.n);
  summary.mean = summary.n > 0 ? sum / n : std::numeric_limits<double>::quiet_NaN();
  if (summary.n >= 2) {
    double squares = 0;
    for (const double value : values) {
      if (std::isfinite(value)) squares += (value - summary.mean) * (value - summary.mean);
    }
    summary.sd = std::sqrt(squares / (n - 1));
  }
  return summary;
}

Listing RunResultsListing(ResultTable table) {
  std::stable_sort(table.rows.begin(), table.rows.end(),
                   [&](const ResultRow& a, const ResultRow& b) {
                     if (!table.metrics.empty()) {
                       if (IsBefore(a.values[0], b.values[0], table.is_maximized)) return true;
                       if (IsBefore(b.values[0], a.values[0], table.is_maximized)) return false;
                     }
                     return a.number < b.number;
                   });
  Listing listing;
  listing.empty_note = "no runs";
  listing.columns = {{"name", "RUN"}};
  AppendAxes(table, &listing);
  listing.columns.push_back({"seed", "SEED", Align::kRight});
  listing.columns.push_back({"state", "STATE"});
  for (const ResultMetric& metric : table.metrics) {
    listing.columns.push_back({metric.series, metric.title, Align::kRight});
  }
  listing.columns.push_back({"id", ""});
  for (const ResultRow& row : table.rows) {
    std::vector<Cell> cells = {{row.name, {}}};
    for (const std::string& axis : table.axes) {
      const std::string value = FindColumn(row, axis);
      cells.push_back({AxisCellValue(value), value});
    }
    cells.push_back({row.seed, {}});
    cells.push_back({row.state, {}});
    for (size_t m = 0; m < table.metrics.size(); ++m) {
      if (row.values[m].has_value()) {
        cells.push_back({*row.values[m], Shown(table.metrics[m], *row.values[m])});
      } else {
        cells.push_back({Value(), "-"});
      }
    }
    cells.push_back({row.id, {}});
    listing.rows.push_back(std::move(cells));
  }
  return listing;
}

Listing CellResults(ResultTable table) {
  struct Group {
    std::vector<std::string> columns;
    uint64_t runs = 0;
    uint64_t first_number = 0;
    std::vector<SeedSummary> summaries;
    std::optional<double> key;
  };
  std::map<std::vector<std::string>, std::vector<const ResultRow*>> cells;
  for (const ResultRow& row : table.rows) {
    std::vector<std::string> columns;
    for (const std::string& axis : table.axes) columns.push_back(FindColumn(row, axis));
    cells[std::move(columns)].push_back(&row);
  }
  std::vector<Group> groups;
  for (const auto& [columns, rows] : cells) {
    Group group{.columns = columns, .runs = rows.size(), .first_number = rows.front()->number};
    for (const ResultRow* row : rows) {
      group.first_number = std::min(group.first_number, row->number);
    }
    for (size_t m = 0; m < table.metrics.size(); ++m) {
      std::vector<double> values;
      for (const ResultRow* row : rows) {
        if (row->values[m].has_value()) values.push_back(*row->values[m]);
      }
      group.summaries.push_back(Summarize(values));
    }
    const bool has_any =
        !group.summaries.empty() && group.summaries[0].n + group.summaries[0].non_finite > 0;
    if (has_any) group.key = group.summaries[0].mean;
    groups.push_back(std::move(group));
  }
  std::sort(groups.begin(), groups.end(), [&](const Group& a, const Group& b) {
    if (IsBefore(a.key, b.key, table.is_maximized)) return true;
    if (IsBefore(b.key, a.key, table.is_maximized)) return false;
    return a.first_number < b.first_number;
  });

  Listing listing;
  listing.empty_note = "no runs";
  AppendAxes(table, &listing);
  listing.columns.push_back({"runs", ""});
  listing.columns.push_back({"n", "N", Align::kRight});
  listing.columns.push_back({"non_finite", ""});
  for (const ResultMetric& metric : table.metrics) {
    listing.columns.push_back({StrCat(metric.series, ".mean"), metric.title, Align::kRight});
    listing.columns.push_back({StrCat(metric.series, ".sd"), ""});
    listing.columns.push_back({StrCat(metric.series, ".n"), ""});
  }
  for (const Group& group : groups) {
    std::vector<Cell> row;
    for (const std::string& value : group.columns) row.push_back({AxisCellValue(value), value});
    const SeedSummary first = group.summaries.empty() ? SeedSummary{} : group.summaries[0];
    std::string n = StrCat(first.n, "/", group.runs);
    if (first.non_finite > 0) n += StrCat(" (", first.non_finite, " not finite)");
    row.push_back({group.runs, {}});
    row.push_back({first.n, n});
    row.push_back({first.non_finite, {}});
    for (size_t m = 0; m < table.metrics.size(); ++m) {
      const SeedSummary& summary = group.summaries[m];
      const bool has_any = summary.n + summary.non_finite > 0;
      row.push_back({has_any ? Value(summary.mean) : Value(), MeanText(table.metrics[m], summary)});
      row.push_back({summary.sd.has_value() ? Value(*summary.sd) : Value(), {}});
      row.push_back({summary.n, {}});
    }
    listing.rows.push_back(std::move(row));
  }
  return listing;
}

}  // namespace switchyard::client
