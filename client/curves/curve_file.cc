#include "client/curves/curve_file.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>

#include "client/curves/csv_reader.h"
#include "client/output/csv.h"
#include "common/base/strings.h"

namespace switchyard::client {
namespace {

constexpr size_t kFaultsShown = 20;
constexpr double kExactIntegersEnd = 9007199254740992.0;  // 2^53

std::string Lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return text;
}

std::optional<uint64_t> ParseWhole(std::string_view text) {
  if (const auto whole = ParseUint64(text)) return whole;
  // Spreadsheets and data frames write 100.0 where a column has gaps.
  const auto number = ParseDouble(text);
  if (!number || !(*number >= 0) || *number >= kExactIntegersEnd ||
      std::floor(*number) != *number) {
    return std::nullopt;
  }
  return static_cast<uint64_t>(*number);
}

// A leading ' that an export has put in front of a formula's first character.
std::string Unguarded(const std::string& cell) {
  return cell.size() > 1 && cell[0] == '\'' &&
                 std::string_view("=+-@\t\r").find(cell[1]) != std::string::npos
             ? cell.substr(1)
             : cell;
}

class Reader {
 public:
  Reader(const std::string& file, const std::string& name, const CurveFileOptions& options,
         CurveFileNotes* notes)
      : file_(file), name_(name), options_(options), notes_(*notes) {}

  Result<CurveSet> Read(std::string_view text) {
    CsvReader rows(text);
    std::vector<std::string> cells;
    while (true) {
      const Result<bool> more = rows.Next(&cells);
      if (!more.ok()) {
        AddFault(StrCat(file_, ":", more.status().message()));
        break;
      }
      if (!*more) break;
      if (header_.empty()) {
        if (const Status status = ReadHeader(rows.line(), cells); !status.ok()) return status;
      } else {
        ReadRow(rows.line(), cells);
      }
    }
    if (header_.empty()) return InvalidArgument(StrCat(file_, ": there is no heading line"));
    CurveSet set = Take();
    if (fault_count_ > 0) return InvalidArgument(Faults());
    if (set.curves.empty()) return InvalidArgument(StrCat(file_, ": there is no value"));
    return set;
  }

 private:
  struct Point {
    uint64_t step = 0;
    double value = 0;
    uint64_t line = 0;
  };
  using Key = std::tuple<std::string, uint64_t, std::string>;  // run, seed, metric

  void AddFault(std::string fault) {
    if (++fault_count_ <= kFaultsShown) faults_.push_back(std::move(fault));
  }

  std::string Faults() const {
    std::string text = StrJoin(faults_, "\n");
    if (fault_count_ > kFaultsShown) {
      text += StrCat("\nand ", fault_count_ - kFaultsShown, " more faults");
    }
    return text;
  }

  void AddCellFault(uint64_t line, size_t column, const std::string& cell, const char* wanted) {
    AddFault(StrCat(file_, ":", line, ": column ", column + 1, " (", header_[column], "): \"",
                    cell.substr(0, 60), "\" is ", wanted));
  }

  Status ReadHeader(uint64_t line, const std::vector<std::string>& cells) {
    const std::string place = StrCat(file_, ":", line, ": ");
    std::set<std::string> seen;
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string name = Unguarded(std::string(StripWhitespace(cells[i])));
      if (!IsValidUtf8(name)) {
        return InvalidArgument(StrCat(place, "heading ", i + 1, " is not valid UTF-8"));
      }
      if (name.empty()) return InvalidArgument(StrCat(place, "heading ", i + 1, " is empty"));
      if (!seen.insert(name).second) {
        return InvalidArgument(StrCat(place, "two columns are called ", name));
      }
      header_.push_back(name);
    }
    for (size_t i = 0; i < header_.size(); ++i) {
      const std::string lower = Lower(header_[i]);
      const std::pair<std::string_view, std::optional<size_t>*> known[] = {
          {"run", &run_},       {"seed", &seed_},   {"step", &step_}, {"metric", &metric_},
          {"series", &metric_}, {"value", &value_}, {"i0", &element_}};
      for (const auto& [word, column] : known) {
        if (lower == word && !column->has_value()) *column = i;
      }
    }
    if (!step_) {
      return InvalidArgument(
          StrCat(place, "there is no column step; columns are ", StrJoin(header_, ", ")));
    }
    if (metric_ && !value_) {
      return InvalidArgument(
          StrCat(place, "there is a column ", header_[*metric_], " but no column value"));
    }
    is_long_ = metric_.has_value();
    return ChooseColumns(place);
  }

  Status ChooseColumns(const std::string& place) {
    for (size_t i = 0; i < header_.size(); ++i) {
      if (i == *step_ || i == run_ || i == seed_) continue;
      if (is_long_) {
        const bool is_used = i == *metric_ || i == *value_ || i == element_;
        if (!is_used) notes_.ignored_columns.push_back(header_[i]);
      } else if (IsWanted(header_[i])) {
        wide_.push_back(i);
      } else {
        notes_.ignored_columns.push_back(header_[i]);
      }
    }
    if (is_long_) return OkStatus();
    for (const std::string& metric : options_.metrics) {
      if (std::ranges::find(header_, metric) == header_.end()) {
        return InvalidArgument(
            StrCat(place, "there is no column ", metric, "; columns are ", StrJoin(header_, ", ")));
      }
    }
    if (wide_.empty()) return InvalidArgument(place + "there is no column with a metric");
    return OkStatus();
  }

