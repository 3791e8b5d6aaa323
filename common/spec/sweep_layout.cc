#include "common/spec/sweep_layout.h"

#include <algorithm>
#include <map>
#include <set>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include "common/base/check.h"
#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/checker.h"
#include "common/spec/lay.h"
#include "common/spec/match.h"
#include "common/spec/path.h"
#include "common/spec/presets.h"
#include "common/spec/written.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

constexpr size_t kSetPathBytesMax = 512;

Fault Plain(std::string path, std::string message) {
  return {"", std::move(path), std::move(message)};
}

bool LoadNamedPreset(const std::string& name, const std::string& path, pb::RunSpec* out,
                     std::vector<Fault>* faults) {
  if (name.empty() || LoadPreset(name, out)) return true;
  const std::vector<std::string> known = PresetNames();
  faults->push_back(Plain(
      path, StrCat("'", EscapeForTerminal(name), "' is not a preset; ", WordHint(name, known))));
  return false;
}

// In which order values are laid: kinds first, then wholes before parts.
std::pair<bool, int64_t> Rank(std::string_view path) {
  return {!path.ends_with(".kind"), std::count(path.begin(), path.end(), '.')};
}

std::pair<bool, int64_t> RankOf(const Axis& axis) {
  Space alone;
  alone.axes.push_back(axis);
  std::pair<bool, int64_t> lowest{true, INT64_MAX};
  for (const std::string& path : PathsOf(alone)) lowest = std::min(lowest, Rank(path));
  return lowest;
}

Node NumberNode(const Axis& axis, double number) {
  Node node;
  node.scalar = axis.kind == AxisKind::kInt ? std::to_string(static_cast<int64_t>(number))
                                            : FormatDouble(number);
  node.line = axis.line;
  node.column = axis.column;
  return node;
}

google::protobuf::Message* Target(bool is_policy, pb::RunSpec* run, pb::PolicySpec* policy) {
  if (is_policy) return policy;
  return run;
}

