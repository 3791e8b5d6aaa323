#include "server/api/strategy.h"

#include <algorithm>

#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::api {
namespace {

namespace pb = ::switchyard::v1;

template <typename Message>
void TakeCommon(const Message& message, search::Settings* settings) {
  settings->seed = message.seed();
  settings->per.assign(message.per().begin(), message.per().end());
}

search::Settings SettingsOf(const pb::StrategySpec& spec) {
  search::Settings settings;
  switch (spec.kind_case()) {
    case pb::StrategySpec::kRandom:
      settings.method = search::Method::kRandom;
      settings.cells = spec.random().cells();
      TakeCommon(spec.random(), &settings);
      break;
    case pb::StrategySpec::kSobol:
      settings.method = search::Method::kSobol;
      settings.cells = spec.sobol().cells();
      TakeCommon(spec.sobol(), &settings);
      break;
    case pb::StrategySpec::kTpe:
      settings.method = search::Method::kTpe;
      settings.cells = spec.tpe().cells();
      if (spec.tpe().has_startup()) settings.startup = spec.tpe().startup();
      TakeCommon(spec.tpe(), &settings);
      break;
    case pb::StrategySpec::kAsha:
      settings.method = search::Method::kAsha;
      settings.cells = spec.asha().cells();
      settings.min_steps = spec.asha().min();
      if (spec.asha().has_eta()) settings.eta = spec.asha().eta();
      settings.rule = spec.asha().rule() == pb::ASHA_RULE_PROMOTE ? search::AshaRule::kPromote
                                                                  : search::AshaRule::kStop;
      TakeCommon(spec.asha(), &settings);
      break;
    case pb::StrategySpec::kHyperband:
      settings.method = search::Method::kHyperband;
      settings.min_steps = spec.hyperband().min();
      if (spec.hyperband().has_eta()) settings.eta = spec.hyperband().eta();
      TakeCommon(spec.hyperband(), &settings);
      break;
    case pb::StrategySpec::kPbt:
      settings.method = search::Method::kPbt;
      settings.population = spec.pbt().population();
      settings.every_steps = spec.pbt().every();
      if (spec.pbt().has_quantile()) settings.quantile = spec.pbt().quantile();
      if (spec.pbt().has_perturb()) settings.perturb = spec.pbt().perturb();
      TakeCommon(spec.pbt(), &settings);
      break;
    case pb::StrategySpec::kExternal:
      settings.method = search::Method::kExternal;
      break;
    case pb::StrategySpec::kGrid:
    case pb::StrategySpec::KIND_NOT_SET:
      settings.method = search::Method::kGrid;
      break;
  }
  return settings;
}

std::string ValuesOf(const spec::Dimension& dimension) {
  switch (dimension.kind) {
    case spec::Dimension::Kind::kCategorical:
      return StrJoin(dimension.values, ", ");
    case spec::Dimension::Kind::kNormal:
      return "a number";
    default:
      return StrCat("a number from ", dimension.low, " to ", dimension.high);
  }
}

}  // namespace

search::Space SpaceOf(const std::vector<spec::Dimension>& dimensions) {
  search::Space space;
  for (const spec::Dimension& from : dimensions) {
    search::Dimension& to = space.dimensions.emplace_back();
    to.name = from.name;
    switch (from.kind) {
      case spec::Dimension::Kind::kCategorical:
        to.kind = search::DimensionKind::kCategorical;
        to.choices = from.values.size();
        break;
      case spec::Dimension::Kind::kReal:
        to.kind = search::DimensionKind::kReal;
        break;
      case spec::Dimension::Kind::kInteger:
        to.kind = search::DimensionKind::kInt;
        break;
      case spec::Dimension::Kind::kNormal:
        to.kind = search::DimensionKind::kNormal;
        to.mean = from.low;
        to.sd = from.high;
        break;
    }
    to.low = from.low;
    to.high = from.high;
    to.step = from.step.value_or(0);
    to.is_log = from.is_log;
    if (from.parent >= 0) {
      to.condition =
          search::Dimension::Condition{static_cast<size_t>(from.parent), from.parent_value};
    }
  }
  return space;
}

std::vector<spec::Draw> DrawsOf(const search::Space& space, const search::Point& point) {
  std::vector<spec::Draw> draws;
  for (size_t i = 0; i < point.size(); ++i) {
    if (!point[i].has_value()) continue;
    spec::Draw& draw = draws.emplace_back();
    draw.dimension = i;
    if (space.dimensions[i].kind == search::DimensionKind::kCategorical) {
      draw.value = static_cast<size_t>(*point[i]);
    } else {
      draw.number = *point[i];
    }
  }
  return draws;
}

