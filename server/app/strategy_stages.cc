// Stages whose runs begin where others have ended, and what an extension adds.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/spec/change.h"
#include "common/spec/sweep_layout.h"
#include "common/spec/sweep_plan.h"
#include "server/app/reducer.h"
#include "server/app/strategies.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::app {
namespace {

namespace pb = ::switchyard::v1;

// Of a sweep that a stage names.
constexpr size_t kForeignPage = 1000;

// The column that tells the stages of a sweep apart is not one of its children's.
std::vector<std::pair<std::string, std::string>> WithoutStage(const store::RunInfo& info) {
  auto columns = info.link.columns;
  std::erase_if(columns, [](const auto& column) { return column.first == "stage"; });
  return columns;
}

// The stage's children are made parent by parent; else when all parents are there.
bool IsIncremental(const pb::StageSpec& stage) {
  const bool is_by_run =
      stage.each().axes().empty() &&
      (stage.each().kind() == pb::EACH_KIND_UNSPECIFIED ||
       stage.each().kind() == pb::EACH_KIND_CHECKPOINT || stage.each().kind() == pb::EACH_KIND_RUN);
  return is_by_run && stage.from() != pb::STAGE_FROM_SPEC && !spec::WaitsForWholeStage(stage);
}

// Numbers of the first `limit` parents that are of the stage.
std::vector<uint64_t> ParentsOf(const Driven& driven, std::string_view stage, size_t limit) {
  std::vector<uint64_t> numbers;
  for (size_t i = 0; i < limit; ++i) {
    const Parent& parent = driven.parents[i];
    if (driven.units[parent.unit].stage == stage) numbers.push_back(parent.number);
  }
  return numbers;
}

// Those kept, by rising step; the newest attempt's where two are of one step.
std::vector<spec::ParentCheckpoint> Checkpoints(const std::vector<scheduler::CheckpointRow>& rows,
                                                bool is_maximized) {
  std::vector<spec::ParentCheckpoint> out;
  std::optional<double> best;
  size_t best_at = 0;
  for (const scheduler::CheckpointRow& row : rows) {
    if (row.state != scheduler::CheckpointState::kPublished) continue;
    if (!out.empty() && out.back().step == row.step) out.pop_back();
    out.push_back({.step = row.step, .digest = row.digest});
    if (!row.score.has_value() || !std::isfinite(*row.score)) continue;
    const double score = is_maximized ? -*row.score : *row.score;
    if (best.has_value() && *best <= score) continue;
    best = score;
    best_at = out.size() - 1;
  }
  if (best.has_value()) out.at(best_at).is_best = true;
  return out;
}

}  // namespace

Result<std::map<std::string, SweepId>> Strategies::FindNeeds(const api::Expansion& expansion) {
  std::map<std::string, SweepId> needs;
  for (const pb::StageSpec& stage : expansion.document().stages()) {
    const std::string& name = stage.needs().sweep();
    if (!stage.has_needs() || name.empty()) continue;
    const Result<store::SweepInfo> info = host_.store->FindSweep(name, /*with_spec=*/true);
    if (!info.ok()) {
      return Status{info.status().code(),
                    StrCat("stages.", stage.id(), ".needs.sweep: ", info.status().message())};
    }
    SWITCHYARD_ASSIGN_OR_RETURN(const std::shared_ptr<const api::Expansion> foreign,
                                api::Expansion::Parse(info->row.spec));
    const bool has_stage =
        stage.needs().stage().empty()
            ? foreign->document().stages().empty()
            : spec::FindStage(foreign->document(), stage.needs().stage()) != nullptr;
    if (!has_stage) {
      return InvalidArgument(StrCat("stages.", stage.id(), ".needs.stage: the sweep ", name,
                                    " has no stage \"", stage.needs().stage(), "\""));
    }
    needs.emplace(stage.id(), info->row.id);
  }
  return needs;
}

// ---------------------------------------------------------------- parents

