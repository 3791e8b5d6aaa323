#include "server/results/run_names.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_set>

#include "common/base/strings.h"
#include "common/spec/path.h"
#include "common/spec/quantity.h"
#include "server/store/store.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::results {
namespace {

namespace pb = ::switchyard::v1;
using spec::ExpressionValue;

// In the order of RunNames::Property.
constexpr std::array<std::string_view, 10> kRunNames = {
    "number", "cell",     "seed", "state",       "end_class",
    "router", "attempts", "step", "steps_total", "active_seconds"};

// What each of them is read from, besides the link.
constexpr std::array<uint32_t, 10> kFactsOf = {0,
                                               0,
                                               store::kFactSeed,
                                               0,
                                               store::kFactEndClass,
                                               store::kFactRouter,
                                               store::kFactAttempts,
                                               store::kFactStep,
                                               store::kFactStepsTotal,
                                               store::kFactActiveMs};

// Distinct columns whose values are kept.
constexpr size_t kKnownColumnsMax = 100'000;
// Documents are found for so many cells in one call of the store.
constexpr size_t kRunsAtOnce = 1000;

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
    : sweep_(sweep.row.id),
      cells_(sweep.row.is_drawn || sweep.row.cells == 0 ? SIZE_MAX : sweep.row.cells),
      axes_(sweep.row.axes),
      pick_(pick) {
  for (const std::string& axis : axes_) {
    // Names of choices and zips are no fields.
    are_fields_.push_back(axis.find('.') != std::string::npos ||
                          spec::UnknownPathHint(axis, {}).empty());
  }
}

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
  if (FindSource(name) != nullptr) return OkStatus();
  if (const auto axis = std::ranges::find(axes_, name); axis != axes_.end()) {
    sources_.push_back({.name = name,
                        .kind = Source::Kind::kAxis,
                        .index = static_cast<size_t>(axis - axes_.begin())});
    return OkStatus();
  }
  if (const auto at = std::ranges::find(kRunNames, name); at != kRunNames.end()) {
    const auto index = static_cast<size_t>(at - kRunNames.begin());
    sources_.push_back({.name = name, .kind = Source::Kind::kProperty, .index = index});
    run_facts_ |= kFactsOf[index];
    return OkStatus();
  }
  std::vector<std::string> known = axes_;
  known.insert(known.end(), kRunNames.begin(), kRunNames.end());
  if (const std::string hint = spec::UnknownPathHint(name, known); !hint.empty()) {
    return InvalidArgument(StrCat("'", EscapeForTerminal(name),
                                  "' is neither an axis, a field nor a property of runs; ", hint));
  }
  sources_.push_back({.name = name, .kind = Source::Kind::kDocument, .index = paths_.size()});
  paths_.push_back(name);
  return OkStatus();
}

void RunNames::UseSeries(const std::string& series) {
  if (std::ranges::find(series_, series) == series_.end()) series_.push_back(series);
}

Status RunNames::Load(store::ReadStore& store) {
  if (paths_.empty()) return OkStatus();
  return ReadDocuments(store, 0, cells_);
}

Status RunNames::LoadMore(store::ReadStore& store, uint64_t after) {
  return ReadDocuments(store, after, SIZE_MAX);
}

Status RunNames::ReadDocuments(store::ReadStore& store, uint64_t after, size_t cells) {
  // The runs of a cell differ by their seed only.
  std::unordered_set<uint64_t> found;
  std::vector<uint64_t> numbers;
  SWITCHYARD_RETURN_IF_ERROR(store.ScanRuns(
      {.sweep = sweep_, .after = after, .run_facts = 0}, [&](const store::RunFacts& run) {
        if (!documents_->contains(run.cell) && found.insert(run.cell).second) {
          numbers.push_back(run.number);
        }
        return documents_->size() + found.size() < cells;
      }));
  for (size_t from = 0; from < numbers.size(); from += kRunsAtOnce) {
    const size_t count = std::min(kRunsAtOnce, numbers.size() - from);
    SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<store::RunInfo> runs,
                                store.GetRuns(sweep_, std::span(numbers).subspan(from, count), {}));
    for (const store::RunInfo& run : runs) {
      SWITCHYARD_RETURN_IF_ERROR(ReadDocument(store, run.link.cell, run.row.id));
    }
  }
  return OkStatus();
}

