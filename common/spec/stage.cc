#include "common/spec/stage.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/path.h"
#include "common/spec/series.h"
#include "common/spec/sweep_layout.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

using Columns = std::vector<std::pair<std::string, std::string>>;

std::string ColumnOf(const ParentRun& parent, std::string_view axis) {
  for (const auto& [name, value] : parent.columns) {
    if (name == axis) return value;
  }
  return "";
}

// What `where` says about a parent.
class ParentNames : public ExpressionNames {
 public:
  explicit ParentNames(const ParentRun& parent) : parent_(parent) {}

  ExpressionValue Name(std::string_view name) const override {
    if (name == "seed") return static_cast<double>(parent_.seed);
    if (name == "cell") return static_cast<double>(parent_.cell);
    ExpressionValue value = ReadAt(*parent_.run, name);
    if (value.index() != 0) return value;
    for (const auto& [axis, text] : parent_.columns) {
      if (axis == name) return text;
    }
    return std::monostate{};
  }
  ExpressionValue Series(std::string_view series, SeriesValue value) const override {
    for (const ParentSeries& each : parent_.series) {
      if (each.name == series) return value == SeriesValue::kLast ? each.last : each.best;
    }
    return std::monostate{};
  }

 private:
  const ParentRun& parent_;
};

// Parents that satisfy `where`; false, with a fault, when its types do not fit.
bool Filter(const std::string& where, const std::string& path, std::vector<ParentRun>* parents,
            std::vector<Fault>* faults) {
  if (where.empty()) return true;
  const Result<Expression> expression = Expression::Parse(where);
  std::vector<ParentRun> kept;
  for (ParentRun& parent : *parents) {
    const Result<Truth> truth = expression.ok() ? expression->Test(ParentNames(parent))
                                                : Result<Truth>(expression.status());
    if (!truth.ok()) {
      faults->push_back(
          {"", path, StrCat("'", EscapeForTerminal(where), "': ", truth.status().message())});
      return false;
    }
    if (*truth == Truth::kTrue) kept.push_back(std::move(parent));
  }
  *parents = std::move(kept);
  return true;
}

bool IsMaximized(const pb::SweepSpec& sweep, const pb::StageSpec& stage) {
  const pb::StageSpec* parent = FindStage(sweep, stage.needs().stage());
  const pb::ObjectiveSpec& objective = parent == nullptr ? sweep.objective() : parent->objective();
  if (objective.goal() != pb::GOAL_UNSPECIFIED) return objective.goal() == pb::GOAL_MAXIMIZE;
  return SeriesDirection(objective.metric()) == Direction::kMaximize;
}

// Leaves the runs of the best `top` cells, of each value of `per`. A cell is as good as the mean
// over its seeds, and the worst where one of them has no value.
void KeepTop(const pb::SelectSpec& select, bool is_maximized, std::vector<ParentRun>* parents) {
  struct Cell {
    double sum = 0;
    uint64_t count = 0;
    bool has_all = true;
    std::vector<std::string> group;
  };
  std::map<uint64_t, Cell> cells;
  for (const ParentRun& parent : *parents) {
    Cell& cell = cells[parent.cell];
    if (cell.count == 0) {
      for (const std::string& axis : select.per()) cell.group.push_back(ColumnOf(parent, axis));
    }
    ++cell.count;
    const bool has_value = parent.objective && std::isfinite(*parent.objective);
    cell.has_all &= has_value;
    if (has_value) cell.sum += *parent.objective;
  }
  std::map<std::vector<std::string>, std::vector<std::pair<double, uint64_t>>> groups;
  for (const auto& [number, cell] : cells) {
    const double mean = cell.sum / static_cast<double>(cell.count);
    const double rank =
        cell.has_all ? (is_maximized ? -mean : mean) : std::numeric_limits<double>::infinity();
    groups[cell.group].emplace_back(rank, number);
  }
  std::map<uint64_t, bool> is_kept;
  for (auto& [group, ranked] : groups) {
    std::ranges::sort(ranked);  // the lower number of two that are equal
    for (size_t i = 0; i < ranked.size() && i < select.top(); ++i) is_kept[ranked[i].second] = true;
  }
  std::erase_if(*parents, [&](const ParentRun& parent) { return !is_kept.contains(parent.cell); });
}

struct Input {
  const ParentRun* parent = nullptr;
  const ParentCheckpoint* checkpoint = nullptr;  // null with `from: spec`
};

struct Group {
  std::string key;
  std::vector<Input> inputs;
};

bool TakesMany(pb::RunKind kind) {
  return kind == pb::RUN_KIND_ANALYZE || kind == pb::RUN_KIND_BENCHMARK;
}

class Expander {
 public:
  Expander(const pb::SweepSpec& sweep, const pb::StageSpec& stage, std::vector<Fault>* faults)
      : sweep_(sweep), stage_(stage), faults_(faults) {}