Status Strategies::AddLayout(const Driven& driven, const RunNumber& number,
                             spec::ParentRun* parent) {
  const auto own = std::ranges::find(driven.parents, number.number, &Parent::number);
  if (own != driven.parents.end()) {
    const Unit& unit = driven.units.at(own->unit);
    parent->layout = unit.space.plan->layout();
    if (unit.is_counted()) {
      parent->point = unit.space.plan->PointOf(own->cell);
      return OkStatus();
    }
    SWITCHYARD_ASSIGN_OR_RETURN(
        parent->point,
        spec::PointFrom(parent->layout->space(), api::DrawsOf(unit.search->space(), own->point)));
    return OkStatus();
  }
  SWITCHYARD_ASSIGN_OR_RETURN(
      const store::SweepInfo info,
      host_.store->FindSweep(number.sweep.value.ToString(), /*with_spec=*/true));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::shared_ptr<const api::Expansion> foreign,
                              api::Expansion::Parse(info.row.spec));
  if (foreign->sweep().is_drawn) {
    return FailedPrecondition(
        StrCat("from: spec takes cells of another sweep only where they are counted; those of ",
               info.row.name, " were proposed while it ran"));
  }
  parent->layout = foreign->plan().layout();
  parent->point = foreign->plan().PointOf((number.number - 1) % foreign->plan().cell_count() + 1);
  return OkStatus();
}

Result<spec::ParentRun> Strategies::MakeParent(const Driven& driven, const pb::StageSpec& stage,
                                               const RunNumber& number) {
  SWITCHYARD_ASSIGN_OR_RETURN(
      const std::vector<store::RunInfo> infos,
      host_.store->GetRuns(number.sweep, std::vector<uint64_t>{number.number}, {}));
  const store::RunInfo& info = infos.front();
  const RunId run = info.row.id;
  SWITCHYARD_ASSIGN_OR_RETURN(const store::RunDocument document, host_.store->GetRunDocument(run));
  auto spec = std::make_shared<pb::RunSpec>();
  if (!spec->ParseFromString(document.spec)) {
    return DataLoss(StrCat("the document of run ", run.value.ToString(), " cannot be read"));
  }
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::CheckpointRow> rows,
                              host_.store->ListCheckpoints(run));
  SWITCHYARD_ASSIGN_OR_RETURN(const std::vector<scheduler::SummaryRow> summaries,
                              host_.store->ListSummaries(run));
  spec::ParentRun parent{.id = run.value.ToString(),
                         .cell = info.link.cell,
                         .seed = info.row.seed,
                         .columns = WithoutStage(info),
                         .run = std::move(spec),
                         .checkpoints = Checkpoints(rows, info.row.policy.is_maximized)};
  for (const scheduler::SummaryRow& row : summaries) {
    parent.series.push_back(
        {.name = row.series, .best = row.has_best ? row.best : row.last, .last = row.last});
    if (row.series != info.row.policy.objective) continue;
    const double value = info.row.policy.is_objective_last || !row.has_best ? row.last : row.best;
    // Of another sweep the direction is not in this document, which ranks the smallest first.
    const bool is_turned = !stage.needs().sweep().empty() && info.row.policy.is_maximized;
    if (std::isfinite(value)) parent.objective = is_turned ? -value : value;
  }
  if (stage.from() == pb::STAGE_FROM_SPEC) {
    SWITCHYARD_RETURN_IF_ERROR(AddLayout(driven, number, &parent));
  }
  return parent;
}

Result<std::vector<RunNumber>> Strategies::ForeignParents(const pb::StageSpec& stage,
                                                          SweepId foreign) {
  std::vector<RunNumber> numbers;
  std::string page;
  do {
    SWITCHYARD_ASSIGN_OR_RETURN(
        store::RunPage runs,
        host_.store->ListRuns(
            {.sweep = foreign, .states = {scheduler::RunState::kSucceeded}, .series = {}}, page,
            kForeignPage));
    for (const store::RunInfo& run : runs.runs) {
      const bool is_of_stage =
          stage.needs().stage().empty() ||
          std::ranges::find(run.link.columns,
                            std::pair<std::string, std::string>("stage", stage.needs().stage())) !=
              run.link.columns.end();
      if (is_of_stage) numbers.push_back({.sweep = foreign, .number = run.link.number});
    }
    page = std::move(runs.next);
  } while (!page.empty());
  return numbers;
}