Result<std::unique_ptr<search::Search>> MakeSearch(const pb::SweepSpec& spec,
                                                   std::shared_ptr<const spec::SweepPlan> plan,
                                                   bool is_maximized) {
  for (const pb::StageSpec& stage : spec.stages()) {
    if (stage.has_needs()) continue;
    return MakeSearch(stage.strategy(), stage.early_stop(), std::move(plan), is_maximized);
  }
  return MakeSearch(spec.strategy(), spec.early_stop(), std::move(plan), is_maximized);
}

Result<std::unique_ptr<search::Search>> MakeSearch(const pb::StrategySpec& strategy,
                                                   const pb::EarlyStopSpec& early_stop,
                                                   std::shared_ptr<const spec::SweepPlan> plan,
                                                   bool is_maximized) {
  search::Settings settings = SettingsOf(strategy);
  settings.is_maximized = is_maximized;
  settings.seeds = plan->seeds();
  if (early_stop.has_median_stop()) settings.grace_steps = early_stop.median_stop().grace();
  std::vector<spec::Fault> faults;
  const spec::PlannedRun example = plan->Example(&faults);
  if (!faults.empty()) return InvalidArgument(spec::ToString(faults));
  settings.steps = example.run->train().steps();
  settings.eval_steps = example.run->eval().every_steps();
  search::Space space = SpaceOf(plan->dimensions());
  // A point that the plan cannot lay counts as one that is not allowed: it is drawn anew.
  search::Predicate allowed = [plan, space](const search::Point& point) {
    const Result<bool> is_allowed = plan->Allows(DrawsOf(space, point));
    return is_allowed.ok() && *is_allowed;
  };
  return search::Search::Make(std::move(settings), std::move(space), std::move(allowed));
}

NamedValues ShowPoint(const std::vector<spec::Dimension>& dimensions, const search::Point& point) {
  NamedValues values;
  for (size_t i = 0; i < point.size(); ++i) {
    if (!point[i].has_value()) continue;
    const bool is_listed = dimensions[i].kind == spec::Dimension::Kind::kCategorical;
    values.emplace_back(
        dimensions[i].name,
        is_listed ? dimensions[i].values[static_cast<size_t>(*point[i])] : FormatDouble(*point[i]));
  }
  return values;
}

Result<search::Point> ParsePoint(const std::vector<spec::Dimension>& dimensions,
                                 const NamedValues& values) {
  search::Point point(dimensions.size());
  for (const auto& [name, text] : values) {
    // Alternatives of one choice may have dimensions of one name: the one that exists is meant.
    const spec::Dimension* wanted = nullptr;
    size_t index = 0;
    for (size_t i = 0; i < dimensions.size(); ++i) {
      const spec::Dimension& d = dimensions[i];
      if (d.name != name) continue;
      wanted = &d;
      index = i;
      if (d.parent < 0) break;
      const auto& parent = point[static_cast<size_t>(d.parent)];
      if (parent.has_value() && *parent == static_cast<double>(d.parent_value)) break;
    }
    if (wanted == nullptr) {
      std::vector<std::string> names;
      for (const spec::Dimension& d : dimensions) names.push_back(d.name);
      const std::string nearest = NearestWord(name, names);
      return InvalidArgument(StrCat("the sweep has no dimension ", EscapeForTerminal(name), "; ",
                                    nearest.empty() ? StrCat("it has ", StrJoin(names, ", "))
                                                    : StrCat("did you mean ", nearest, "?")));
    }
    if (point[index].has_value()) {
      return InvalidArgument(StrCat("dimension ", name, " is given twice"));
    }
    if (wanted->kind == spec::Dimension::Kind::kCategorical) {
      const auto found = std::ranges::find(wanted->values, text);
      if (found != wanted->values.end()) {
        point[index] = static_cast<double>(found - wanted->values.begin());
      }
    } else {
      point[index] = ParseDouble(text);
    }
    if (!point[index].has_value()) {
      return InvalidArgument(StrCat("dimension ", name, ": \"", EscapeForTerminal(text),
                                    "\" is none of its values; wanted: ", ValuesOf(*wanted)));
    }
  }
  SWITCHYARD_RETURN_IF_ERROR(SpaceOf(dimensions).CheckPoint(point));
  return point;
}

}  // namespace switchyard::api