  bool IsWanted(const std::string& metric) const {
    return options_.metrics.empty() ||
           std::ranges::find(options_.metrics, metric) != options_.metrics.end();
  }

  std::string Renamed(const std::string& metric) const {
    const auto found = options_.renames.find(metric);
    return found == options_.renames.end() ? metric : found->second;
  }

  void ReadRow(uint64_t line, const std::vector<std::string>& cells) {
    if (cells.size() != header_.size()) {
      AddFault(
          StrCat(file_, ":", line, ": ", cells.size(), " cells; the heading has ", header_.size()));
      return;
    }
    if (is_long_ && element_ && !cells[*element_].empty()) {
      ++notes_.vector_rows;
      return;
    }
    const auto text = [&](size_t i) { return std::string(StripWhitespace(cells[i])); };
    const auto step = ParseWhole(text(*step_));
    if (!step) {
      AddCellFault(line, *step_, cells[*step_], "not a step (a whole number from 0)");
      return;
    }
    uint64_t seed = 0;
    if (seed_ && !text(*seed_).empty()) {
      const auto parsed = ParseWhole(text(*seed_));
      if (!parsed) {
        AddCellFault(line, *seed_, cells[*seed_], "not a seed (a whole number from 0)");
        return;
      }
      seed = *parsed;
    }
    const std::string run = run_ && !text(*run_).empty() ? Unguarded(text(*run_)) : name_;
    if (is_long_) {
      const std::string metric = Unguarded(text(*metric_));
      if (metric.empty()) {
        AddCellFault(line, *metric_, cells[*metric_], "no name of a metric");
      } else if (IsWanted(metric)) {
        AddValue(line, *value_, text(*value_), {run, seed, Renamed(metric)}, *step);
      }
      return;
    }
    for (const size_t column : wide_) {
      const std::string value = text(column);
      if (value.empty()) continue;
      AddValue(line, column, value, {run, seed, Renamed(header_[column])}, *step);
    }
  }

  void AddValue(uint64_t line, size_t column, const std::string& text, const Key& key,
                uint64_t step) {
    const auto value = ParseDouble(text);
    if (!value) {
      AddCellFault(line, column, text, "not a number");
      return;
    }
    if (!IsValidUtf8(std::get<0>(key)) || !IsValidUtf8(std::get<2>(key))) {
      AddFault(StrCat(file_, ":", line, ": the name of the run or metric is not valid UTF-8"));
      return;
    }
    points_[key].push_back({.step = step, .value = *value, .line = line});
  }

  CurveSet Take() {
    CurveSet set{.name = name_, .curves = {}};
    for (auto& [key, points] : points_) {
      std::ranges::stable_sort(points, {}, &Point::step);
      ImportedCurve& curve = set.curves.emplace_back();
      std::tie(curve.run, curve.seed, curve.metric) = key;
      for (size_t i = 0; i < points.size(); ++i) {
        if (i > 0 && points[i].step == points[i - 1].step) {
          AddFault(StrCat(file_, ":", points[i].line, ": run ", curve.run, ", metric ",
                          curve.metric, " has step ", points[i].step, " on line ",
                          points[i - 1].line, " already"));
        }
        curve.points.emplace_back(points[i].step, points[i].value);
      }
    }
    return set;
  }

  const std::string& file_;
  const std::string& name_;
  const CurveFileOptions& options_;
  CurveFileNotes& notes_;
  std::vector<std::string> header_;
  std::optional<size_t> run_, seed_, step_, metric_, value_, element_;
  std::vector<size_t> wide_;  // columns that are metrics
  bool is_long_ = false;
  std::map<Key, std::vector<Point>> points_;
  std::vector<std::string> faults_;
  size_t fault_count_ = 0;
};

}  // namespace

std::vector<std::string> CurveSet::Metrics() const {
  std::set<std::string> names;
  for (const ImportedCurve& curve : curves) names.insert(curve.metric);
  return {names.begin(), names.end()};
}

Result<CurveSet> ReadCurveFile(const std::string& file, std::string_view text,
                               const std::string& name, const CurveFileOptions& options,
                               CurveFileNotes* notes) {
  return Reader(file, name, options, notes).Read(text);
}

std::string WriteCurveFile(const CurveSet& set) {
  std::string out = "run,seed,metric,step,value\n";
  for (const ImportedCurve& curve : set.curves) {
    const std::string start =
        StrCat(CsvCell(curve.run), ",", curve.seed, ",", CsvCell(curve.metric), ",");
    for (const auto& [step, value] : curve.points) out += StrCat(start, step, ",", value, "\n");
  }
  return out;
}

}  // namespace switchyard::client
