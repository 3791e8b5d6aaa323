#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>

#include "client/commands/commands.h"
#include "client/commands/sweep_file.h"
#include "client/exit_code.h"
#include "common/base/strings.h"
#include "common/spec/series.h"
#include "common/spec/sweep_plan.h"
#include "server/api/strategy.h"
#include "server/search/curves.h"
#include "server/search/preview.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::client {

namespace pb = ::switchyard::v1;

namespace {

// One line of CSV (RFC 4180), without its end.
std::optional<std::vector<std::string>> SplitCsv(std::string_view line) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (is_quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      cells.back().push_back('"');
      ++i;
    } else if (c == '"') {
      is_quoted = !is_quoted;
    } else if (c == ',' && !is_quoted) {
      cells.emplace_back();
    } else {
      cells.back().push_back(c);
    }
  }
  if (is_quoted) return std::nullopt;
  return cells;
}

// A table with a column per dimension, `step`, `value` and, if there are several, `seed`.
Result<std::vector<search::RecordedPoint>> ReadCurves(
    const std::string& file, const std::vector<spec::Dimension>& dimensions) {
  std::ifstream in(file);
  if (!in) return NotFound(StrCat(file, ": cannot be read"));
  std::vector<search::RecordedPoint> points;
  std::vector<std::string> header;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    const std::string place = StrCat(file, ":", number, ": ");
    const std::optional<std::vector<std::string>> cells = SplitCsv(line);
    if (!cells.has_value()) return InvalidArgument(place + "a quotation mark is not closed");
    if (header.empty()) {
      header = *cells;
      for (const char* wanted : {"step", "value"}) {
        if (std::ranges::find(header, wanted) == header.end()) {
          return InvalidArgument(StrCat(place, "there is no column ", wanted,
                                        "; wanted: one per dimension, step, value and maybe seed"));
        }
      }
      continue;
    }
    if (cells->size() != header.size()) {
      return InvalidArgument(
          StrCat(place, cells->size(), " cells; the first line has ", header.size()));
    }
    search::RecordedPoint& point = points.emplace_back();
    point.seed = 1;
    api::NamedValues values;
    for (size_t i = 0; i < header.size(); ++i) {
      const std::string& text = (*cells)[i];
      if (header[i] == "value") {
        const std::optional<double> value = ParseDouble(text);
        if (!value.has_value()) {
          return InvalidArgument(
              StrCat(place, "value \"", EscapeForTerminal(text), "\" is no number"));
        }
        point.value = *value;
      } else if (header[i] == "step" || header[i] == "seed") {
        const std::optional<uint64_t> value = ParseUint64(text);
        if (!value.has_value()) {
          return InvalidArgument(StrCat(place, header[i], " \"", EscapeForTerminal(text),
                                        "\" is no whole number from 0"));
        }
        (header[i] == "step" ? point.step : point.seed) = *value;
      } else if (!text.empty()) {
        values.emplace_back(header[i], text);
      }
    }
    Result<search::Point> parsed = api::ParsePoint(dimensions, values);
    if (!parsed.ok()) return InvalidArgument(place + parsed.status().message());
    point.point = *std::move(parsed);
  }
  if (points.empty()) return InvalidArgument(StrCat(file, ": holds no value"));
  return points;
}

// What became of one cell.
struct CellStory {
  search::Action proposal;
  uint64_t steps = 0;
  std::map<uint64_t, double> newest;  // by seed
  std::string end = "completed";
};

std::map<uint64_t, CellStory> StoriesOf(const search::PreviewResult& result) {
  std::map<uint64_t, CellStory> cells;
  for (const search::PreviewEvent& event : result.events) {
    if (event.kind == search::PreviewEvent::Kind::kObserve) {
      CellStory& cell = cells[event.cell];
      cell.newest[event.seed] = event.value;
      cell.steps = std::max(cell.steps, event.step);
    }
    for (const search::Action& action : event.actions) {
      if (action.kind == search::Action::Kind::kPropose) cells[action.cell].proposal = action;
      if (action.kind == search::Action::Kind::kStop) cells[action.cell].end = action.reason;
    }
  }
  return cells;
}

