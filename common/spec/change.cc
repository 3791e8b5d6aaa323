#include "common/spec/change.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "common/spec/lay.h"
#include "common/spec/stage.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/sweep_plan.h"
#include "common/spec/unused.h"
#include "common/spec/validate.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

using Columns = std::vector<std::pair<std::string, std::string>>;

bool AreEqual(const google::protobuf::Message& left, const google::protobuf::Message& right) {
  return CanonicalEncoding(left) == CanonicalEncoding(right);
}

std::string Describe(const Columns& columns) {
  std::vector<std::string> parts;
  for (const auto& [axis, value] : columns) parts.push_back(axis + "=" + EscapeForTerminal(value));
  return StrJoin(parts, ", ");
}

// A cell's identity without its seed.
std::string CellKey(const SweepPlan& plan, uint64_t cell) {
  std::vector<Fault> ignored;
  const PlannedRun planned = plan.At(cell, &ignored);
  if (planned.run == nullptr) return "";
  pb::RunSpec run = *planned.run;
  run.clear_seed();
  return CanonicalEncoding(run);
}

// Strategies may be given more cells, and nothing else.
bool MayFollow(const pb::StrategySpec& old, const pb::StrategySpec& extended) {
  pb::StrategySpec left = old;
  pb::StrategySpec right = extended;
  const auto follow = [](auto* before, auto* after) {
    if (after->cells() < before->cells()) return false;
    before->set_cells(after->cells());
    return true;
  };
  if (left.kind_case() != right.kind_case()) return false;
  bool is_more = true;
  if (left.has_random()) is_more = follow(left.mutable_random(), right.mutable_random());
  if (left.has_sobol()) is_more = follow(left.mutable_sobol(), right.mutable_sobol());
  if (left.has_tpe()) is_more = follow(left.mutable_tpe(), right.mutable_tpe());
  if (left.has_asha()) is_more = follow(left.mutable_asha(), right.mutable_asha());
  return is_more && AreEqual(left, right);
}

class ExtensionPlanner {
 public:
  ExtensionPlanner(const pb::SweepSpec& old, const pb::SweepSpec& extended,
                   std::vector<Fault>* faults)
      : old_(old), extended_(extended), faults_(faults) {}

  std::vector<StageExtension> Plan() {
    CheckTop();
    std::vector<StageExtension> out;
    if (old_.stages().empty()) {
      const std::unique_ptr<SweepPlan> before = SweepPlan::Make(old_, faults_);
      const std::unique_ptr<SweepPlan> after = SweepPlan::Make(extended_, faults_);
      if (before == nullptr || after == nullptr) return out;
      if (!AreEqual(old_.objective(), extended_.objective())) Fail("objective", kMustBeEqual);
      CheckStrategy("strategy", old_.strategy(), extended_.strategy());
      out.push_back(Extend("", *before, *after));
      return out;
    }
    for (const pb::StageSpec& stage : old_.stages()) {
      const pb::StageSpec* now = FindStage(extended_, stage.id());
      if (now == nullptr) {
        Fail("stages", StrCat("the stage ", stage.id(), " is missing"));
      } else {
        out.push_back(ExtendStage(stage, *now));
      }
    }
    return out;
  }

 private:
  static constexpr char kMustBeEqual[] = "differs; an extension only adds";

  void Fail(const std::string& path, std::string message) {
    faults_->push_back({"", path, std::move(message)});
  }

  void CheckTop() {
    if (old_.name() != extended_.name()) {
      Fail("name", StrCat(extended_.name(), " is not the name of the sweep, ", old_.name()));
    }
    if (old_.project() != extended_.project()) Fail("project", kMustBeEqual);
    if (old_.preset() != extended_.preset()) Fail("preset", kMustBeEqual);
    if (!AreEqual(old_.base(), extended_.base())) Fail("base", kMustBeEqual);
    pb::SweepSpec left;
    pb::SweepSpec right;
    *left.mutable_sets() = old_.sets();
    *right.mutable_sets() = extended_.sets();
    if (!AreEqual(left, right)) Fail("--set", kMustBeEqual);
    if (old_.stages().empty() != extended_.stages().empty()) {
      Fail("stages", "a sweep with stages does not go on from one without");
    }
  }

