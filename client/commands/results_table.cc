#include "client/commands/results_table.h"

#include <algorithm>
#include <cmath>

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

// A larger value is no count.
constexpr double kCountMax = 1e15;

bool IsCount(const std::string& series) {
  return series == kParamsTotal || series == kParamsActive || series == kTokensPerSecond;
}

std::string Shown(const ResultMetric& metric, double value) {
  if (IsCount(metric.series) && value >= 0 && value < kCountMax) {
    return FormatCount(static_cast<uint64_t>(std::llround(value)));
  }
  if (metric.series == kAuditCausality) return CausalityText(value);
  return FormatValue(value);
}

std::string FindColumn(const ResultRow& row, const std::string& axis) {
  for (const auto& [name, value] : row.columns) {
    if (name == axis) return value;
  }
  return {};
}

void AppendAxes(const std::vector<std::string>& axes, Listing* listing) {
  const std::vector<std::string> titles = AxisTitles(axes);
  for (size_t i = 0; i < axes.size(); ++i) listing->columns.push_back({axes[i], titles[i]});
}

// Counts of parameters are the same for every seed and need no deviation.
bool HasDeviation(const ResultMetric& metric) {
  return metric.series != kParamsTotal && metric.series != kParamsActive &&
         metric.series != kAuditCausality;
}

std::string MeanText(const ResultMetric& metric, const GroupedValue& value) {
  if (value.n == 0 && value.non_finite == 0) return "-";
  if (metric.series == kAuditCausality && value.n > 1 && value.sd > 0) return "mixed";
  std::string text = Shown(metric, value.mean);
  if (value.n > 1 && HasDeviation(metric)) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.2g", value.sd);
    text += StrCat(" ± ", IsCount(metric.series) ? Shown(metric, value.sd) : buffer);
  }
  return text;
}

}  // namespace

Listing RunResultsListing(ResultTable table) {
  const auto is_before = [&](const ResultRow& a, const ResultRow& b) {
    if (!table.metrics.empty()) {
      if (IsBefore(a.values[0], b.values[0], table.is_maximized)) return true;
      if (IsBefore(b.values[0], a.values[0], table.is_maximized)) return false;
    }
    return a.number < b.number;
  };
  if (!table.is_ordered) std::stable_sort(table.rows.begin(), table.rows.end(), is_before);
  Listing listing;
  listing.empty_note = "no runs";
  listing.columns = {{"name", "RUN"}};
  AppendAxes(table.axes, &listing);
  listing.columns.push_back({"seed", "SEED", Align::kRight});
  listing.columns.push_back({"state", "STATE"});
  const bool has_several =
      std::ranges::any_of(table.rows, [](const ResultRow& row) { return row.attempts > 1; });
  listing.columns.push_back({"attempts", has_several ? "ATTEMPTS" : "", Align::kRight});
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
    cells.push_back({row.attempts, {}});
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

Listing GroupListing(const std::vector<std::string>& by, const std::vector<ResultMetric>& metrics,
                     const std::vector<GroupRow>& groups) {
  Listing listing;
  listing.empty_note = "no runs";
  AppendAxes(by, &listing);
  listing.columns.push_back({"runs", ""});
  listing.columns.push_back({"n", "N", Align::kRight});
  listing.columns.push_back({"non_finite", ""});
  for (const ResultMetric& metric : metrics) {
    listing.columns.push_back({StrCat(metric.series, ".mean"), metric.title, Align::kRight});
    listing.columns.push_back({StrCat(metric.series, ".sd"), ""});
    listing.columns.push_back({StrCat(metric.series, ".n"), ""});
    listing.columns.push_back({StrCat(metric.series, ".best"), ""});
    listing.columns.push_back({StrCat(metric.series, ".best_run"), ""});
  }
  if (!metrics.empty()) {
    // The table shows the best of the first metric only.
    const size_t first = by.size() + 3;
    listing.columns[first + 3].title = "BEST";
    listing.columns[first + 3].align = Align::kRight;
    listing.columns[first + 4].title = "OF RUN";
  }
  for (const GroupRow& group : groups) {
    std::vector<Cell> row;
    for (const std::string& value : group.key) row.push_back({AxisCellValue(value), value});
    const GroupedValue first = group.values.empty() ? GroupedValue{} : group.values[0];
    std::string n = StrCat(first.n, "/", group.runs);
    if (first.non_finite > 0) n += StrCat(" (", first.non_finite, " not finite)");
    row.push_back({group.runs, {}});
    row.push_back({first.n, n});
    row.push_back({first.non_finite, {}});
    for (size_t m = 0; m < metrics.size(); ++m) {
      const GroupedValue& value = group.values[m];
      const bool has_any = value.n + value.non_finite > 0;
      const bool has_best = !value.best_run.empty();
      row.push_back({has_any ? Value(value.mean) : Value(), MeanText(metrics[m], value)});
      row.push_back({value.n > 1 ? Value(value.sd) : Value(), {}});
      row.push_back({value.n, {}});
      row.push_back(
          {has_best ? Value(value.best) : Value(), has_best ? Shown(metrics[m], value.best) : "-"});
      row.push_back({has_best ? Value(value.best_run) : Value(), value.best_run});
    }
    listing.rows.push_back(std::move(row));
  }
  return listing;
}

}  // namespace switchyard::client