Status Strategies::AddGroups(Driven* driven, const pb::StageSpec& stage,
                             const std::vector<RunNumber>& parents, bool* has_added) {
  std::vector<spec::ParentRun> runs;
  std::map<std::string, RunNumber> numbers;
  for (const RunNumber& number : parents) {
    SWITCHYARD_ASSIGN_OR_RETURN(spec::ParentRun run, MakeParent(*driven, stage, number));
    numbers.emplace(run.id, number);
    runs.push_back(std::move(run));
  }
  std::vector<spec::Fault> faults;
  std::vector<spec::StageGroup> groups = spec::ExpandStage(
      driven->expansion().document(), stage, std::move(runs), spec::ParentStage::kDone, &faults);
  for (spec::StageGroup& group : groups) {
    const bool is_known = std::ranges::any_of(driven->units, [&](const Unit& unit) {
      return unit.stage == stage.id() && unit.key == group.key;
    });
    if (is_known) continue;
    Unit unit;
    unit.document = driven->documents.size() - 1;
    unit.stage = stage.id();
    unit.key = group.key;
    for (const std::string& id : group.parents) unit.parents.push_back(numbers.at(id));
    SWITCHYARD_ASSIGN_OR_RETURN(api::PlannedSpace space,
                                driven->expansion().SpaceOf(stage.id(), std::move(group.plan)));
    SWITCHYARD_RETURN_IF_ERROR(GiveSpace(driven->expansion(), std::move(space), &unit));
    if (unit.is_counted()) NumberCells(unit.space.plan->cell_count(), &unit, &driven->cells);
    driven->units.push_back(std::move(unit));
    driven->is_dirty = true;
    *has_added = true;
  }
  return faults.empty() ? OkStatus() : InvalidArgument(spec::ToString(faults));
}

bool Strategies::HasTakenAll(const Driven& driven, const Consumer& consumer) const {
  if (!consumer.foreign.value.is_nil()) return consumer.has_all;
  const pb::StageSpec* stage = spec::FindStage(driven.expansion().document(), consumer.stage);
  if (stage == nullptr) return true;
  const std::string& needed = stage->needs().stage();
  return IsStageDone(driven, needed) &&
         consumer.taken == ParentsOf(driven, needed, driven.parents.size()).size() &&
         (IsIncremental(*stage) || consumer.has_all);
}

bool Strategies::IsStageDone(const Driven& driven, std::string_view stage) const {
  for (size_t i = 0; i < driven.units.size(); ++i) {
    if (driven.units[i].stage != stage) continue;
    if (!driven.units[i].is_exhausted()) return false;
    if (std::ranges::find(driven.open, i, &Open::unit) != driven.open.end()) return false;
  }
  const auto consumer = std::ranges::find(driven.consumers, stage, &Consumer::stage);
  return consumer == driven.consumers.end() || HasTakenAll(driven, *consumer);
}

bool Strategies::IsExhausted(const Driven& driven) const {
  return std::ranges::all_of(driven.units, [](const Unit& unit) { return unit.is_exhausted(); }) &&
         std::ranges::all_of(driven.consumers, [&](const Consumer& consumer) {
           return HasTakenAll(driven, consumer);
         });
}

