#include "client/report/pivot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "client/commands/runs.h"
#include "client/output/number.h"
#include "client/plot/figures.h"
#include "common/base/strings.h"
#include "common/spec/series.h"
#include "switchyard/v1/run_service.pb.h"
#include "switchyard/v1/spec.pb.h"
#include "switchyard/v1/sweep_service.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

struct Place {
  std::vector<double> finite;
  uint64_t non_finite = 0;
};

double MeanOf(const std::vector<double>& values) { return SpreadOf(values, Band::kNone).mean; }

std::string Shown(const Place& place, pb::TableShow show, bool is_maximized) {
  if (place.finite.empty()) return place.non_finite > 0 ? "not finite" : "-";
  std::string text;
  if (show == pb::TABLE_SHOW_EACH) {
    for (const double value : place.finite) {
      text += StrCat(text.empty() ? "" : ", ", FormatValue(value));
    }
  } else if (show == pb::TABLE_SHOW_BEST) {
    text =
        FormatValue(is_maximized ? std::ranges::max(place.finite) : std::ranges::min(place.finite));
  } else {
    text = FormatValue(MeanOf(place.finite));
    if (place.finite.size() > 1) {
      const Spread spread = SpreadOf(place.finite, Band::kSd);
      char width[32];
      std::snprintf(width, sizeof width, "%.2g", spread.high - spread.mean);
      text += StrCat(" ± ", width);
    }
  }
  if (place.non_finite > 0) text += StrCat(" (", place.non_finite, " not finite)");
  return text;
}

// `cell` stands for all axes.
std::vector<std::string> Names(const google::protobuf::RepeatedPtrField<std::string>& names,
                               const pb::Sweep& sweep) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (name == "cell") {
      out.insert(out.end(), sweep.axes().begin(), sweep.axes().end());
    } else {
      out.push_back(name);
    }
  }
  return out;
}

}  // namespace

Result<Listing> PivotListing(const pb::Sweep& sweep, const std::vector<pb::Run>& runs,
                             const pb::TableSpec& table) {
  const std::string metric = table.metric().empty() ? sweep.objective().metric() : table.metric();
  const bool is_maximized = metric == sweep.objective().metric()
                                ? sweep.objective().goal() == pb::GOAL_MAXIMIZE
                                : spec::SeriesDirection(metric) == spec::Direction::kMaximize;
  const std::vector<std::string> row_names = Names(table.rows(), sweep);
  const std::vector<std::string> column_names = Names(table.columns(), sweep);
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> rows, GroupRuns(sweep, runs, row_names));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<RunGroup> columns,
                              GroupRuns(sweep, runs, column_names));
  std::map<const pb::Run*, size_t> column_of;
  for (size_t c = 0; c < columns.size(); ++c) {
    for (const pb::Run* run : columns[c].runs) column_of[run] = c;
  }
  Listing listing;
  listing.empty_note = "no runs";
  listing.columns.push_back({"row", StrJoin(AxisTitles(row_names), ", ")});
  for (const RunGroup& column : columns) {
    listing.columns.push_back(
        {column.label, column_names.empty() ? metric : column.label, Align::kRight});
  }
  const bool has_mean = table.mean() && columns.size() > 1;
  if (has_mean) listing.columns.push_back({"mean", "mean", Align::kRight});
  for (const RunGroup& row : rows) {
    std::vector<Place> places(columns.size());
    for (const pb::Run* run : row.runs) {
      const std::optional<double> value = NumberOf(sweep, *run, metric);
      if (!value) continue;
      Place& place = places[column_of.at(run)];
      if (std::isfinite(*value)) {
        place.finite.push_back(*value);
      } else {
        ++place.non_finite;
      }
    }
    std::vector<Cell> cells = {{row.label, {}}};
    std::vector<double> means;
    for (const Place& place : places) {
      const std::string shown = Shown(place, table.show(), is_maximized);
      cells.push_back({shown, shown});
      if (!place.finite.empty()) means.push_back(MeanOf(place.finite));
    }
    if (has_mean) {
      // A mean over some of the columns would stand beside means over all of them.
      const bool is_whole = means.size() == columns.size();
      cells.push_back(
          {is_whole ? Value(MeanOf(means)) : Value(), is_whole ? FormatValue(MeanOf(means)) : "-"});
    }
    listing.rows.push_back(std::move(cells));
  }
  return listing;
}

}  // namespace switchyard::client