  void CheckStrategy(const std::string& path, const pb::StrategySpec& before,
                     const pb::StrategySpec& after) {
    if (MayFollow(before, after)) return;
    Fail(path, "differs; a strategy may be given more cells, and nothing else");
  }

  StageExtension ExtendStage(const pb::StageSpec& before, const pb::StageSpec& after) {
    const std::string path = StrCat("stages.", before.id());
    StageExtension extension{.stage = before.id()};
    CheckStrategy(path + ".strategy", before.strategy(), after.strategy());
    pb::StageSpec left = before;
    pb::StageSpec right = after;
    for (pb::StageSpec* stage : {&left, &right}) {
      stage->clear_strategy();
      stage->clear_replicates();
      stage->clear_policy();
      if (!before.has_needs()) stage->clear_space();
    }
    if (!AreEqual(left, right)) Fail(path, kMustBeEqual);
    if (before.has_needs()) {
      // Its cells come with its parents.
      extension.added_seeds =
          AddedSeeds(path, {before.replicates().seeds().begin(), before.replicates().seeds().end()},
                     {after.replicates().seeds().begin(), after.replicates().seeds().end()});
      return extension;
    }
    const std::unique_ptr<SweepPlan> plan_before = PlanStage(old_, before, faults_);
    const std::unique_ptr<SweepPlan> plan_after = PlanStage(extended_, after, faults_);
    if (plan_before == nullptr || plan_after == nullptr) return extension;
    return Extend(before.id(), *plan_before, *plan_after);
  }

  std::vector<uint64_t> AddedSeeds(const std::string& path, const std::vector<uint64_t>& before,
                                   const std::vector<uint64_t>& after) {
    std::vector<uint64_t> added;
    for (const uint64_t seed : before) {
      if (std::ranges::find(after, seed) == after.end()) {
        Fail(path.empty() ? "replicates" : path + ".replicates",
             StrCat("the seed ", seed, " is missing; an extension only adds"));
      }
    }
    for (const uint64_t seed : after) {
      if (std::ranges::find(before, seed) == before.end()) added.push_back(seed);
    }
    return added;
  }

  StageExtension Extend(const std::string& stage, const SweepPlan& before, const SweepPlan& after) {
    StageExtension extension{.stage = stage};
    const std::string path = stage.empty() ? "" : StrCat("stages.", stage);
    extension.added_seeds = AddedSeeds(path, before.seeds(), after.seeds());
    if (before.is_drawn() || after.is_drawn()) return extension;
    extension.numbers.assign(after.cell_count(), 0);
    std::vector<bool> is_taken(before.cell_count() + 1, false);
    const auto take = [&](uint64_t cell, uint64_t number) {
      extension.numbers[cell - 1] = number;
      is_taken[number] = true;
    };
    // By columns, which costs nothing; then, where a column is new or a value is written in another
    // way, by what the cell is.
    std::map<Columns, uint64_t> by_columns;
    for (uint64_t cell = 1; cell <= before.cell_count(); ++cell) {
      by_columns.emplace(before.layout()->Columns(before.PointOf(cell)), cell);
    }
    for (uint64_t cell = 1; cell <= after.cell_count(); ++cell) {
      const auto at = by_columns.find(after.layout()->Columns(after.PointOf(cell)));
      if (at != by_columns.end()) take(cell, at->second);
    }
    std::map<std::string, std::deque<uint64_t>> by_key;
    for (uint64_t cell = 1; cell <= before.cell_count(); ++cell) {
      if (!is_taken[cell]) by_key[CellKey(before, cell)].push_back(cell);
    }
    for (uint64_t cell = 1; cell <= after.cell_count() && !by_key.empty(); ++cell) {
      if (extension.numbers[cell - 1] != 0) continue;
      const auto at = by_key.find(CellKey(after, cell));
      if (at == by_key.end()) continue;
      take(cell, at->second.front());
      at->second.pop_front();
      if (at->second.empty()) by_key.erase(at);
    }
    for (const auto& [key, cells] : by_key) {
      const uint64_t cell = cells.front();
      Fail(path.empty() ? "space" : path + ".space",
           StrCat("cell ", cell, " is missing (",
                  Describe(before.layout()->Columns(before.PointOf(cell))),
                  "); an extension only adds"));
    }
    CheckSameRuns(path, before, after, extension);
    uint64_t next = before.cell_count();
    for (uint64_t& number : extension.numbers) {
      if (number != 0) continue;
      number = ++next;
      ++extension.added_cells;
    }
    return extension;
  }

