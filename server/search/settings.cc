#include <algorithm>

#include "common/base/strings.h"
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

constexpr uint64_t kCellsMax = 1'000'000;
constexpr uint64_t kArmsMax = 10'000;

Status Wrong(std::string_view field, uint64_t value, std::string_view wanted) {
  return InvalidArgument(StrCat(field, " is ", value, "; wanted: ", wanted));
}

Status CheckSpace(const Settings& settings, const Space& space) {
  uint64_t arms = 1;
  for (const std::string& name : settings.per) {
    const auto found = std::ranges::find(space.dimensions, name, &Dimension::name);
    if (found == space.dimensions.end() || found->kind != DimensionKind::kCategorical ||
        found->condition.has_value()) {
      return InvalidArgument(StrCat("per names ", name,
                                    "; wanted: an axis with a list of values, one that every cell "
                                    "has"));
    }
    if (std::ranges::count(settings.per, name) > 1) {
      return InvalidArgument(StrCat("per names ", name, " twice"));
    }
    arms *= found->choices;
    if (arms > kArmsMax) {
      return InvalidArgument(StrCat("per makes more than ", kArmsMax, " arms"));
    }
  }
  if (settings.method == Method::kGrid) {
    for (const Dimension& dimension : space.dimensions) {
      if (ValueCount(dimension) == 0) {
        return InvalidArgument(StrCat("dimension ", dimension.name,
                                      " has no end of values; strategy grid wants lists, ints or "
                                      "a step"));
      }
    }
  }
  return OkStatus();
}

Status CheckRungs(const Settings& settings) {
  if (settings.eta < 2 || settings.eta > 1000) return Wrong("eta", settings.eta, "2 to 1000");
  if (settings.min_steps == 0) return Wrong("min", 0, "a number of steps above 0");
  if (settings.eval_steps == 0) {
    return InvalidArgument(
        "eval.every_steps is 0 (one evaluation, at the end); rungs want evaluations on the way");
  }
  if (RungSteps(settings).empty()) {
    return InvalidArgument(StrCat("min is ", settings.min_steps, "; no evaluation (every ",
                                  settings.eval_steps, " steps) lies between it and the run's end ",
                                  settings.steps));
  }
  return OkStatus();
}

}  // namespace

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kGrid:
      return "grid";
    case Method::kRandom:
      return "random";
    case Method::kSobol:
      return "sobol";
    case Method::kTpe:
      return "tpe";
    case Method::kAsha:
      return "asha";
    case Method::kHyperband:
      return "hyperband";
    case Method::kPbt:
      return "pbt";
    case Method::kExternal:
      return "external";
  }
  return "unknown";
}

uint64_t EvaluationAt(uint64_t step, const Settings& settings) {
  const uint64_t every = settings.eval_steps;
  if (every == 0 || every >= settings.steps || step >= settings.steps) return settings.steps;
  return std::min(settings.steps, (step + every - 1) / every * every);
}

std::vector<uint64_t> RungSteps(const Settings& settings) {
  std::vector<uint64_t> rungs;
  for (uint64_t step = settings.min_steps; step < settings.steps;) {
    const uint64_t moved = EvaluationAt(step, settings);
    if (moved < settings.steps && (rungs.empty() || moved > rungs.back())) rungs.push_back(moved);
    if (step > settings.steps / settings.eta) break;
    step *= settings.eta;
  }
  return rungs;
}

Status CheckSettings(const Settings& settings, const Space& space) {
  SWITCHYARD_RETURN_IF_ERROR(CheckSpace(settings, space));
  if (settings.seeds.empty()) return InvalidArgument("a strategy needs at least one seed");
  if (settings.grace_steps.has_value()) {
    if (settings.method != Method::kRandom && settings.method != Method::kSobol &&
        settings.method != Method::kTpe) {
      return InvalidArgument(StrCat("early_stop with strategy ", MethodName(settings.method),
                                    "; median_stop goes with random, sobol and tpe"));
    }
    if (settings.eval_steps == 0) {
      return InvalidArgument(
          "eval.every_steps is 0 (one evaluation, at the end); median_stop wants "
          "evaluations on the way");
    }
  }
  switch (settings.method) {
    case Method::kTpe:
      if (settings.startup == 0) return Wrong("startup", 0, "at least 1");
      [[fallthrough]];
    case Method::kRandom:
    case Method::kSobol:
    case Method::kAsha:
      if (settings.cells == 0 || settings.cells > kCellsMax) {
        return Wrong("cells", settings.cells, StrCat("1 to ", kCellsMax));
      }
      return settings.method == Method::kAsha ? CheckRungs(settings) : OkStatus();
    case Method::kHyperband:
      return CheckRungs(settings);
    case Method::kPbt:
      if (settings.population < 2 || settings.population > 10'000) {
        return Wrong("population", settings.population, "2 to 10000");
      }
      if (!(settings.quantile > 0 && settings.quantile <= 0.5)) {
        return InvalidArgument(
            StrCat("quantile is ", settings.quantile, "; wanted: above 0, at most 0.5"));
      }
      if (!(settings.perturb > 1 && settings.perturb <= 1000)) {
        return InvalidArgument(
            StrCat("perturb is ", settings.perturb, "; wanted: a factor above 1"));
      }
      if (settings.every_steps == 0) return Wrong("every", 0, "a number of steps above 0");
      if (settings.eval_steps == 0 ||
          EvaluationAt(settings.every_steps, settings) >= settings.steps) {
        return InvalidArgument(StrCat(
            "every is ", settings.every_steps, "; no evaluation (every ", settings.eval_steps,
            " steps) lies between it and the run's end ", settings.steps));
      }
      return OkStatus();
    case Method::kGrid:
    case Method::kExternal:
      return OkStatus();
  }
  return OkStatus();
}

}  // namespace switchyard::search