Status RunNames::ReadDocument(store::ReadStore& store, uint64_t cell, RunId run) {
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document, store.GetRunDocument(run));
  pb::RunSpec spec;
  if (!spec.ParseFromString(document.spec)) {
    return DataLoss(StrCat("the document of run ", run.value.ToString(), " cannot be read"));
  }
  std::vector<ExpressionValue>& values = (*documents_)[cell];
  for (const std::string& path : paths_) {
    const std::optional<double> quantity = spec::QuantityOf(spec, path);
    values.push_back(quantity ? ExpressionValue(*quantity) : spec::ReadAt(spec, path));
  }
  return OkStatus();
}

RunNames RunNames::Fork() const {
  RunNames fork(*this);
  fork.known_columns_.clear();
  fork.columns_ = nullptr;
  fork.document_ = nullptr;
  fork.run_ = nullptr;
  return fork;
}

bool RunNames::IsAxis(std::string_view name) const {
  return std::ranges::find(axes_, name) != axes_.end();
}

bool RunNames::IsOfCell(std::string_view name) const {
  const Source* source = FindSource(name);
  return source != nullptr && (source->kind != Source::Kind::kProperty ||
                               static_cast<Property>(source->index) == Property::kCell);
}

const RunNames::Source* RunNames::FindSource(std::string_view name) const {
  const auto at = std::ranges::find(sources_, name, &Source::name);
  return at == sources_.end() ? nullptr : &*at;
}

RunNames::AxisValues RunNames::ReadColumns(
    const std::shared_ptr<const store::Columns>& columns) const {
  AxisValues read{.columns = columns, .texts = {}, .values = {}};
  for (size_t i = 0; i < axes_.size(); ++i) {
    const auto at = std::ranges::find(*columns, axes_[i], &store::Columns::value_type::first);
    const bool is_there = at != columns->end();
    read.texts.push_back(is_there ? &at->second : nullptr);
    read.values.push_back(is_there ? OfColumn(at->second, are_fields_[i]) : std::monostate{});
  }
  return read;
}

bool RunNames::SetRun(const store::RunFacts& run) {
  run_ = &run;
  if (!paths_.empty()) {
    const auto document = documents_->find(run.cell);
    if (document == documents_->end()) return false;
    document_ = &document->second;
  }
  const store::Columns* columns = run.columns.get();
  if (columns_ != nullptr && columns_->columns.get() == columns) return true;
  auto known = known_columns_.find(columns);
  if (known == known_columns_.end()) {
    if (known_columns_.size() >= kKnownColumnsMax) {
      other_columns_ = ReadColumns(run.columns);
      columns_ = &other_columns_;
      return true;
    }
    // Holding the columns, no other ones can come to lie at their address.
    known = known_columns_.emplace(columns, ReadColumns(run.columns)).first;
  }
  columns_ = &known->second;
  return true;
}

ExpressionValue RunNames::OfRun(Property property) const {
  const store::RunFacts& run = *run_;
  switch (property) {
    case Property::kNumber:
      return static_cast<double>(run.number);
    case Property::kCell:
      return static_cast<double>(run.cell);
    case Property::kSeed:
      return static_cast<double>(run.seed);
    case Property::kState:
      return std::string(scheduler::Name(run.state));
    case Property::kEndClass:
      if (run.end_class == scheduler::EndClass::kNone) return std::monostate{};
      return std::string(scheduler::Name(run.end_class));
    case Property::kRouter:
      return run.router;
    case Property::kAttempts:
      return static_cast<double>(run.attempts);
    case Property::kStep:
      return static_cast<double>(run.step);
    case Property::kStepsTotal:
      return static_cast<double>(run.steps_total);
    case Property::kActiveSeconds:
      return static_cast<double>(run.active_ms) / 1000;
  }
  return std::monostate{};
}

ExpressionValue RunNames::Name(std::string_view name) const {
  const Source* source = FindSource(name);
  if (source == nullptr) return std::monostate{};
  switch (source->kind) {
    case Source::Kind::kAxis:
      return columns_->values[source->index];
    case Source::Kind::kProperty:
      return OfRun(static_cast<Property>(source->index));
    case Source::Kind::kDocument:
      break;
  }
  return (*document_)[source->index];
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
  if (const Source* source = FindSource(name);
      source != nullptr && source->kind == Source::Kind::kAxis) {
    const std::string* text = columns_->texts[source->index];
    return text == nullptr ? std::string() : *text;
  }
  const ExpressionValue value = Name(name);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  if (const auto* number = std::get_if<double>(&value)) return FormatDouble(*number);
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  return {};
}

}  // namespace switchyard::results