const Node* EntryValue(const Node* node, std::string_view key) {
  if (node == nullptr) return nullptr;
  for (const Node::Entry& entry : node->entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

}  // namespace

SweepLayout::SweepLayout()
    : base_(std::make_unique<pb::RunSpec>()),
      written_(std::make_unique<pb::RunSpec>()),
      policy_(std::make_unique<pb::PolicySpec>()) {}
SweepLayout::~SweepLayout() = default;

void SweepLayout::LayBase(const LayoutSource& source, std::vector<Fault>* faults) {
  const pb::SweepSpec& sweep = *source.sweep;
  const pb::StageSpec* stage = source.stage;
  const bool is_child = stage != nullptr && stage->has_needs();
  const std::string stage_path = stage == nullptr ? "" : StrCat("stages.", stage->id(), ".");
  const auto check = [&](const pb::RunSpec& base, const std::string& path) {
    if (base.has_seed()) faults->push_back(Plain(path + ".seed", "is filled in from replicates"));
    if (base.has_numerics_class()) {
      faults->push_back(Plain(path + ".numerics_class", "is filled in by the coordinator"));
    }
    if (base.inputs_size() > 0) {
      faults->push_back(Plain(path + ".inputs", "is filled in from the parents of a stage"));
    }
  };
  if (source.start != nullptr) *base_ = *source.start;
  const bool has_own_preset = stage != nullptr && !stage->preset().empty();
  pb::RunSpec preset;
  if (has_own_preset) {
    LoadNamedPreset(stage->preset(), stage_path + "preset", &preset, faults);
  } else if (!is_child) {
    LoadNamedPreset(sweep.preset(), "preset", &preset, faults);
  }
  MergeOver(preset, base_.get());
  check(sweep.base(), "base");
  // Children have their parents' documents instead.
  if (!is_child) MergeOver(sweep.base(), base_.get());
  *policy_ = sweep.policy();
  if (stage == nullptr) {
    *written_ = sweep.base();
  } else {
    check(stage->base(), stage_path + "base");
    MergeOver(stage->base(), base_.get());
    *written_ = stage->base();
    MergeOver(stage->policy(), policy_.get());
  }
}

void SweepLayout::TakeSets(const LayoutSource& source, std::vector<Fault>* faults) {
  for (const pb::SetEntry& set : source.sweep->sets()) {
    if (set.path().size() > kSetPathBytesMax) {
      faults->push_back(Plain("--set", "the path is too long"));
      continue;
    }
    if (!set.stage().empty() && (source.stage == nullptr || source.stage->id() != set.stage())) {
      continue;
    }
    sets_.push_back({.path = set.path(),
                     .is_policy = IsPolicyPath(set.path()),
                     .value = NodeFromValue(set.value())});
    const bool is_own = source.stage == nullptr || !set.stage().empty();
    if (!sets_.back().is_policy && is_own) {
      // Leads nowhere where only what lies below has what the path goes through; then it is not
      // needed.
      std::vector<Fault> ignored;
      Layer("", &ignored).LayAt(written_.get(), set.path(), sets_.back().value);
    }
  }
}

void SweepLayout::LaySets(pb::RunSpec* run, pb::PolicySpec* policy,
                          std::vector<Fault>* faults) const {
  for (const PathValue& set : sets_) {
    const std::string location =
        StrCat("--set ", EscapeForTerminal(set.path), "=", EscapeForTerminal(NodeText(set.value)));
    Layer(location, faults).LayAt(Target(set.is_policy, run, policy), set.path, set.value);
  }
}

void SweepLayout::TakeSeeds(const LayoutSource& source) {
  const pb::StageSpec* stage = source.stage;
  const pb::ReplicatesSpec& replicates =
      stage != nullptr ? stage->replicates() : source.sweep->replicates();
  seeds_.assign(replicates.seeds().begin(), replicates.seeds().end());
  if (seeds_.empty()) seeds_ = source.parent_seeds;
  if (seeds_.empty()) {
    seeds_ = {1};
    // What is compared without further words is trained three times.
    const bool is_trained = base_->kind() == pb::RUN_KIND_TRAIN;
    if (is_trained && !is_drawn_) seeds_ = {1, 2, 3};
  }
  is_paired_ = !replicates.has_paired() || replicates.paired();
}

void SweepLayout::TakeSpace(const LayoutSource& source, std::vector<Fault>* faults) {
  const pb::StageSpec* stage = source.stage;
  const Node* located = EntryValue(source.document, "space");
  if (stage != nullptr) {
    space_path_ = StrCat("stages.", stage->id(), ".space");
    located = EntryValue(EntryValue(EntryValue(source.document, "stages"), stage->id()), "space");
  }
  const pb::SpaceSpec& spec = stage != nullptr ? stage->space() : source.sweep->space();
  const pb::StrategySpec& strategy =
      stage != nullptr ? stage->strategy() : source.sweep->strategy();
  is_drawn_ = strategy.kind_case() != pb::StrategySpec::KIND_NOT_SET && !strategy.has_grid();
  space_ = ReadSpace(spec, space_path_, located, source.file_name, faults);
  if (!is_drawn_ && space_.has_distribution()) {
    for (const Axis* axis : AllAxes(space_)) {
      if (!axis->is_distribution()) continue;
      faults->push_back({axis->line == 0 ? std::string()
                                         : LocationText(source.file_name, axis->line, axis->column),
                         EscapeForTerminal(axis->name),
                         "a distribution needs a strategy that draws from it: random, sobol, tpe, "
                         "asha, hyperband, pbt or external"});
    }
  }
  TakeStrategy(strategy, faults);
  TakeSeeds(source);
  const std::optional<uint64_t> cells = CountCells(space_);
  uint64_t runs = 0;
  const bool is_over =
      !cells || __builtin_mul_overflow(*cells, seeds_.size(), &runs) || runs > kRunCountMax;
  if (is_over && !is_drawn_) {
    faults->push_back(Plain(space_path_, StrCat("has more than ", kRunCountMax, " runs")));
    return;
  }
  cell_count_ = is_drawn_ ? 1 : *cells;
}

// `per` of a strategy names axes with values that can be counted.
void SweepLayout::TakeStrategy(const pb::StrategySpec& strategy, std::vector<Fault>* faults) {
  const google::protobuf::Reflection* reflection = strategy.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> cases;
  reflection->ListFields(strategy, &cases);
  std::vector<std::string> known;
  for (const Axis& axis : space_.axes) {
    if (!axis.is_distribution()) known.push_back(axis.name);
  }
  const std::string prefix = space_path_.substr(0, space_path_.size() - 5);  // "space"
  for (const google::protobuf::FieldDescriptor* kind : cases) {
    const google::protobuf::Message& body = reflection->GetMessage(strategy, kind);
    const auto* per = body.GetDescriptor()->FindFieldByName("per");
    const int count = per == nullptr ? 0 : body.GetReflection()->FieldSize(body, per);
    for (const char* name : {"cells", "population"}) {
      const auto* cells = body.GetDescriptor()->FindFieldByName(name);
      if (cells != nullptr) drawn_cells_ = body.GetReflection()->GetUInt64(body, cells);
    }
    for (int i = 0; i < count; ++i) {
      const std::string name = body.GetReflection()->GetRepeatedString(body, per, i);
      const auto axis = std::ranges::find(space_.axes, name, &Axis::name);
      if (axis != space_.axes.end() && !axis->is_distribution()) {
        // Each value has that many of its own.
        if (drawn_cells_ <= kRunCountMax) drawn_cells_ *= axis->option_count();
        continue;
      }
      faults->push_back(
          Plain(StrCat(prefix, "strategy.", kind->name(), ".per"),
                StrCat("'", EscapeForTerminal(name), "' is not an axis with values to tell apart; ",
                       WordHint(name, known, "there is none"))));
    }
  }
}

void SweepLayout::CheckSets(const LayoutSource& source, std::vector<Fault>* faults) const {
  std::set<std::string> refused;
  for (const Axis* axis : AllAxes(space_)) {
    Space alone;
    alone.axes.push_back(*axis);
    for (const std::string& path : PathsOf(alone)) {
      for (const PathValue& set : sets_) {
        if (!IsAtOrBelow(set.path, path) || !refused.insert(set.path).second) continue;
        const Node place = axis->paths.empty() || axis->paths.front().values.empty()
                               ? NumberNode(*axis, 0)
                               : axis->paths.front().values.front();
        const std::string what =
            axis->name == path ? "is an axis" : StrCat("is laid by the axis ", axis->name);
        faults->push_back(
            {LocationText(source.file_name, place.line, place.column), EscapeForTerminal(path),
             StrCat(what, ", so --set ", EscapeForTerminal(set.path), " would have no effect")});
      }
    }
  }
}

void SweepLayout::CheckConstraintNames(const Space& space, std::string_view file_name,
                                       std::vector<Fault>* faults) const {
  const std::vector<std::string> columns = AxisNames();
  for (const Constraint& constraint : space.constraints) {
    for (const Expression::NameUse& use : constraint.expression.names()) {
      if (use.is_series || std::ranges::find(columns, use.name) != columns.end()) continue;
      const std::string hint = UnknownPathHint(use.name, columns);
      if (hint.empty()) continue;
      faults->push_back({"", constraint.path,
                         StrCat("column ", use.column, ": '", EscapeForTerminal(use.name),
                                "' is neither an axis nor a field; ", hint)});
    }
  }
  for (const Axis& axis : space.axes) {
    for (const Alternative& alternative : axis.alternatives) {
      CheckConstraintNames(alternative.space, file_name, faults);
    }
  }
}

// Each option of an axis by itself on what is laid below it.
void SweepLayout::CheckOptions(const Axis& axis, std::string_view file_name, const pb::RunSpec& run,
                               const pb::PolicySpec& policy, std::vector<Fault>* faults) const {
  pb::RunSpec run_scratch = run;
  pb::PolicySpec policy_scratch = policy;
  Layer layer(file_name, faults);
  std::map<std::string, size_t> seen;  // what an option leaves where it is laid -> its index
  for (size_t k = 0; k < axis.option_count(); ++k) {
    const size_t faults_of_option = faults->size();
    std::vector<const google::protobuf::Message*> holders;
    for (const AxisPath& path : axis.paths) {
      const google::protobuf::Message* holder = layer.LayAt(
          Target(path.is_policy, &run_scratch, &policy_scratch), path.path, path.values[k]);
      if (holder != nullptr) holders.push_back(holder);
    }
    if (faults->size() != faults_of_option) {
      // A path that is wrong is wrong for every value: say so once.
      const bool is_again = faults_of_option > 0 && faults->size() == faults_of_option + 1 &&
                            (*faults)[faults_of_option - 1].message == faults->back().message;
      if (is_again) faults->pop_back();
      continue;
    }
    // The whole row first: what one path lays may stand in what holds another.
    std::string left;
    for (const google::protobuf::Message* holder : holders) left += CanonicalEncoding(*holder);
    const auto [at, is_new] = seen.emplace(std::move(left), k);
    if (is_new) continue;
    layer.AddFault(axis.paths.front().values[k], axis.name,
                   StrCat("the value ", EscapeForTerminal(axis.OptionText(k)),
                          " is given twice: as value ", at->second + 1, " and ", k + 1));
  }
}

// Each value of each axis, below the first values of the axes laid before it.
void SweepLayout::CheckValues(const Space& space, std::string_view file_name, pb::RunSpec* run,
                              pb::PolicySpec* policy, std::vector<Fault>* faults) const {
  std::vector<const Axis*> order;
  for (const Axis& axis : space.axes) order.push_back(&axis);
  std::ranges::stable_sort(order, {}, [](const Axis* axis) { return RankOf(*axis); });
  Layer layer(file_name, faults);
  for (const Axis* axis : order) {
    const size_t faults_before = faults->size();
    if (axis->is_distribution()) {
      const AxisPath& path = axis->paths.front();
      for (const double bound : {axis->high, axis->low}) {
        const size_t faults_of_bound = faults->size();
        layer.LayAt(Target(path.is_policy, run, policy), path.path, NumberNode(*axis, bound));
        if (faults->size() != faults_of_bound) break;
      }
      continue;
    }
    if (axis->kind == AxisKind::kChoice) {
      pb::RunSpec first_run;
      pb::PolicySpec first_policy;
      for (size_t k = 0; k < axis->alternatives.size(); ++k) {
        const Alternative& alternative = axis->alternatives[k];
        pb::RunSpec run_scratch = *run;
        pb::PolicySpec policy_scratch = *policy;
        std::vector<const PathValue*> sets;
        for (const PathValue& set : alternative.set) sets.push_back(&set);
        std::ranges::stable_sort(sets, {}, [](const PathValue* set) { return Rank(set->path); });
        for (const PathValue* set : sets) {
          layer.LayAt(Target(set->is_policy, &run_scratch, &policy_scratch), set->path, set->value);
        }
        CheckValues(alternative.space, file_name, &run_scratch, &policy_scratch, faults);
        if (k == 0) {
          first_run = std::move(run_scratch);
          first_policy = std::move(policy_scratch);
        }
      }
      if (faults->size() == faults_before && !axis->alternatives.empty()) {
        *run = std::move(first_run);
        *policy = std::move(first_policy);
      }
      continue;
    }
    CheckOptions(*axis, file_name, *run, *policy, faults);
    if (faults->size() != faults_before || axis->option_count() == 0) continue;
    for (const AxisPath& path : axis->paths) {
      layer.LayAt(Target(path.is_policy, run, policy), path.path, path.values.front());
    }
  }
}

std::shared_ptr<const SweepLayout> SweepLayout::Make(const LayoutSource& source,
                                                     std::vector<Fault>* faults) {
  const size_t faults_before = faults->size();
  std::shared_ptr<SweepLayout> layout(new SweepLayout());
  layout->origin_ = source.origin;
  layout->origin_point_ = source.origin_point;
  layout->parent_columns_ = source.parent_columns;
  layout->LayBase(source, faults);
  layout->TakeSets(source, faults);
  if (layout->origin_ == nullptr) {
    layout->LaySets(layout->base_.get(), layout->policy_.get(), faults);
  }
  pb::RunSpec run;
  pb::PolicySpec policy;
  layout->LayWritten({}, nullptr, &run, &policy, nullptr, faults);
  const bool has_base = faults->size() == faults_before;
  const size_t faults_of_base = faults->size();
  layout->TakeSpace(source, faults);
  layout->CheckSets(source, faults);
  layout->CheckConstraintNames(layout->space_, source.file_name, faults);
  if (has_base && faults->size() == faults_of_base) {
    layout->CheckValues(layout->space_, source.file_name, &run, &policy, faults);
  }
  if (faults->size() != faults_before) return nullptr;
  return layout;
}

bool SweepLayout::IsWritten(std::string_view path) const { return IsPresent(*written_, path); }

std::vector<std::string> SweepLayout::AxisNames() const {
  std::vector<std::string> names;
  if (origin_ != nullptr) names = origin_->AxisNames();
  for (const auto& [name, value] : parent_columns_) names.push_back(name);
  for (const Axis* axis : AllAxes(space_)) {
    if (std::ranges::find(names, axis->name) == names.end()) names.push_back(axis->name);
  }
  return names;
}

// Walks the space beside the point. `is_kept`: false below an alternative that is swapped out.
void SweepLayout::Collect(const Space& space, const Point& point, size_t* at, const Swap* swap,
                          bool is_kept, std::vector<Entry>* entries,
                          std::vector<MatchTask>* matches) {
  for (const Axis& axis : space.axes) {
    SWITCHYARD_CHECK(*at < point.size() && point[*at].axis == &axis)
        << "a point follows the axes of its space";
    const Coordinate& coordinate = point[(*at)++];
    if (axis.is_distribution()) {
      if (!is_kept) continue;
      entries->push_back({axis.paths.front().path, axis.paths.front().is_policy,
                          NumberNode(axis, coordinate.number)});
      continue;
    }
    if (axis.kind != AxisKind::kChoice) {
      if (!is_kept) continue;
      for (const AxisPath& path : axis.paths) {
        entries->push_back({path.path, path.is_policy, path.values[coordinate.option]});
      }
      continue;
    }
    const bool is_swapped = swap != nullptr && swap->axis == &axis;
    const Alternative& own = axis.alternatives[coordinate.option];
    const Alternative& used = is_swapped ? axis.alternatives[swap->alternative] : own;
    if (is_kept) {
      for (const PathValue& set : used.set) {
        entries->push_back({set.path, set.is_policy, set.value});
      }
      if (used.match && matches != nullptr) matches->push_back({&axis, &*used.match});
    }
    Collect(own.space, point, at, swap, is_kept && !is_swapped, entries, matches);
  }
}

std::vector<SweepLayout::Entry> SweepLayout::EntriesOf(const Point& point, const Swap* swap,
                                                       std::vector<MatchTask>* matches) const {
  std::vector<Entry> entries;
  size_t at = 0;
  Collect(space_, point, &at, swap, true, &entries, matches);
  std::ranges::stable_sort(entries, {}, [](const Entry& entry) { return Rank(entry.path); });
  return entries;
}

void SweepLayout::LayWritten(const Point& point, const Swap* swap, pb::RunSpec* run,
                             pb::PolicySpec* policy, std::vector<MatchTask>* matches,
                             std::vector<Fault>* faults) const {
  if (origin_ != nullptr) {
    origin_->LayWritten(origin_point_, swap, run, policy, matches, faults);
    MergeOver(*base_, run);
    MergeOver(*policy_, policy);
    LaySets(run, policy, faults);
  } else {
    *run = *base_;
    *policy = *policy_;
  }
  if (space_.axes.empty()) return;
  Layer layer("", faults);
  for (const Entry& entry : EntriesOf(point, swap, matches)) {
    layer.LayAt(Target(entry.is_policy, run, policy), entry.path, entry.value);
  }
}

void SweepLayout::Solve(const MatchTask& task, const Point& point, pb::RunSpec* run,
                        std::vector<Fault>* faults) const {
  const Swap swap{.axis = task.axis, .alternative = task.match->to};
  pb::RunSpec other;
  pb::PolicySpec unused;
  LayWritten(point, &swap, &other, &unused, nullptr, faults);
  SolveMatch(*task.match, task.axis->alternatives[task.match->to].name, other, run, faults);
}

void SweepLayout::Lay(const Point& point, pb::RunSpec* run, pb::PolicySpec* policy,
                      std::vector<Fault>* faults) const {
  const size_t faults_before = faults->size();
  std::vector<MatchTask> matches;
  LayWritten(point, nullptr, run, policy, &matches, faults);
  for (const MatchTask& task : matches) {
    if (faults->size() != faults_before) return;
    Solve(task, point, run, faults);
  }
}

bool SweepLayout::IsLaid(const Point& point, std::string_view path) const {
  std::vector<MatchTask> matches;
  const std::vector<Entry> entries = EntriesOf(point, nullptr, &matches);
  return std::ranges::any_of(entries,
                             [&](const Entry& entry) {
                               return !entry.is_policy && (IsAtOrBelow(path, entry.path) ||
                                                           IsAtOrBelow(entry.path, path));
                             }) ||
         std::ranges::any_of(
             matches, [&](const MatchTask& task) { return IsAtOrBelow(task.match->vary, path); });
}

std::vector<std::pair<std::string, std::string>> SweepLayout::Columns(const Point& point) const {
  std::vector<std::pair<std::string, std::string>> columns = parent_columns_;
  if (origin_ != nullptr) columns = origin_->Columns(origin_point_);
  for (const Coordinate& coordinate : point) {
    const Axis& axis = *coordinate.axis;
    std::string text = axis.is_distribution() ? NumberNode(axis, coordinate.number).scalar
                                              : axis.OptionText(coordinate.option);
    // A stage that lays over an axis of its parent has the column anew.
    const auto old =
        std::ranges::find(columns, axis.name, &std::pair<std::string, std::string>::first);
    if (old != columns.end()) {
      old->second = std::move(text);
    } else {
      columns.emplace_back(axis.name, std::move(text));
    }
  }
  return columns;
}

}  // namespace switchyard::spec