  std::vector<StageGroup> Expand(const std::vector<ParentRun>& parents, uint64_t cells_checked) {
    std::vector<StageGroup> out;
    for (Group& group : GroupsOf(parents)) {
      StageGroup made{.key = group.key};
      for (const Input& input : group.inputs) {
        if (made.parents.empty() || made.parents.back() != input.parent->id) {
          made.parents.push_back(input.parent->id);
        }
      }
      std::vector<Fault> found;
      made.plan = Plan(group, cells_checked, &found);
      for (Fault& fault : found) {
        if (!fault.path.starts_with("stages.")) {
          fault.path = StrCat("stages.", stage_.id(), ".base.", fault.path);
        }
        fault.message += StrCat(" (child of ", group.key, ")");
        faults_->push_back(std::move(fault));
      }
      if (made.plan != nullptr) out.push_back(std::move(made));
    }
    return out;
  }

 private:
  bool IsFromSpec() const { return stage_.from() == pb::STAGE_FROM_SPEC; }

  std::vector<const ParentCheckpoint*> CheckpointsOf(const ParentRun& parent) const {
    std::vector<const ParentCheckpoint*> out;
    if (parent.checkpoints.empty()) return out;
    switch (stage_.from()) {
      case pb::STAGE_FROM_EVERY: {
        // Those that the run was told to keep, and the last.
        const auto& keep = parent.run->train().keep_steps();
        for (const ParentCheckpoint& checkpoint : parent.checkpoints) {
          const bool is_kept = std::ranges::find(keep, checkpoint.step) != keep.end();
          if (is_kept || &checkpoint == &parent.checkpoints.back()) out.push_back(&checkpoint);
        }
        return out;
      }
      case pb::STAGE_FROM_LAST:
        return {&parent.checkpoints.back()};
      default: {
        const auto best = std::ranges::find_if(
            parent.checkpoints, [](const ParentCheckpoint& each) { return each.is_best; });
        return {best == parent.checkpoints.end() ? &parent.checkpoints.back() : &*best};
      }
    }
  }

  std::string KeyOf(const Input& input) const {
    const std::string cell = StrCat("cell=", input.parent->cell);
    if (IsFromSpec()) return cell;
    const std::string run = StrCat(cell, " seed=", input.parent->seed);
    if (!stage_.each().axes().empty()) {
      std::string key;
      for (const std::string& axis : stage_.each().axes()) {
        key += StrCat(key.empty() ? "" : " ", axis, "=", ColumnOf(*input.parent, axis));
      }
      return key;
    }
    switch (stage_.each().kind()) {
      case pb::EACH_KIND_RUN:
        return run;
      case pb::EACH_KIND_CELL:
        return cell;
      case pb::EACH_KIND_ALL:
        return "all";
      default:
        return StrCat(run, " step=", input.checkpoint->step);
    }
  }

  std::vector<Group> GroupsOf(const std::vector<ParentRun>& parents) const {
    std::vector<Group> groups;
    std::map<std::string, size_t> index;
    const auto add = [&](const Input& input) {
      std::string key = KeyOf(input);
      const auto [at, is_new] = index.emplace(key, groups.size());
      if (is_new) groups.push_back({.key = std::move(key)});
      groups[at->second].inputs.push_back(input);
    };
    for (const ParentRun& parent : parents) {
      if (IsFromSpec()) {
        add({.parent = &parent});
        continue;
      }
      const std::vector<const ParentCheckpoint*> checkpoints = CheckpointsOf(parent);
      if (checkpoints.empty()) {
        faults_->push_back({"", StrCat("stages.", stage_.id()),
                            StrCat("run ", parent.id, " has no checkpoint to start from")});
      }
      for (const ParentCheckpoint* checkpoint : checkpoints) {
        add({.parent = &parent, .checkpoint = checkpoint});
      }
    }
    return groups;
  }

  // Columns that all inputs of the group have with one value.
  Columns ColumnsOf(const Group& group) const {
    Columns columns;
    for (const auto& [name, value] : group.inputs.front().parent->columns) {
      const bool is_common = std::ranges::all_of(
          group.inputs, [&](const Input& input) { return ColumnOf(*input.parent, name) == value; });
      if (is_common) columns.emplace_back(name, value);
    }
    if (stage_.from() == pb::STAGE_FROM_EVERY && group.inputs.size() == 1) {
      columns.emplace_back("step", StrCat(group.inputs.front().checkpoint->step));
    }
    return columns;
  }