  // The columns of a cell may be the same although its alternative is another thing now.
  void CheckSameRuns(const std::string& path, const SweepPlan& before, const SweepPlan& after,
                     const StageExtension& extension) {
    for (uint64_t cell = 1; cell <= after.cell_count(); ++cell) {
      const uint64_t number = extension.numbers[cell - 1];
      if (number == 0 || CellKey(before, number) == CellKey(after, cell)) continue;
      Fail(path.empty() ? "space" : path + ".space",
           StrCat("cell ", number, " is another one now (",
                  Describe(after.layout()->Columns(after.PointOf(cell))), ")"));
      return;
    }
  }

  const pb::SweepSpec& old_;
  const pb::SweepSpec& extended_;
  std::vector<Fault>* faults_;
};

}  // namespace

std::optional<std::vector<StageExtension>> PlanExtension(const pb::SweepSpec& old,
                                                         const pb::SweepSpec& extended,
                                                         std::vector<Fault>* faults) {
  const size_t before = faults->size();
  std::vector<StageExtension> extension = ExtensionPlanner(old, extended, faults).Plan();
  if (faults->size() != before) return std::nullopt;
  return extension;
}

void AddReplicates(const std::vector<uint64_t>& seeds, uint64_t count, pb::SweepSpec* sweep) {
  std::set<uint64_t> used(seeds.begin(), seeds.end());
  std::vector<uint64_t> all = seeds;
  for (uint64_t seed = 1; count > 0; ++seed) {
    if (!used.insert(seed).second) continue;
    all.push_back(seed);
    --count;
  }
  sweep->mutable_replicates()->mutable_seeds()->Assign(all.begin(), all.end());
}

bool MakeFork(const pb::RunSpec& run, std::string_view run_id, uint64_t step,
              std::string_view digest, const std::vector<PathValue>& sets, pb::RunSpec* fork,
              std::vector<Fault>* faults) {
  const size_t before = faults->size();
  *fork = run;
  pb::InitSpec* init = fork->mutable_init();
  init->Clear();
  init->set_run(std::string(run_id));
  init->set_step(step);
  init->set_digest(std::string(digest));
  init->set_restore(pb::RESTORE_ALL);
  for (const PathValue& set : sets) {
    const std::string location =
        StrCat("--set ", EscapeForTerminal(set.path), "=", EscapeForTerminal(NodeText(set.value)));
    if (IsAtOrBelow(set.path, "init") || set.path == "kind") {
      faults->push_back({location, set.path, "is what the fork goes on from, and cannot be set"});
      continue;
    }
    Layer(location, faults).LayAt(fork, set.path, set.value);
  }
  if (faults->size() != before) return false;
  if (fork->train().has_steps() && fork->train().steps() <= step) {
    faults->push_back(
        {"", "train.steps",
         StrCat("ends at ", fork->train().steps(), ", not after the fork at step ", step)});
  }
  for (const UnusedField& field : DropUnused(fork)) {
    faults->push_back({"", field.path, StrCat("is set but has no effect: ", field.reason)});
  }
  FillDefaults(fork);
  for (Fault& fault : ValidateRun(*fork)) faults->push_back(std::move(fault));
  return faults->size() == before;
}

}  // namespace switchyard::spec
