// What strategies want, as decisions: new runs, forks, stops, pauses.
#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "server/app/reducer.h"
#include "server/app/strategies.h"
#include "server/scheduler/lease_policy.h"

namespace switchyard::app {
namespace {

using search::Action;

// Laying a run takes about a millisecond of the thread that answers heartbeats.
constexpr uint64_t kRunsPerTurn = 64;

std::string_view Word(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::kPropose:
      return "strategy_proposed";
    case Action::Kind::kStop:
      return "strategy_stopped";
    case Action::Kind::kPause:
      return "strategy_paused";
    case Action::Kind::kResume:
      return "strategy_resumed";
  }
  return "strategy";
}

}  // namespace

uint64_t Strategies::Room(const scheduler::Sweep& sweep, const Driven& driven, size_t index) const {
  const search::Settings& settings = driven.units[index].search->settings();
  std::set<RunId> live;
  for (const Open& open : driven.open) {
    const scheduler::Run* run = host_.state->FindRun(open.run);
    if (open.unit != index || run == nullptr || IsTerminal(run->status.state) ||
        run->status.pause_req || run->status.state == scheduler::RunState::kPaused) {
      continue;
    }
    live.insert(open.run);
  }
  uint64_t capacity = scheduler::kProposalsMax;
  if (IsAdaptive(settings)) {
    // As many as can run: what it proposes later knows more.
    uint64_t slots = 0;
    for (const auto& [id, worker] : host_.state->workers) {
      if (worker.IsPlaceable()) slots += worker.row.slots.size();
    }
    capacity = std::max<uint64_t>(slots, 1);
  }
  if (const uint64_t most = driven.expansion().max_parallel(); most > 0) {
    capacity = std::min(capacity, most);
  }
  if (host_.state->queued >= scheduler::kQueuedMax || live.size() >= capacity ||
      runs_proposed_ >= kRunsPerTurn ||
      sweep.status.proposed + settings.seeds.size() > scheduler::kDrawnRunsMax) {
    return 0;
  }
  const uint64_t room = std::min(capacity - live.size(), kRunsPerTurn - runs_proposed_);
  const uint64_t width =
      settings.method == search::Method::kPbt ? 1 : std::max<size_t>(settings.seeds.size(), 1);
  return std::max<uint64_t>(room / width, 1);
}

bool Strategies::AskForMore(Turn& turn, SweepId id, Driven* driven, size_t index) {
  Unit& unit = driven->units[index];
  if (unit.is_counted()) return ProposeCounted(turn, id, driven, index);
  if (unit.search->is_exhausted()) return false;
  const scheduler::Sweep* sweep = host_.state->FindSweep(id);
  const uint64_t room = sweep == nullptr ? 0 : Room(*sweep, *driven, index);
  if (room == 0) return false;
  search::Actions actions = unit.search->Propose(room);
  if (actions.empty() && !unit.search->is_exhausted()) return false;
  Take(driven, index, std::move(actions));
  return true;
}

bool Strategies::ProposeCounted(Turn& turn, SweepId id, Driven* driven, size_t index) {
  bool has_moved = false;
  while (driven->units[index].next <= driven->units[index].count && runs_proposed_ < kRunsPerTurn &&
         host_.state->queued < scheduler::kQueuedMax) {
    const scheduler::Sweep* sweep = host_.state->FindSweep(id);
    if (sweep == nullptr || sweep->status.state != scheduler::SweepState::kActive) break;
    Unit& unit = driven->units[index];
    const uint64_t at = unit.picks.empty() ? unit.next : unit.picks[unit.next - 1];
    ++unit.next;
    ++runs_proposed_;
    driven->is_dirty = true;
    has_moved = true;
    const uint64_t cells = unit.space.plan->cell_count();
    Open open{.run = {},
              .number = sweep->status.proposed + 1,
              .unit = index,
              .cell = (at - 1) % cells + 1,
              .seed = unit.space.plan->seeds()[(at - 1) / cells],
              .point = {},
              .pin = {}};
    Result<scheduler::PlannedRun> planned = driven->documents[unit.document]->FromIndex(
        unit.space, at, open.number, turn.now().unix_ms);
    Lay(turn, id, driven, std::move(open), std::move(planned));
  }
  return has_moved;
}