bool Strategies::TakeParentsOf(Turn& turn, SweepId id, Driven* driven, Consumer* consumer) {
  const pb::StageSpec* stage = spec::FindStage(driven->expansion().document(), consumer->stage);
  if (stage == nullptr) return false;
  const bool is_foreign = !consumer->foreign.value.is_nil();
  std::vector<std::vector<RunNumber>> batches;
  if (is_foreign) {
    if (consumer->has_all || host_.state->FindSweep(consumer->foreign) != nullptr) return false;
    // What ended in this turn is not in the rows yet.
    const Result<store::SweepInfo> info =
        host_.store->FindSweep(consumer->foreign.value.ToString(), /*with_spec=*/false);
    if (!info.ok() || !IsTerminal(info->status.state)) return false;
    Result<std::vector<RunNumber>> numbers = ForeignParents(*stage, consumer->foreign);
    if (!numbers.ok()) {
      LogError("stage ", consumer->stage, ": ", numbers.status().ToString());
      return false;  // again in a later turn
    }
    batches.push_back(*std::move(numbers));
  } else {
    const std::string& needed = stage->needs().stage();
    const bool is_incremental = IsIncremental(*stage);
    const bool are_committed = driven->parents_committed == driven->parents.size();
    const std::vector<uint64_t> parents = ParentsOf(*driven, needed, driven->parents_committed);
    const bool is_new = consumer->taken < parents.size();
    if (is_incremental
            ? !is_new
            : !are_committed || (consumer->has_all && !is_new) || !IsStageDone(*driven, needed)) {
      return false;
    }
    std::vector<RunNumber> all;
    for (size_t i = is_incremental ? consumer->taken : 0; i < parents.size(); ++i) {
      if (is_incremental) batches.push_back({{.sweep = id, .number = parents[i]}});
      all.push_back({.sweep = id, .number = parents[i]});
    }
    if (!is_incremental) batches.push_back(std::move(all));
    consumer->taken = parents.size();
  }
  consumer->has_all = true;
  driven->is_dirty = true;
  bool has_added = false;
  for (const std::vector<RunNumber>& batch : batches) {
    if (batch.empty()) continue;
    const Status status = AddGroups(driven, *stage, batch, &has_added);
    if (status.ok()) continue;
    LogError("sweep ", id.value.ToString(), ", stage ", stage->id(), ": ", status.ToString());
    turn.Write(scheduler::HistoryRow{.at_ms = turn.now().unix_ms,
                                     .kind = "stage_failed",
                                     .ref = id.value,
                                     .text = StrCat(stage->id(), ": ", status.message())});
  }
  return true;
}

bool Strategies::TakeParents(Turn& turn, SweepId id, Driven* driven) {
  bool has_moved = false;
  for (Consumer& consumer : driven->consumers) {
    has_moved |= TakeParentsOf(turn, id, driven, &consumer);
  }
  return has_moved;
}

Status Strategies::MakeSpace(const Driven& driven, Unit* unit) {
  const api::Expansion& expansion = *driven.documents[unit->document];
  if (unit->key.empty()) {
    const auto root = std::ranges::find(expansion.roots(), unit->stage, &api::PlannedSpace::stage);
    if (root == expansion.roots().end()) {
      return DataLoss(StrCat("the stored state names stage ", unit->stage, ", which is not there"));
    }
    SWITCHYARD_RETURN_IF_ERROR(GiveSpace(expansion, *root, unit));
  } else {
    const pb::StageSpec* stage = spec::FindStage(expansion.document(), unit->stage);
    std::vector<spec::ParentRun> parents;
    for (const RunNumber& number : unit->parents) {
      SWITCHYARD_ASSIGN_OR_RETURN(spec::ParentRun parent, MakeParent(driven, *stage, number));
      parents.push_back(std::move(parent));
    }
    std::vector<spec::Fault> faults;
    std::vector<spec::StageGroup> groups = spec::ExpandStage(
        expansion.document(), *stage, std::move(parents), spec::ParentStage::kDone, &faults);
    const auto group = std::ranges::find(groups, unit->key, &spec::StageGroup::key);
    if (group == groups.end()) {
      return DataLoss(StrCat("stage ", unit->stage, ", group ", unit->key,
                             " cannot be made again: ", spec::ToString(faults)));
    }
    SWITCHYARD_ASSIGN_OR_RETURN(api::PlannedSpace space,
                                expansion.SpaceOf(unit->stage, std::move(group->plan)));
    SWITCHYARD_RETURN_IF_ERROR(GiveSpace(expansion, std::move(space), unit));
  }
  return OkStatus();
}