double MeanOf(const std::map<uint64_t, double>& values) {
  double sum = 0;
  for (const auto& [seed, value] : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

int RunPreview(const Context& context, const PreviewOptions& options) {
  pb::SweepSpec spec;
  if (const Status status = ReadSweepFile(context, options.file, options.overrides, &spec);
      !status.ok()) {
    return context.Fail(status);
  }
  std::vector<spec::Fault> faults;
  const std::shared_ptr<const spec::SweepPlan> plan = spec::SweepPlan::Make(spec, &faults);
  if (plan == nullptr) {
    return context.Fail(
        InvalidArgument(faults.empty() ? StrCat(options.file, ": every stage needs another sweep")
                                       : spec::ToString(faults)));
  }
  // Its own, or those of its first stage.
  const pb::StageSpec* first = nullptr;
  for (const pb::StageSpec& stage : spec.stages()) {
    if (first == nullptr && !stage.has_needs()) first = &stage;
  }
  const pb::StrategySpec& strategy = first == nullptr ? spec.strategy() : first->strategy();
  const pb::ObjectiveSpec& objective = first == nullptr ? spec.objective() : first->objective();
  if (!plan->is_drawn()) {
    return context.Fail(InvalidArgument(
        StrCat(options.file,
               ": the sweep has no strategy that draws, so every cell runs to its end; "
               "`plan` shows them")));
  }
  if (strategy.has_external()) {
    return context.Fail(
        InvalidArgument(StrCat(options.file, ": strategy external chooses its cells elsewhere")));
  }
  const bool is_maximized =
      objective.goal() == pb::GOAL_MAXIMIZE ||
      (objective.goal() == pb::GOAL_UNSPECIFIED &&
       spec::SeriesDirection(objective.metric()) == spec::Direction::kMaximize);
  Result<std::unique_ptr<search::Search>> search = api::MakeSearch(spec, plan, is_maximized);
  if (!search.ok()) return context.Fail(search.status());
  const search::Settings& settings = (*search)->settings();
  search::Curve curve = search::SyntheticCurve((*search)->space(), settings.steps,
                                               options.curve_seed, options.noise, is_maximized);
  if (!options.curves.empty()) {
    Result<std::vector<search::RecordedPoint>> points =
        ReadCurves(options.curves, plan->dimensions());
    if (!points.ok()) return context.Fail(points.status());
    Result<search::Curve> recorded = search::RecordedCurve((*search)->space(), *points);
    if (!recorded.ok()) return context.Fail(recorded.status());
    curve = *std::move(recorded);
  }
  const search::PreviewResult result =
      search::Preview(search->get(), options.slots, curve, /*is_guarded=*/true);

  Listing listing;
  listing.columns = {{"cell", "CELL", Align::kRight}};
  for (const std::string& axis : plan->axes()) listing.columns.push_back({axis, axis});
  listing.columns.push_back({"parent", "PARENT", Align::kRight});
  listing.columns.push_back({"steps", "STEPS", Align::kRight});
  listing.columns.push_back({"value", "VALUE", Align::kRight});
  listing.columns.push_back({"end", "END"});
  for (const auto& [number, cell] : StoriesOf(result)) {
    const api::NamedValues values = api::ShowPoint(plan->dimensions(), cell.proposal.point);
    auto& row = listing.rows.emplace_back();
    row.push_back({number, {}});
    for (const std::string& axis : plan->axes()) {
      const auto found = std::ranges::find(values, axis, &api::NamedValues::value_type::first);
      row.push_back({found == values.end() ? Value() : Value(found->second), {}});
    }
    row.push_back({cell.proposal.parent == 0 ? Value() : Value(cell.proposal.parent), {}});
    row.push_back({cell.steps, {}});
    row.push_back({cell.newest.empty() ? Value() : Value(MeanOf(cell.newest)), {}});
    row.push_back({cell.end, {}});
  }
  if (context.is_for_people()) {
    context.Print(StrCat(EscapeForTerminal(spec.name()), ": ", result.cells, " cells, ",
                         result.runs_completed, " runs to the end, ", result.runs_stopped,
                         " stopped; ", result.steps, " of ", result.steps_full, " steps, ",
                         result.time, " long on ", options.slots, " slots\n"));
    if (result.best_cell != 0) {
      context.Print(StrCat("best: cell ", result.best_cell, ", ", result.best_value, "\n"));
    }
    if ((*search)->gave_up()) {
      context.Print("some draws were given up: no point of 1,000 met the constraints\n");
    }
  }
  context.Show(listing);
  return kExitOk;
}

}  // namespace switchyard::client