bool Strategies::Carry(Turn& turn, SweepId id, Driven* driven, size_t index) {
  bool has_moved = false;
  std::vector<Todo> later;
  for (Todo& todo : std::exchange(driven->units[index].todo, {})) {
    const scheduler::Sweep* sweep = host_.state->FindSweep(id);
    if (sweep == nullptr) return true;
    const Action& action = todo.action;
    const bool is_new = action.kind == Action::Kind::kPropose;
    const bool starts = is_new || action.kind == Action::Kind::kResume;
    if ((starts && sweep->status.state != scheduler::SweepState::kActive) ||
        (is_new && !Propose(turn, id, driven, index, todo))) {
      later.push_back(std::move(todo));
      continue;
    }
    has_moved = true;
    const uint64_t cell = driven->CellNumber(index, action.cell);
    turn.Write(scheduler::HistoryRow{
        .at_ms = turn.now().unix_ms,
        .kind = std::string(Word(action.kind)),
        .ref = id.value,
        .text = StrCat("cell ", cell, action.reason.empty() ? "" : ": ", action.reason)});
    if (!is_new) Steer(turn, id, driven, index, action);
  }
  driven->is_dirty |= has_moved;
  std::vector<Todo>& todo = driven->units[index].todo;
  std::ranges::move(todo, std::back_inserter(later));
  todo = std::move(later);
  return has_moved;
}

bool Strategies::IsShared(SweepId id, const Driven& driven, const Open& open) const {
  const bool is_of_other_cell = std::ranges::any_of(driven.open, [&](const Open& other) {
    return other.run == open.run && other.number != open.number;
  });
  const scheduler::Run* run = host_.state->FindRun(open.run);
  return is_of_other_cell ||
         (run != nullptr && std::ranges::any_of(run->links, [&](const scheduler::SweepLink& link) {
            const scheduler::Sweep* sweep = host_.state->FindSweep(link.sweep);
            return link.sweep != id && sweep != nullptr &&
                   sweep->status.state <= scheduler::SweepState::kPaused;
          }));
}

// Pauses are held, not sent once: HoldPaused.
void Strategies::Steer(Turn& turn, SweepId id, Driven* driven, size_t index, const Action& action) {
  if (action.kind == Action::Kind::kPause) return;
  const bool is_stop = action.kind == Action::Kind::kStop;
  const std::vector<Open> open = driven->open;
  for (const Open& each : open) {
    if (each.unit != index || each.cell != action.cell) continue;
    const scheduler::Run* run = host_.state->FindRun(each.run);
    if (run == nullptr || IsTerminal(run->status.state)) continue;
    if (!IsShared(id, *driven, each)) {
      turn.Decide(
          scheduler::SteerRun{.run = each.run,
                              .verb = is_stop ? scheduler::Verb::kPrune : scheduler::Verb::kResume,
                              .reason = action.reason});
    } else if (is_stop) {
      // What somebody else wants as well goes on; for this cell it has ended.
      std::erase_if(driven->open, [&](const Open& other) { return other.number == each.number; });
      Take(driven, index,
           driven->units[index].search->Finish(each.cell, each.seed,
                                               {.kind = search::RunEnd::Kind::kStopped}));
    }
  }
}

bool Strategies::HoldPaused(Turn& turn, SweepId id, const Driven& driven) {
  bool has_moved = false;
  for (const Open& open : driven.open) {
    const Unit& unit = driven.units[open.unit];
    if (unit.is_counted() || !unit.search->IsPaused(open.cell, open.seed)) continue;
    const scheduler::Run* run = host_.state->FindRun(open.run);
    if (run == nullptr || IsTerminal(run->status.state) || run->status.pause_req ||
        run->status.cancel_req || run->status.prune_req || IsShared(id, driven, open)) {
      continue;
    }
    turn.Decide(scheduler::SteerRun{
        .run = open.run, .verb = scheduler::Verb::kPause, .reason = "waits for its strategy"});
    has_moved = true;
  }
  return has_moved;
}

Result<scheduler::CheckpointRow> Strategies::FindForkPoint(const Todo& todo) {
  const scheduler::Run* run = host_.state->FindRun(todo.parent);
  std::vector<scheduler::CheckpointRow> rows;
  if (run != nullptr) {
    rows = run->checkpoints;
  } else {
    SWITCHYARD_ASSIGN_OR_RETURN(rows, host_.store->ListCheckpoints(todo.parent));
  }
  const scheduler::CheckpointRow* found = nullptr;
  for (const scheduler::CheckpointRow& row : rows) {
    if (row.state != scheduler::CheckpointState::kPublished || row.step < todo.action.parent_step) {
      continue;
    }
    if (found == nullptr || row.step < found->step) found = &row;
  }
  if (found != nullptr) return *found;
  const std::string what = StrCat("no checkpoint of run ", todo.parent.value.ToString(),
                                  " at or after step ", todo.action.parent_step);
  if (run != nullptr && !IsTerminal(run->status.state)) return Unavailable(what);
  return FailedPrecondition(what);
}

