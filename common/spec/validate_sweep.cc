#include <algorithm>
#include <set>

#include "common/base/strings.h"
#include "common/spec/policy.h"
#include "common/spec/series.h"
#include "common/spec/stage.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/validate.h"
#include "common/spec/wire.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr uint64_t kInt64Max = (uint64_t{1} << 63) - 1;  // what the store holds
constexpr std::string_view kNameRule =
    "1 to 64 of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit, without "
    "'..'";

void CheckNames(const pb::SweepSpec& sweep, std::vector<Fault>* faults) {
  const auto check = [&](const char* path, const std::string& name) {
    if (IsValidName(name)) return;
    faults->push_back(
        {"", path, StrCat("'", EscapeForTerminal(name), "' is not a name: ", kNameRule)});
  };
  if (sweep.name().empty()) {
    faults->push_back({"", "name", "is required"});
  } else {
    check("name", sweep.name());
  }
  if (!sweep.project().empty()) check("project", sweep.project());
  std::set<std::string> tags;
  for (const std::string& tag : sweep.tags()) {
    check("tags", tag);
    if (!tags.insert(tag).second) faults->push_back({"", "tags", StrCat(tag, " is given twice")});
  }
  constexpr int kTagsMax = 64;
  if (sweep.tags_size() > kTagsMax) {
    faults->push_back({"", "tags", StrCat("has ", sweep.tags_size(), ", at most ", kTagsMax)});
  }
}

void CheckSeeds(const pb::ReplicatesSpec& replicates, const std::string& prefix,
                std::vector<Fault>* faults) {
  const std::string path = prefix + "replicates.seeds";
  std::set<uint64_t> seeds;
  for (const uint64_t seed : replicates.seeds()) {
    if (seed > kInt64Max) faults->push_back({"", path, StrCat(seed, " is above ", kInt64Max)});
    if (!seeds.insert(seed).second) faults->push_back({"", path, StrCat(seed, " is given twice")});
  }
}

void CheckObjective(const pb::ObjectiveSpec& objective, const std::string& prefix,
                    std::vector<Fault>* faults) {
  const std::string metric = objective.metric().empty() ? "valid/primary" : objective.metric();
  if (!IsSeriesName(metric)) {
    faults->push_back({"", prefix + "objective.metric",
                       StrCat("'", EscapeForTerminal(metric),
                              "' is not a series SPLIT/METRIC with the split train, valid or "
                              "test")});
    return;
  }
  const std::optional<Direction> direction = SeriesDirection(metric);
  if (!direction && objective.goal() == pb::GOAL_UNSPECIFIED) {
    faults->push_back({"", prefix + "objective.goal",
                       StrCat("is required: ", metric,
                              " has no direction of its own; known: minimize, maximize")});
  }
  // The best value of a series is kept by its direction, not by the goal of one of its sweeps:
  // where the two differ, or there is none, "best" would be the other extreme or the last value.
  if (!direction && objective.value() != pb::OBJECTIVE_VALUE_LAST) {
    faults->push_back({"", prefix + "objective.value",
                       StrCat("is to be last: ", metric,
                              " has no direction of its own, so no best value is kept of it")});
  }
  const bool is_maximized = objective.goal() == pb::GOAL_MAXIMIZE;
  if (direction && objective.goal() != pb::GOAL_UNSPECIFIED &&
      is_maximized != (*direction == Direction::kMaximize)) {
    faults->push_back({"", prefix + "objective.goal",
                       StrCat("contradicts ", metric, ", of which the ",
                              is_maximized ? "lower" : "higher", " value is the better one")});
  }
}

// At least one, or a fault.
void CheckCount(bool has, uint64_t value, const std::string& path, uint64_t min, uint64_t max,
                std::vector<Fault>* faults) {
  if (!has) {
    faults->push_back({"", path, "is required"});
  } else if (value < min || value > max) {
    faults->push_back({"", path, StrCat(value, " is not between ", min, " and ", max)});
  }
}

constexpr uint64_t kStepsMax = uint64_t{1} << 40;

class StrategyChecker {
 public:
  StrategyChecker(const pb::StrategySpec& strategy, std::string path, std::vector<Fault>* faults)
      : strategy_(strategy), path_(std::move(path)), faults_(faults) {}