// ---------------------------------------------------------------- extensions

namespace {

// What the extension of a counted unit proposes, and the numbers of all its cells.
void PickAdded(const Unit& before, const std::vector<uint64_t>& numbers, uint64_t* cells,
               Unit* more) {
  const spec::SweepPlan& plan = *more->space.plan;
  const std::vector<uint64_t>& old_seeds = before.space.plan->seeds();
  const uint64_t old_cells = before.space.plan->cell_count();
  const auto number_of = [&](uint64_t cell) {
    return numbers.empty() ? cell + 1 : numbers.at(cell);
  };
  for (uint64_t index = 1; index <= plan.run_count(); ++index) {
    const uint64_t seed = plan.seeds()[(index - 1) / plan.cell_count()];
    if (number_of((index - 1) % plan.cell_count()) > old_cells ||
        std::ranges::find(old_seeds, seed) == old_seeds.end()) {
      more->picks.push_back(index);
    }
  }
  more->count = more->picks.size();
  for (uint64_t cell = 0; cell < plan.cell_count(); ++cell) {
    const uint64_t number = number_of(cell);
    more->cells.push_back(number <= old_cells ? before.cells.at(number - 1) : ++*cells);
  }
}

}  // namespace

Status Strategies::ExtendUnit(Driven* driven, size_t index,
                              const std::vector<spec::StageExtension>& extensions) {
  Unit& before = driven->units[index];
  // Drawn children are as many as they were.
  if (!before.is_counted() && !before.key.empty()) return OkStatus();
  Unit more;
  more.document = driven->documents.size() - 1;
  more.stage = before.stage;
  more.key = before.key;
  more.parents = before.parents;
  SWITCHYARD_RETURN_IF_ERROR(MakeSpace(*driven, &more));
  if (!before.is_counted()) {
    SWITCHYARD_RETURN_IF_ERROR(more.search->Restore(before.search->Snapshot()));
    before.document = more.document;
    before.space = std::move(more.space);
    before.search = std::move(more.search);
    return OkStatus();
  }
  more.extends = index;
  const auto found = std::ranges::find(extensions, more.stage, &spec::StageExtension::stage);
  PickAdded(before, found == extensions.end() ? std::vector<uint64_t>() : found->numbers,
            &driven->cells, &more);
  if (!more.picks.empty()) driven->units.push_back(std::move(more));
  return OkStatus();
}

Status Strategies::Extend(SweepId id, const api::ExtendInput& input, uint64_t proposed) {
  Driven fresh;
  Driven* driven = Find(id);
  std::string before;
  if (driven != nullptr) {
    before = PackDriven(*driven);
  } else {
    // Its cells were counted until now.
    SWITCHYARD_ASSIGN_OR_RETURN(fresh, MakeDriven(input.old));
    fresh.units.front().next = proposed + 1;
    driven = &fresh;
  }
  const std::shared_ptr<const api::Expansion> newest = driven->documents.back();
  driven->documents.push_back(input.extended);
  Status status;
  for (size_t i = 0, count = driven->units.size(); i < count && status.ok(); ++i) {
    // An extension that holds for the cells stands for what it extends.
    const bool is_extended =
        std::ranges::any_of(driven->units, [i](const Unit& other) { return other.extends == i; });
    if (!is_extended) status = ExtendUnit(driven, i, input.extensions);
  }
  if (!status.ok()) {
    if (driven != &fresh) SWITCHYARD_RETURN_IF_ERROR(Load(id, newest, before));
    return status;
  }
  for (const pb::StageSpec& stage : input.extended->document().stages()) {
    const bool is_new = std::ranges::find(driven->consumers, stage.id(), &Consumer::stage) ==
                        driven->consumers.end();
    if (stage.has_needs() && is_new) {
      driven->consumers.push_back({.stage = stage.id(), .foreign = {}});
    }
  }
  driven->is_dirty = true;
  if (driven == &fresh) Keep(id, std::move(fresh));
  return OkStatus();
}

}  // namespace switchyard::app
