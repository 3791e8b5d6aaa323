#include "server/app/driven.h"

#include <algorithm>
#include <utility>

#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::app {
namespace {

constexpr std::string_view kFormat = "switchyard-driven-1";

using search::Action;
using search::SnapshotReader;
using search::SnapshotWriter;

template <typename Id>
void WriteId(const Id& id, SnapshotWriter* writer) {
  writer->Uint(id.value.high);
  writer->Uint(id.value.low);
}

template <typename Id>
Id ReadId(SnapshotReader* reader) {
  Id id;
  id.value.high = reader->Uint();
  id.value.low = reader->Uint();
  return id;
}

void Write(const Todo& todo, SnapshotWriter* writer) {
  const Action& action = todo.action;
  writer->Uint(static_cast<uint64_t>(action.kind));
  writer->Uint(action.cell);
  writer->Uint(action.seeds.size());
  for (const uint64_t seed : action.seeds) writer->Uint(seed);
  writer->Put(action.point);
  writer->Uint(action.until_step);
  writer->Uint(action.parent);
  writer->Uint(action.parent_step);
  writer->Text(action.reason);
  WriteId(todo.parent, writer);
}

Todo ReadTodo(SnapshotReader* reader) {
  Todo todo;
  Action& action = todo.action;
  action.kind = static_cast<Action::Kind>(reader->Uint());
  action.cell = reader->Uint();
  action.seeds.resize(reader->Size());
  for (uint64_t& seed : action.seeds) seed = reader->Uint();
  action.point = reader->TakePoint();
  action.until_step = reader->Uint();
  action.parent = reader->Uint();
  action.parent_step = reader->Uint();
  action.reason = reader->Text();
  todo.parent = ReadId<RunId>(reader);
  return todo;
}

void Write(const Unit& unit, SnapshotWriter* writer) {
  writer->Uint(unit.document);
  writer->Text(unit.stage);
  writer->Text(unit.key);
  writer->Uint(unit.parents.size());
  for (const RunNumber& parent : unit.parents) {
    WriteId(parent.sweep, writer);
    writer->Uint(parent.number);
  }
  writer->Uint(unit.extends.has_value() ? *unit.extends + 1 : 0);
  writer->Bool(unit.is_counted());
  if (!unit.is_counted()) writer->Text(unit.search->Snapshot());
  writer->Uint(unit.picks.size());
  for (const uint64_t pick : unit.picks) writer->Uint(pick);
  writer->Uint(unit.next);
  writer->Uint(unit.cells.size());
  for (const uint64_t cell : unit.cells) writer->Uint(cell);
  writer->Uint(unit.todo.size());
  for (const Todo& todo : unit.todo) Write(todo, writer);
}

// Its space comes with `make_space`.
Status Read(SnapshotReader* reader, const SpaceMaker& make_space, Driven* driven) {
  Unit unit;
  unit.document = reader->Uint();
  unit.stage = reader->Text();
  unit.key = reader->Text();
  unit.parents.resize(reader->Size());
  for (RunNumber& parent : unit.parents) {
    parent.sweep = ReadId<SweepId>(reader);
    parent.number = reader->Uint();
  }
  if (const uint64_t extends = reader->Uint(); extends > 0) unit.extends = extends - 1;
  const bool is_counted = reader->Bool();
  std::string snapshot;
  if (!is_counted) snapshot = reader->Text();
  std::vector<uint64_t> picks(reader->Size());
  for (uint64_t& pick : picks) pick = reader->Uint();
  const uint64_t next = reader->Uint();
  std::vector<uint64_t> cells(reader->Size());
  for (uint64_t& cell : cells) cell = reader->Uint();
  unit.todo.resize(reader->Size());
  for (Todo& todo : unit.todo) todo = ReadTodo(reader);
  if (!reader->ok() || unit.document >= driven->documents.size() ||
      unit.extends.value_or(0) > driven->units.size()) {
    return DataLoss("the stored state of a strategy is damaged");
  }
  SWITCHYARD_RETURN_IF_ERROR(make_space(*driven, &unit));
  if (unit.is_counted() != is_counted) {
    return DataLoss(StrCat("the stored state of stage ", unit.stage, " is of another strategy"));
  }
  if (!is_counted) SWITCHYARD_RETURN_IF_ERROR(unit.search->Restore(snapshot));
  if (!picks.empty()) unit.count = picks.size();
  unit.picks = std::move(picks);
  unit.next = next;
  unit.cells = std::move(cells);
  driven->units.push_back(std::move(unit));
  return OkStatus();
}

}  // namespace

bool Driven::has_stages() const { return !expansion().document().stages().empty(); }

void NumberCells(uint64_t count, Unit* unit, uint64_t* cells) {
  while (unit->cells.size() < count) unit->cells.push_back(++*cells);
}

Status GiveSpace(const api::Expansion& expansion, api::PlannedSpace space, Unit* unit) {
  unit->space = std::move(space);
  unit->objective = api::ReadObjective(unit->space.objective);
  if (unit->space.plan->is_drawn()) {
    SWITCHYARD_ASSIGN_OR_RETURN(unit->search, expansion.MakeSearch(unit->space));
  } else {
    unit->count = unit->space.plan->run_count();
  }
  return OkStatus();
}