  void Check() {
    switch (strategy_.kind_case()) {
      case pb::StrategySpec::kRandom:
        Cells(strategy_.random(), ".random");
        return Common(strategy_.random(), ".random");
      case pb::StrategySpec::kSobol:
        Cells(strategy_.sobol(), ".sobol");
        return Common(strategy_.sobol(), ".sobol");
      case pb::StrategySpec::kTpe:
        Cells(strategy_.tpe(), ".tpe");
        return Common(strategy_.tpe(), ".tpe");
      case pb::StrategySpec::kAsha: {
        const pb::AshaStrategy& asha = strategy_.asha();
        Cells(asha, ".asha");
        CheckCount(asha.has_min(), asha.min(), path_ + ".asha.min", 1, kStepsMax, faults_);
        Eta(asha.has_eta(), asha.eta(), ".asha.eta");
        return Common(asha, ".asha");
      }
      case pb::StrategySpec::kHyperband: {
        const pb::HyperbandStrategy& hyperband = strategy_.hyperband();
        CheckCount(hyperband.has_min(), hyperband.min(), path_ + ".hyperband.min", 1, kStepsMax,
                   faults_);
        Eta(hyperband.has_eta(), hyperband.eta(), ".hyperband.eta");
        return Common(hyperband, ".hyperband");
      }
      case pb::StrategySpec::kPbt:
        return Pbt();
      case pb::StrategySpec::kGrid:
      case pb::StrategySpec::kExternal:
      case pb::StrategySpec::KIND_NOT_SET:
        return;
    }
  }

 private:
  template <typename Message>
  void Cells(const Message& message, const std::string& name) {
    CheckCount(message.has_cells(), message.cells(), path_ + name + ".cells", 1, kRunCountMax,
               faults_);
  }
  template <typename Message>
  void Common(const Message& message, const std::string& name) {
    std::set<std::string> axes;
    for (const std::string& axis : message.per()) {
      if (!axes.insert(axis).second) {
        faults_->push_back(
            {"", path_ + name + ".per", StrCat(EscapeForTerminal(axis), " is given twice")});
      }
    }
    if (message.seed() > kInt64Max) {
      faults_->push_back(
          {"", path_ + name + ".seed", StrCat(message.seed(), " is above ", kInt64Max)});
    }
  }
  void Eta(bool has, uint32_t eta, const std::string& name) {
    if (has) CheckCount(true, eta, path_ + name, 2, 100, faults_);
  }
  void Pbt() {
    const pb::PbtStrategy& pbt = strategy_.pbt();
    CheckCount(pbt.has_population(), pbt.population(), path_ + ".pbt.population", 2, 100'000,
               faults_);
    CheckCount(pbt.has_every(), pbt.every(), path_ + ".pbt.every", 1, kStepsMax, faults_);
    if (pbt.has_quantile() && !(pbt.quantile() > 0 && pbt.quantile() <= 0.5)) {
      faults_->push_back({"", path_ + ".pbt.quantile",
                          StrCat(FormatDouble(pbt.quantile()), " is not above 0 and at most 0.5")});
    }
    if (pbt.has_perturb() && !(pbt.perturb() > 1)) {
      faults_->push_back(
          {"", path_ + ".pbt.perturb", StrCat(FormatDouble(pbt.perturb()), " must be above 1")});
    }
    Common(pbt, ".pbt");
  }

  const pb::StrategySpec& strategy_;
  std::string path_;
  std::vector<Fault>* faults_;
};

void CheckEarlyStop(const pb::EarlyStopSpec& early_stop, const pb::StrategySpec& strategy,
                    const std::string& prefix, std::vector<Fault>* faults) {
  if (early_stop.kind_case() == pb::EarlyStopSpec::KIND_NOT_SET) {
    faults->push_back({"", prefix + "early_stop", "is empty; known: median_stop"});
    return;
  }
  CheckCount(early_stop.median_stop().has_grace(), early_stop.median_stop().grace(),
             prefix + "early_stop.median_stop.grace", 1, kStepsMax, faults);
  if (!strategy.has_random() && !strategy.has_sobol() && !strategy.has_tpe()) {
    faults->push_back(
        {"", prefix + "early_stop", "goes with the strategies random, sobol and tpe only"});
  }
}