  // The parents' data, eval and model where they are all the same, and what the child reads.
  pb::RunSpec StartOf(const Group& group) const {
    const pb::RunSpec& first = *group.inputs.front().parent->run;
    const auto is_common = [&](auto part) {
      const std::string encoded = CanonicalEncoding(part(first));
      return std::ranges::all_of(group.inputs, [&](const Input& input) {
        return CanonicalEncoding(part(*input.parent->run)) == encoded;
      });
    };
    pb::RunSpec start;
    if (is_common([](const pb::RunSpec& run) -> const auto& { return run.data(); })) {
      *start.mutable_data() = first.data();
    }
    if (first.has_eval() &&
        is_common([](const pb::RunSpec& run) -> const auto& { return run.eval(); })) {
      *start.mutable_eval() = first.eval();
    }
    if (is_common([](const pb::RunSpec& run) -> const auto& { return run.model(); })) {
      *start.mutable_model() = first.model();
    }
    if (TakesMany(stage_.base().kind())) {
      for (const Input& input : group.inputs) {
        pb::InputSpec* out = start.add_inputs();
        out->set_run(input.parent->id);
        out->set_step(input.checkpoint->step);
        out->set_digest(input.checkpoint->digest);
        out->set_seed(input.parent->seed);
        std::vector<std::string> cell;
        for (const auto& [name, value] : input.parent->columns) cell.push_back(name + "=" + value);
        out->set_cell(StrJoin(cell, ", "));
      }
    } else {
      const Input& input = group.inputs.front();
      start.mutable_init()->set_run(input.parent->id);
      start.mutable_init()->set_step(input.checkpoint->step);
      start.mutable_init()->set_digest(input.checkpoint->digest);
    }
    return start;
  }

  std::unique_ptr<SweepPlan> Plan(const Group& group, uint64_t cells_checked,
                                  std::vector<Fault>* faults) const {
    if (group.inputs.size() > 1 && !IsFromSpec() && !TakesMany(stage_.base().kind())) {
      faults->push_back({"", StrCat("stages.", stage_.id(), ".each"),
                         StrCat("gives ", group.inputs.size(),
                                " checkpoints to one run, which only analyze and benchmark take")});
      return nullptr;
    }
    LayoutSource source{.sweep = &sweep_, .stage = &stage_};
    pb::RunSpec start;
    if (IsFromSpec()) {
      source.origin = group.inputs.front().parent->layout;
      source.origin_point = group.inputs.front().parent->point;
      for (const Input& input : group.inputs) source.parent_seeds.push_back(input.parent->seed);
    } else {
      start = StartOf(group);
      source.start = &start;
      source.parent_columns = ColumnsOf(group);
      source.parent_seeds = {group.inputs.front().parent->seed};
    }
    std::shared_ptr<const SweepLayout> layout = SweepLayout::Make(source, faults);
    if (layout == nullptr) return nullptr;
    return SweepPlan::FromLayout(std::move(layout), faults, cells_checked);
  }

  const pb::SweepSpec& sweep_;
  const pb::StageSpec& stage_;
  std::vector<Fault>* faults_;
};

}  // namespace

const pb::StageSpec* FindStage(const pb::SweepSpec& sweep, std::string_view id) {
  for (const pb::StageSpec& stage : sweep.stages()) {
    if (stage.id() == id) return &stage;
  }
  return nullptr;
}

bool WaitsForWholeStage(const pb::StageSpec& stage) { return stage.select().has_top(); }

std::unique_ptr<SweepPlan> PlanStage(const pb::SweepSpec& sweep, const pb::StageSpec& stage,
                                     std::vector<Fault>* faults, uint64_t cells_checked) {
  std::vector<Fault> found;
  std::unique_ptr<SweepPlan> plan;
  std::shared_ptr<const SweepLayout> layout =
      SweepLayout::Make({.sweep = &sweep, .stage = &stage}, &found);
  if (layout != nullptr) plan = SweepPlan::FromLayout(std::move(layout), &found, cells_checked);
  for (Fault& fault : found) {
    if (!fault.path.starts_with("stages.") && fault.path != "--set") {
      fault.path = StrCat("stages.", stage.id(), ".base.", fault.path);
    }
    faults->push_back(std::move(fault));
  }
  return plan;
}

std::vector<StageGroup> ExpandStage(const pb::SweepSpec& sweep, const pb::StageSpec& stage,
                                    std::vector<ParentRun> parents, ParentStage parent_stage,
                                    std::vector<Fault>* faults, uint64_t cells_checked) {
  if (WaitsForWholeStage(stage) && parent_stage != ParentStage::kDone) return {};
  std::ranges::sort(parents, {}, [](const ParentRun& parent) {
    return std::tuple(parent.cell, parent.seed, parent.id);
  });
  const std::string path = StrCat("stages.", stage.id());
  if (!Filter(stage.needs().where(), path + ".needs.where", &parents, faults)) return {};
  if (!Filter(stage.select().where(), path + ".select.where", &parents, faults)) return {};
  if (stage.select().has_top()) KeepTop(stage.select(), IsMaximized(sweep, stage), &parents);
  return Expander(sweep, stage, faults).Expand(parents, cells_checked);
}

}  // namespace switchyard::spec