bool Strategies::Propose(Turn& turn, SweepId id, Driven* driven, size_t index, const Todo& todo) {
  std::optional<api::Expansion::ForkPoint> start;
  std::optional<scheduler::CheckpointRef> pin;
  Status status;
  if (todo.action.parent != 0) {
    const Result<scheduler::CheckpointRow> row = FindForkPoint(todo);
    if (row.status().code() == Code::kUnavailable) return false;
    status = row.status();
    if (row.ok()) {
      start = {.run = row->run, .step = row->step, .digest = row->digest};
      pin = {.run = row->run, .epoch = row->epoch, .step = row->step};
      turn.Decide(scheduler::PinCheckpoint{.checkpoint = *pin, .pinned = true});
    }
  }
  for (const uint64_t seed : todo.action.seeds) {
    const scheduler::Sweep& sweep = *host_.state->FindSweep(id);
    ++runs_proposed_;
    Open open{.run = {},
              .number = sweep.status.proposed + 1,
              .unit = index,
              .cell = todo.action.cell,
              .seed = seed,
              .point = todo.action.point,
              .pin = pin};
    const Unit& unit = driven->units[index];
    const auto plan = [&]() -> Result<scheduler::PlannedRun> {
      if (!status.ok()) return status;
      return driven->documents[unit.document]->FromPoint(unit.space, unit.search->space(),
                                                         open.point, open.number, open.cell,
                                                         open.seed, start, turn.now().unix_ms);
    };
    Result<scheduler::PlannedRun> planned = plan();
    Lay(turn, id, driven, std::move(open), std::move(planned));
  }
  return true;
}

void Strategies::Lay(Turn& turn, SweepId id, Driven* driven, Open open,
                     Result<scheduler::PlannedRun> planned) {
  const scheduler::Sweep& sweep = *host_.state->FindSweep(id);
  Status status = planned.status();
  scheduler::Propose event{.sweep = id, .runs = {}};
  if (planned.ok()) {
    planned->cell = driven->CellNumber(open.unit, open.cell);
    event.runs.push_back(*std::move(planned));
    status = host_.find_stored(sweep, &event.runs);
  }
  if (!status.ok()) {
    // A cell that cannot be laid ends at once, so that the strategy does not wait for it.
    const uint64_t cell = driven->CellNumber(open.unit, open.cell);
    turn.Write(scheduler::HistoryRow{.at_ms = turn.now().unix_ms,
                                     .kind = "strategy_cell_failed",
                                     .ref = id.value,
                                     .text = StrCat("cell ", cell, ": ", status.message())});
    LogError("sweep ", id.value.ToString(), ", cell ", cell, ": ", status.ToString());
    Unit& unit = driven->units[open.unit];
    if (unit.is_counted()) return;
    Take(driven, open.unit,
         unit.search->Finish(open.cell, open.seed, {.kind = search::RunEnd::Kind::kLost}));
    return;
  }
  scheduler::PlannedRun& run = event.runs.front();
  if (run.stored.has_value()) {
    // What ended in this turn stands in the rows as if it went on.
    const scheduler::Run* known = host_.state->FindRun(run.stored->first);
    if (known != nullptr && IsTerminal(known->status.state) &&
        known->status.state != scheduler::RunState::kSucceeded && !IsTerminal(run.stored->second)) {
      run.stored.reset();
    }
  }
  const scheduler::Decision decision = turn.Decide(event);
  for (const scheduler::Change& change : decision.changes) {
    const auto* link = std::get_if<scheduler::LinkRow>(&change);
    if (link == nullptr || link->number != open.number) continue;
    open.run = link->run;
    const bool existed = open.run != run.run.id;
    Watch(id, driven, open);
    if (existed) CatchUp(driven, open);
  }
}

void Strategies::CatchUp(Driven* driven, const Open& open) {
  Unit& unit = driven->units[open.unit];
  if (!unit.is_counted() && IsAdaptive(unit.search->settings())) {
    store::CurveQuery query{.run = open.run, .series = unit.objective.series, .page = {}};
    do {
      Result<store::CurvePage> page = host_.store->GetCurve(query);
      if (!page.ok()) break;  // it has reported nothing yet
      for (const store::CurvePoint& point : page->points) {
        Take(driven, open.unit,
             unit.search->Observe(open.cell, open.seed, point.step, point.value));
      }
      query.page = std::move(page->next);
    } while (!query.page.empty());
  }
  const scheduler::Run* run = host_.state->FindRun(open.run);
  if (run == nullptr || IsTerminal(run->status.state)) ended_.push_back(EndOf(open.run));
}

}  // namespace switchyard::app