void CheckBudget(const pb::BudgetSpec& budget, std::vector<Fault>* faults) {
  const auto positive = [&](const char* path, bool has, double value) {
    if (has && !(value > 0)) faults->push_back({"", path, "must be above 0"});
  };
  positive("budget.slot_hours", budget.has_slot_hours(), budget.slot_hours());
  positive("budget.runs", budget.has_runs(), static_cast<double>(budget.runs()));
  positive("budget.tokens", budget.has_tokens(), static_cast<double>(budget.tokens()));
  positive("budget.active_flops", budget.has_active_flops(), budget.active_flops());
}

void CheckPolicy(const pb::PolicySpec& policy, const std::string& prefix,
                 std::vector<Fault>* faults) {
  for (Fault& fault : ValidatePolicy(policy)) {
    fault.path = prefix + fault.path;
    faults->push_back(std::move(fault));
  }
}

// What a sweep without stages and a stage have alike.
template <typename Message>
void CheckPart(const Message& part, const std::string& prefix, std::vector<Fault>* faults) {
  CheckSeeds(part.replicates(), prefix, faults);
  CheckObjective(part.objective(), prefix, faults);
  StrategyChecker(part.strategy(), prefix + "strategy", faults).Check();
  if (part.has_early_stop()) {
    CheckEarlyStop(part.early_stop(), part.strategy(), prefix, faults);
  }
  CheckPolicy(part.policy(), prefix, faults);
}

// With stages these belong into them.
void CheckNoPart(const pb::SweepSpec& sweep, std::vector<Fault>* faults) {
  const auto refuse = [&](bool has, const char* path) {
    if (has) faults->push_back({"", path, "belongs into a stage when there are stages"});
  };
  refuse(sweep.has_space(), "space");
  refuse(sweep.has_replicates(), "replicates");
  refuse(sweep.has_objective(), "objective");
  refuse(sweep.has_strategy(), "strategy");
  refuse(sweep.has_early_stop(), "early_stop");
}

}  // namespace

bool IsSeriesName(std::string_view name) {
  const size_t slash = name.find('/');
  const std::string_view split = name.substr(0, slash);
  return slash != std::string_view::npos && slash + 1 < name.size() && name.size() <= 200 &&
         (split == "train" || split == "valid" || split == "test") &&
         std::ranges::all_of(name, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '/' ||
                  c == '.' || c == '-';
         });
}

void CheckSweepFields(const pb::SweepSpec& sweep, std::vector<Fault>* faults) {
  CheckWire(sweep, faults);
  CheckNames(sweep, faults);
  constexpr size_t kNotesMax = 64 << 10;
  if (sweep.notes().size() > kNotesMax) {
    faults->push_back(
        {"", "notes", StrCat("has ", sweep.notes().size(), " bytes, at most ", kNotesMax)});
  }
  CheckBudget(sweep.budget(), faults);
  if (sweep.stages().empty()) {
    CheckPart(sweep, "", faults);
  } else {
    CheckNoPart(sweep, faults);
    CheckPolicy(sweep.policy(), "", faults);
    for (const pb::StageSpec& stage : sweep.stages()) {
      CheckPart(stage, StrCat("stages.", EscapeForTerminal(stage.id()), "."), faults);
    }
  }
  for (const pb::SetEntry& set : sweep.sets()) {
    if (!set.stage().empty() && FindStage(sweep, set.stage()) == nullptr) {
      faults->push_back(
          {"", "--set",
           StrCat("'", EscapeForTerminal(set.stage()), "' is not a stage of this sweep")});
    }
  }
}

std::vector<Fault> ValidateSweep(const pb::SweepSpec& sweep) {
  std::vector<Fault> faults;
  CheckSweepFields(sweep, &faults);
  if (sweep.stages().empty()) {
    SweepLayout::Make({.sweep = &sweep}, &faults);
  } else {
    for (const pb::StageSpec& stage : sweep.stages()) {
      if (!stage.has_needs()) SweepLayout::Make({.sweep = &sweep, .stage = &stage}, &faults);
    }
  }
  return faults;
}

}  // namespace switchyard::spec