Result<Driven> MakeDriven(std::shared_ptr<const api::Expansion> expansion) {
  Driven driven;
  driven.documents.push_back(expansion);
  for (const api::PlannedSpace& root : expansion->roots()) {
    Unit& unit = driven.units.emplace_back();
    unit.stage = root.stage;
    SWITCHYARD_RETURN_IF_ERROR(GiveSpace(*expansion, root, &unit));
    if (unit.is_counted()) NumberCells(root.plan->cell_count(), &unit, &driven.cells);
  }
  for (const v1::StageSpec& stage : expansion->document().stages()) {
    if (stage.has_needs()) driven.consumers.push_back({.stage = stage.id(), .foreign = {}});
  }
  driven.is_dirty = true;
  return driven;
}

std::string PackDriven(const Driven& driven) {
  SnapshotWriter writer;
  writer.Text(kFormat);
  // The newest one is the sweep's.
  writer.Uint(driven.documents.size() - 1);
  for (size_t i = 0; i + 1 < driven.documents.size(); ++i) {
    writer.Text(driven.documents[i]->sweep().spec);
  }
  // Before the units, whose spaces are made from them.
  writer.Uint(driven.parents.size());
  for (const Parent& parent : driven.parents) {
    writer.Uint(parent.number);
    writer.Uint(parent.unit);
    writer.Uint(parent.cell);
    writer.Put(parent.point);
  }
  writer.Uint(driven.units.size());
  for (const Unit& unit : driven.units) Write(unit, &writer);
  writer.Uint(driven.open.size());
  for (const Open& open : driven.open) {
    WriteId(open.run, &writer);
    writer.Uint(open.number);
    writer.Uint(open.unit);
    writer.Uint(open.cell);
    writer.Uint(open.seed);
    writer.Put(open.point);
    writer.Bool(open.pin.has_value());
    if (!open.pin.has_value()) continue;
    WriteId(open.pin->run, &writer);
    writer.Uint(open.pin->epoch.value);
    writer.Uint(open.pin->step);
  }
  writer.Uint(driven.consumers.size());
  for (const Consumer& consumer : driven.consumers) {
    writer.Text(consumer.stage);
    WriteId(consumer.foreign, &writer);
    writer.Uint(consumer.taken);
    writer.Bool(consumer.has_all);
  }
  writer.Uint(driven.cells);
  return std::move(writer).Take();
}

Result<Driven> UnpackDriven(std::string_view bytes, std::shared_ptr<const api::Expansion> newest,
                            const SpaceMaker& make_space) {
  Driven driven;
  SnapshotReader reader(bytes);
  if (const std::string format = reader.Text(); format != kFormat) {
    return DataLoss(StrCat("the stored state of a strategy begins with \"",
                           EscapeForTerminal(format), "\"; wanted is \"", kFormat, "\""));
  }
  for (size_t n = reader.Size(); n > 0; --n) {
    SWITCHYARD_ASSIGN_OR_RETURN(std::shared_ptr<const api::Expansion> document,
                                api::Expansion::Parse(reader.Text()));
    driven.documents.push_back(std::move(document));
  }
  driven.documents.push_back(std::move(newest));
  driven.parents.resize(reader.Size());
  for (Parent& parent : driven.parents) {
    parent.number = reader.Uint();
    parent.unit = reader.Uint();
    parent.cell = reader.Uint();
    parent.point = reader.TakePoint();
  }
  driven.parents_committed = driven.parents.size();
  for (size_t n = reader.Size(); n > 0; --n) {
    SWITCHYARD_RETURN_IF_ERROR(Read(&reader, make_space, &driven));
  }
  driven.open.resize(reader.Size());
  for (Open& open : driven.open) {
    open.run = ReadId<RunId>(&reader);
    open.number = reader.Uint();
    open.unit = reader.Uint();
    open.cell = reader.Uint();
    open.seed = reader.Uint();
    open.point = reader.TakePoint();
    if (!reader.Bool()) continue;
    open.pin.emplace();
    open.pin->run = ReadId<RunId>(&reader);
    open.pin->epoch.value = reader.Uint();
    open.pin->step = reader.Uint();
  }
  driven.consumers.resize(reader.Size());
  for (Consumer& consumer : driven.consumers) {
    consumer.stage = reader.Text();
    consumer.foreign = ReadId<SweepId>(&reader);
    consumer.taken = reader.Uint();
    consumer.has_all = reader.Bool();
  }
  driven.cells = reader.Uint();
  SWITCHYARD_RETURN_IF_ERROR(reader.Finish());
  const auto is_unit = [&](const auto& each) { return each.unit < driven.units.size(); };
  if (!std::ranges::all_of(driven.open, is_unit) || !std::ranges::all_of(driven.parents, is_unit)) {
    return DataLoss("the stored state of a strategy names a unit that is not there");
  }
  return driven;
}

}  // namespace switchyard::app
