#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/stage.h"
#include "server/api/expansion.h"
#include "server/scheduler/state.h"
#include "server/search/search.h"

// What the coordinator knows of a sweep whose runs are proposed while it runs: its strategies, the
// groups of its stages, and what they wait for. Kept in one row (scheduler::StrategyRow).
namespace switchyard::app {

// A run of a sweep, as the sweep numbers it.
struct RunNumber {
  SweepId sweep;
  uint64_t number = 0;
  bool operator==(const RunNumber&) const = default;
};

// Something a strategy wants done. `parent`: the run that a fork goes on from.
struct Todo {
  search::Action action;
  RunId parent;
};

// One space that proposes runs: that of the sweep or of a stage without `needs`, that of one group
// of a stage's parents, or what an extension adds to one of these.
struct Unit {
  size_t document = 0;  // index of Driven::documents
  std::string stage;
  std::string key;                 // of the group; empty: it has no parents
  std::vector<RunNumber> parents;  // of the group
  std::optional<size_t> extends;   // counted: the unit to which it adds

  api::PlannedSpace space;
  api::ObjectiveFacts objective;
  std::unique_ptr<search::Search> search;  // null: its cells are counted
  // Counted: what it proposes, in order, as indices of the plan; empty: all of it.
  std::vector<uint64_t> picks;
  uint64_t next = 1;            // counted: position of the next run
  uint64_t count = 0;           // counted: how many runs
  std::vector<uint64_t> cells;  // numbers in the sweep of its cells, in order
  // Wanted, and not carried out while the sweep is paused or a fork's checkpoint is on its way.
  std::vector<Todo> todo;

  bool is_counted() const { return search == nullptr; }
  // It proposes nothing any more.
  bool is_exhausted() const {
    return is_counted() ? next > count : search->is_exhausted() && todo.empty();
  }
};

// A run that a unit waits for.
struct Open {
  RunId run;
  uint64_t number = 0;
  size_t unit = 0;
  uint64_t cell = 0;  // as the unit counts
  uint64_t seed = 0;  // as the document has it
  search::Point point;
  std::optional<scheduler::CheckpointRef> pin;  // that it began with, kept until it has ended
};

// A run of a stage that has succeeded.
struct Parent {
  uint64_t number = 0;
  size_t unit = 0;
  uint64_t cell = 0;
  search::Point point;
};

// A stage with `needs`.
struct Consumer {
  std::string stage;
  SweepId foreign;       // the sweep that its parents are of; nil: this one
  size_t taken = 0;      // of Driven::parents that are of the stage it needs, those looked at
  bool has_all = false;  // it waited for all of them, and has looked at them
};

struct Driven {
  std::vector<std::shared_ptr<const api::Expansion>> documents;  // the last one holds
  std::vector<Unit> units;
  std::vector<Open> open;  // by number
  std::vector<Parent> parents;
  std::vector<Consumer> consumers;  // in file order
  uint64_t cells = 0;               // numbers given to cells
  // Not stored: parents whose rows are committed, and whether there is something to write.
  size_t parents_committed = 0;
  bool is_dirty = false;

  const api::Expansion& expansion() const { return *documents.back(); }
  bool has_stages() const;
  // The number in the sweep of a unit's cell.
  uint64_t CellNumber(size_t unit, uint64_t cell) const { return units[unit].cells.at(cell - 1); }
};

// Of a sweep just submitted: its roots at their beginning.
Result<Driven> MakeDriven(std::shared_ptr<const api::Expansion> expansion);
// Gives a unit its plan and, where cells are drawn, a strategy at its beginning.
Status GiveSpace(const api::Expansion& expansion, api::PlannedSpace space, Unit* unit);
// Numbers for cells of a counted unit, or a drawn one's next cell.
void NumberCells(uint64_t count, Unit* unit, uint64_t* cells);

std::string PackDriven(const Driven& driven);
// kDataLoss: damaged. Units of groups and extensions get their spaces from `make_space`, in order;
// it sees the units before them.
using SpaceMaker = std::function<Status(const Driven&, Unit*)>;
Result<Driven> UnpackDriven(std::string_view bytes, std::shared_ptr<const api::Expansion> newest,
                            const SpaceMaker& make_space);

}  // namespace switchyard::app
