// The strategies in the reducer's turns: what they hear, and when a sweep is exhausted.
#include "server/app/strategies.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "server/api/batch.h"
#include "server/app/reducer.h"
#include "server/store/chunks.h"

namespace switchyard::app {
namespace {

// Passes of one turn: each one carries out what the one before led to.
constexpr int kPassesMax = 100;

search::RunEnd::Kind KindOf(scheduler::RunState state, scheduler::EndClass end_class) {
  switch (state) {
    case scheduler::RunState::kSucceeded:
      return search::RunEnd::Kind::kSucceeded;
    case scheduler::RunState::kStoppedEarly:
      return search::RunEnd::Kind::kStopped;
    case scheduler::RunState::kFailed:
      return end_class == scheduler::EndClass::kGuard || end_class == scheduler::EndClass::kOom ||
                     end_class == scheduler::EndClass::kTimeout
                 ? search::RunEnd::Kind::kWorst
                 : search::RunEnd::Kind::kLost;
    default:
      return search::RunEnd::Kind::kLost;
  }
}

double ScalarAt(const store::ChunkColumns& columns, size_t point) {
  double value = 0;
  std::memcpy(&value, columns.values.data() + point * sizeof(double), sizeof(double));
  return value;
}

}  // namespace

bool IsAdaptive(const search::Settings& settings) {
  return settings.grace_steps.has_value() ||
         (settings.method != search::Method::kRandom && settings.method != search::Method::kSobol);
}

void Strategies::Clear() {
  driven_.clear();
  failed_.clear();
  watched_.clear();
  ended_.clear();
}

Status Strategies::Start(SweepId sweep, std::shared_ptr<const api::Expansion> expansion,
                         const std::map<std::string, SweepId>& needs) {
  SWITCHYARD_ASSIGN_OR_RETURN(Driven driven, MakeDriven(std::move(expansion)));
  for (Consumer& consumer : driven.consumers) {
    if (const auto found = needs.find(consumer.stage); found != needs.end()) {
      consumer.foreign = found->second;
    }
  }
  Keep(sweep, std::move(driven));
  return OkStatus();
}

Status Strategies::Load(SweepId sweep, std::shared_ptr<const api::Expansion> expansion,
                        std::string_view state) {
  SWITCHYARD_ASSIGN_OR_RETURN(Driven driven, UnpackDriven(state, std::move(expansion),
                                                          [this](const Driven& before, Unit* unit) {
                                                            return MakeSpace(before, unit);
                                                          }));
  for (const Open& each : driven.open) {
    watched_[each.run].insert(sweep);
    // A run that ended in a commit without a strategy.
    const scheduler::Run* run = host_.state->FindRun(each.run);
    const bool is_live = run != nullptr && !IsTerminal(run->status.state);
    if (is_live || std::ranges::find(ended_, each.run, &Ended::run) != ended_.end()) continue;
    ended_.push_back(EndOf(each.run));
  }
  Keep(sweep, std::move(driven));
  return OkStatus();
}

void Strategies::Keep(SweepId sweep, Driven driven) {
  driven_.insert_or_assign(sweep, std::move(driven));
}

Driven* Strategies::Find(SweepId id) {
  const auto known = driven_.find(id);
  if (known != driven_.end()) return &known->second;
  const scheduler::Sweep* sweep = host_.state->FindSweep(id);
  if (sweep == nullptr || !sweep->row.is_drawn || failed_.contains(id)) return nullptr;
  const auto load = [&]() -> Status {
    SWITCHYARD_ASSIGN_OR_RETURN(const store::SweepInfo info,
                                host_.store->FindSweep(id.value.ToString(), /*with_spec=*/true));
    SWITCHYARD_ASSIGN_OR_RETURN(std::shared_ptr<const api::Expansion> expansion,
                                api::Expansion::Parse(info.row.spec));
    SWITCHYARD_ASSIGN_OR_RETURN(const std::string state, host_.store->GetStrategyState(id));
    return Load(id, std::move(expansion), state);
  };
  if (const Status status = load(); !status.ok()) {
    failed_.insert(id);
    LogError("strategy of sweep ", id.value.ToString(), ": ", status.ToString());
    return nullptr;
  }
  return &driven_.at(id);
}

void Strategies::Watch(SweepId sweep, Driven* driven, Open open) {
  watched_[open.run].insert(sweep);
  driven->open.push_back(std::move(open));
}

void Strategies::Take(Driven* driven, size_t index, search::Actions actions) {
  Unit& unit = driven->units[index];
  driven->is_dirty = true;
  for (search::Action& action : actions) {
    Todo todo{.action = std::move(action), .parent = {}};
    if (todo.action.kind == search::Action::Kind::kPropose) {
      NumberCells(todo.action.cell, &unit, &driven->cells);
    }
    // Its run is open now, and may have ended when its turn comes.
    for (const Open& open : driven->open) {
      const bool is_parent = open.unit == index && open.cell == todo.action.parent &&
                             open.seed == todo.action.seeds.front();
      if (todo.action.parent != 0 && is_parent) todo.parent = open.run;
    }
    unit.todo.push_back(std::move(todo));
  }
}

void Strategies::Note(const scheduler::Decision& decision) {
  const size_t first = ended_.size();
  for (const scheduler::Change& change : decision.changes) {
    const auto* run = std::get_if<scheduler::RunStatus>(&change);
    if (run == nullptr || !IsTerminal(run->state)) continue;
    scheduler::EndClass end_class = scheduler::EndClass::kNone;
    for (const scheduler::Change& other : decision.changes) {
      const auto* attempt = std::get_if<scheduler::AttemptStatus>(&other);
      if (attempt != nullptr && attempt->epoch == run->current_epoch) {
        end_class = attempt->end_class;
      }
    }
    ended_.push_back({run->id, KindOf(run->state, end_class)});
  }
  // What ends together is heard in the order of the sweep: ids are drawn, and would leave it open.
  const auto number = [this](const Ended& ended) {
    const scheduler::Run* run = host_.state->FindRun(ended.run);
    return run == nullptr || run->links.empty() ? uint64_t{0} : run->links.front().number;
  };
  std::ranges::stable_sort(ended_.begin() + static_cast<std::ptrdiff_t>(first), ended_.end(), {},
                           number);
}

void Strategies::Observe(const scheduler::Run& run, const api::PreparedBatch& batch) {
  for (const scheduler::SweepLink& link : run.links) {
    Driven* driven = Find(link.sweep);
    if (driven == nullptr) continue;
    // What a strategy says about the points may change the list.
    std::vector<Open> opened;
    for (const Open& open : driven->open) {
      const Unit& unit = driven->units[open.unit];
      if (open.run == run.row.id && !unit.is_counted() && IsAdaptive(unit.search->settings())) {
        opened.push_back(open);
      }
    }
    for (const Open& open : opened) {
      Unit& unit = driven->units[open.unit];
      for (const scheduler::ChunkRow& chunk : batch.chunks) {
        if (chunk.is_vector || chunk.series != unit.objective.series) continue;
        const Result<store::ChunkColumns> columns = store::DecodeChunk(chunk.blob);
        if (!columns.ok()) {
          LogError("points of run ", run.row.id.value.ToString(), ": ",
                   columns.status().ToString());
          continue;
        }
        for (size_t i = 0; i < columns->size(); ++i) {
          Take(
              driven, open.unit,
              unit.search->Observe(open.cell, open.seed, columns->steps[i], ScalarAt(*columns, i)));
        }
      }
    }
  }
}

void Strategies::Finish(Turn& turn, const Ended& ended) {
  const auto watched = watched_.find(ended.run);
  if (watched == watched_.end()) return FinishRetried(ended);
  const std::set<SweepId> sweeps = std::move(watched->second);
  watched_.erase(watched);
  for (const SweepId id : sweeps) {
    Driven* driven = Find(id);
    if (driven == nullptr) continue;
    std::vector<Open> gone;
    std::erase_if(driven->open, [&](const Open& open) {
      if (open.run != ended.run) return false;
      gone.push_back(open);
      return true;
    });
    driven->is_dirty |= !gone.empty();
    for (const Open& open : gone) {
      if (open.pin.has_value() && host_.state->FindRun(open.pin->run) != nullptr) {
        turn.Decide(scheduler::PinCheckpoint{.checkpoint = *open.pin, .pinned = false});
      }
      const bool has_children = std::ranges::any_of(
          driven->consumers,
          [](const Consumer& consumer) { return consumer.foreign.value.is_nil(); });
      if (has_children && ended.kind == search::RunEnd::Kind::kSucceeded) {
        driven->parents.push_back(
            {.number = open.number, .unit = open.unit, .cell = open.cell, .point = open.point});
      }
      Unit& unit = driven->units[open.unit];
      if (unit.is_counted()) continue;
      const std::optional<double> value = host_.objective(ended.run, unit.objective);
      Take(
          driven, open.unit,
          unit.search->Finish(open.cell, open.seed,
                              {.kind = ended.kind,
                               .value = value.value_or(std::numeric_limits<double>::quiet_NaN())}));
    }
  }
}

void Strategies::FinishRetried(const Ended& ended) {
  const scheduler::Run* run = host_.state->FindRun(ended.run);
  if (run == nullptr || !run->row.parent.has_value() ||
      ended.kind != search::RunEnd::Kind::kSucceeded) {
    return;
  }
  for (const scheduler::SweepLink& link : run->links) {
    Driven* driven = Find(link.sweep);
    if (driven == nullptr || driven->consumers.empty()) continue;
    const auto info = host_.store->GetRuns(link.sweep, std::vector<uint64_t>{link.number}, {});
    if (!info.ok()) continue;
    const uint64_t wanted = info->front().link.cell;
    for (size_t unit = 0; unit < driven->units.size(); ++unit) {
      const std::vector<uint64_t>& cells = driven->units[unit].cells;
      const auto cell = std::ranges::find(cells, wanted);
      if (cell == cells.end()) continue;
      driven->parents.push_back({.number = link.number,
                                 .unit = unit,
                                 .cell = static_cast<uint64_t>(cell - cells.begin()) + 1,
                                 .point = {}});
      driven->is_dirty = true;
      break;
    }
  }
}

Strategies::Ended Strategies::EndOf(RunId run) {
  const Result<store::RunInfo> info = host_.store->FindRun(run.value.ToString());
  const Result<std::vector<store::AttemptInfo>> attempts = host_.store->ListAttempts(run);
  const scheduler::RunState state =
      info.ok() ? info->status.state : scheduler::RunState::kCancelled;
  scheduler::EndClass end_class = scheduler::EndClass::kNone;
  if (info.ok() && attempts.ok()) {
    for (const store::AttemptInfo& attempt : *attempts) {
      if (attempt.row.epoch == info->status.current_epoch) end_class = attempt.status.end_class;
    }
  }
  return {run, KindOf(state, end_class)};
}

void Strategies::Settle(Turn& turn) {
  runs_proposed_ = 0;
  // Those of a coordinator just started are read before the ends of this turn are looked at.
  for (const auto& [id, sweep] : host_.state->sweeps) {
    if (!sweep.row.is_drawn) continue;
    // What succeeded in earlier turns is committed: its rows can be read.
    if (Driven* driven = Find(id)) driven->parents_committed = driven->parents.size();
  }
  for (int pass = 0; pass < kPassesMax; ++pass) {
    bool has_moved = !ended_.empty();
    for (const Ended& ended : std::exchange(ended_, {})) Finish(turn, ended);
    std::vector<SweepId> drawn;
    for (const auto& [id, sweep] : host_.state->sweeps) {
      if (sweep.row.is_drawn && sweep.status.state <= scheduler::SweepState::kPaused) {
        drawn.push_back(id);
      }
    }
    for (const SweepId id : drawn) has_moved |= SettleOne(turn, id);
    if (!has_moved) break;
  }
  for (auto& [id, driven] : driven_) {
    if (!std::exchange(driven.is_dirty, false)) continue;
    turn.Write(scheduler::StrategyRow{.sweep = id, .state = PackDriven(driven)});
  }
  std::erase_if(driven_,
                [&](const auto& entry) { return host_.state->FindSweep(entry.first) == nullptr; });
}

bool Strategies::SettleOne(Turn& turn, SweepId id) {
  const scheduler::Sweep* sweep = host_.state->FindSweep(id);
  if (sweep == nullptr) return false;
  const bool is_active = sweep->status.state == scheduler::SweepState::kActive;
  Driven* driven = Find(id);
  if (driven == nullptr) {
    if (is_active) {
      turn.Decide(scheduler::SteerSweep{
          .sweep = id, .verb = scheduler::Verb::kPause, .reason = "its strategy cannot be read"});
    }
    return false;
  }
  bool has_moved = TakeParents(turn, id, driven);
  for (size_t unit = 0; unit < driven->units.size(); ++unit) {
    has_moved |= Carry(turn, id, driven, unit);
  }
  // The end of its last run may have completed it.
  if (host_.state->FindSweep(id) == nullptr) return has_moved;
  if (is_active) {
    has_moved |= HoldPaused(turn, id, *driven);
    for (size_t unit = 0; unit < driven->units.size(); ++unit) {
      has_moved |= AskForMore(turn, id, driven, unit);
    }
  }
  sweep = host_.state->FindSweep(id);
  if (sweep == nullptr || sweep->status.is_closed || !IsExhausted(*driven)) return has_moved;
  for (const Unit& unit : driven->units) {
    if (unit.is_counted() || !unit.search->gave_up()) continue;
    turn.Write(scheduler::HistoryRow{.at_ms = turn.now().unix_ms,
                                     .kind = "strategy_gave_up",
                                     .ref = id.value,
                                     .text = "no point of 1,000 draws meets the constraints"});
  }
  turn.Decide(scheduler::CloseSweep{.sweep = id});
  return true;
}

}  // namespace switchyard::app
