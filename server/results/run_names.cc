#include "server/results/run_names.h"

#include <algorithm>
#include <array>

#include "common/base/strings.h"
#include "common/spec/path.h"
#include "common/spec/quantity.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using spec::ExpressionValue;

constexpr std::array<std::string_view, 10> kRunNames = {
    "number", "cell",     "seed", "state",       "end_class",
    "router", "attempts", "step", "steps_total", "active_seconds"};

ExpressionValue OfRun(const store::RunFacts& run, std::string_view name) {
  if (name == "number") return static_cast<double>(run.number);
  if (name == "cell") return static_cast<double>(run.cell);
  if (name == "seed") return static_cast<double>(run.seed);
  if (name == "state") return std::string(scheduler::Name(run.state));
  if (name == "end_class") {
    if (run.end_class == scheduler::EndClass::kNone) return std::monostate{};
    return std::string(scheduler::Name(run.end_class));
  }
  if (name == "router") return run.router;
  if (name == "attempts") return static_cast<double>(run.attempts);
  if (name == "step") return static_cast<double>(run.step);
  if (name == "steps_total") return static_cast<double>(run.steps_total);
  return static_cast<double>(run.active_ms) / 1000;
}

// A column as the expression language sees it: names of choices and zips stay text.
ExpressionValue OfColumn(const std::string& text, bool is_field) {
  if (!is_field) return text;
  if (const std::optional<double> number = ParseDouble(text)) return *number;
  if (text == "true" || text == "false") return text == "true";
  return text;
}

}  // namespace

const double* PickValue(const store::RunFacts::Value& value, Pick pick) {
  if (!value.is_present) return nullptr;
  return pick == Pick::kBest && value.has_best ? &value.best : &value.last;
}

RunNames::RunNames(const store::SweepInfo& sweep, Pick pick)
    : sweep_(sweep.row.id), axes_(sweep.row.axes), pick_(pick) {}

Status RunNames::Use(const spec::Expression& expression) {
  for (const spec::Expression::NameUse& use : expression.names()) {
    if (use.is_series) {
      UseSeries(use.name);
      continue;
    }
    if (const Status status = UseName(use.name); !status.ok()) {
      return InvalidArgument(StrCat("column ", use.column, ": ", status.message()));
    }
  }
  return OkStatus();
}

Status RunNames::UseName(const std::string& name) {
  if (IsAxis(name) || std::ranges::find(kRunNames, name) != kRunNames.end()) return OkStatus();
  std::vector<std::string> known = axes_;
  known.insert(known.end(), kRunNames.begin(), kRunNames.end());
  if (const std::string hint = spec::UnknownPathHint(name, known); !hint.empty()) {
    return InvalidArgument(StrCat("'", EscapeForTerminal(name),
                                  "' is neither an axis, a field nor a property of runs; ", hint));
  }
  paths_.insert(name);
  return OkStatus();
}

void RunNames::UseSeries(const std::string& series) {
  if (std::ranges::find(series_, series) == series_.end()) series_.push_back(series);
}

Status RunNames::Load(store::ReadStore& store) {
  if (paths_.empty()) return OkStatus();
  // The runs of a cell differ by their seed only.
  std::map<uint64_t, RunId> cells;
  SWITCHYARD_RETURN_IF_ERROR(store.ScanRuns({.sweep = sweep_}, [&](const store::RunFacts& run) {
    cells.emplace(run.cell, run.run);
    return true;
  }));
  for (const auto& [cell, run] : cells) {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document, store.GetRunDocument(run));
    pb::RunSpec spec;
    if (!spec.ParseFromString(document.spec)) {
      return DataLoss(StrCat("the document of run ", run.value.ToString(), " cannot be read"));
    }
    std::vector<ExpressionValue>& values = documents_[cell];
    for (const std::string& path : paths_) {
      const std::optional<double> quantity = spec::QuantityOf(spec, path);
      values.push_back(quantity ? ExpressionValue(*quantity) : spec::ReadAt(spec, path));
    }
  }
  return OkStatus();
}

bool RunNames::IsAxis(std::string_view name) const {
  return std::ranges::find(axes_, name) != axes_.end();
}

const std::string* RunNames::FindColumn(std::string_view name) const {
  for (const auto& [axis, value] : *run_->columns) {
    if (axis == name) return &value;
  }
  return nullptr;
}

ExpressionValue RunNames::Name(std::string_view name) const {
  if (IsAxis(name)) {
    const std::string* column = FindColumn(name);
    if (column == nullptr) return std::monostate{};
    const bool is_field =
        name.find('.') != std::string_view::npos || spec::UnknownPathHint(name, {}).empty();
    return OfColumn(*column, is_field);
  }
  if (const auto path = paths_.find(name); path != paths_.end()) {
    const auto document = documents_.find(run_->cell);
    if (document == documents_.end()) return std::monostate{};
    return document->second[static_cast<size_t>(std::distance(paths_.begin(), path))];
  }
  return OfRun(*run_, name);
}

const double* RunNames::Value(std::string_view series, Pick pick) const {
  const auto at = std::ranges::find(series_, series);
  if (at == series_.end()) return nullptr;
  return PickValue(run_->values[static_cast<size_t>(at - series_.begin())], pick);
}

ExpressionValue RunNames::Series(std::string_view series, spec::SeriesValue value) const {
  const Pick pick = value == spec::SeriesValue::kPlain  ? pick_
                    : value == spec::SeriesValue::kBest ? Pick::kBest
                                                        : Pick::kLast;
  const double* number = Value(series, pick);
  if (number == nullptr) return std::monostate{};
  return *number;
}

std::string RunNames::Text(std::string_view name) const {
  if (IsAxis(name)) {
    const std::string* column = FindColumn(name);
    return column == nullptr ? std::string() : *column;
  }
  const ExpressionValue value = Name(name);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return FormatDouble(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return {};
}

}  // namespace switchyard::results
