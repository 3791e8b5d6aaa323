#include "server/app/strategies.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/strings.h"
#include "common/spec/sweep_plan.h"
#include "server/api/batch.h"
#include "server/api/strategy.h"
#include "server/app/reducer.h"
#include "server/scheduler/lease_policy.h"
#include "server/store/chunks.h"

namespace switchyard::app {
namespace {

using search::Action;

// Passes of one turn: each one carries out what the one before led to.
constexpr int kPassesMax = 100;
// Laying a run takes about a millisecond of the thread that answers heartbeats.
constexpr uint64_t kRunsPerTurn = 64;

bool IsAdaptive(const search::Settings& settings) {
  return settings.grace_steps.has_value() ||
         (settings.method != search::Method::kRandom && settings.method != search::Method::kSobol);
}

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

double ScalarAt(const store::ChunkColumns& columns, size_t point) {
  double value = 0;
  std::memcpy(&value, columns.values.data() + point * sizeof(double), sizeof(double));
  return value;
}

void Write(const Action& action, search::SnapshotWriter* writer) {
  writer->Uint(static_cast<uint64_t>(action.kind));
  writer->Uint(action.cell);
  writer->Uint(action.seeds.size());
  for (const uint64_t seed : action.seeds) writer->Uint(seed);
  writer->Put(action.point);
  writer->Uint(action.until_step);
  writer->Uint(action.parent);
  writer->Uint(action.parent_step);
  writer->Text(action.reason);
}

Action ReadAction(search::SnapshotReader* reader) {
  Action action;
  action.kind = static_cast<Action::Kind>(reader->Uint());
  action.cell = reader->Uint();
  action.seeds.resize(reader->Size());
  for (uint64_t& seed : action.seeds) seed = reader->Uint();
  action.point = reader->TakePoint();
  action.until_step = reader->Uint();
  action.parent = reader->Uint();
  action.parent_step = reader->Uint();
  action.reason = reader->Text();
  return action;
}

}  // namespace

void Strategies::Clear() {
  driven_.clear();
  failed_.clear();
  watched_.clear();
  ended_.clear();
}

Status Strategies::Start(SweepId sweep, std::shared_ptr<const api::Expansion> expansion) {
  return Load(sweep, std::move(expansion), "");
}

Status Strategies::Load(SweepId sweep, std::shared_ptr<const api::Expansion> expansion,
                        std::string_view state) {
  Driven driven;
  driven.expansion = std::move(expansion);
  driven.objective = api::ReadObjective(driven.expansion->sweep().objective);
  SWITCHYARD_ASSIGN_OR_RETURN(driven.search, driven.expansion->MakeSearch());
  driven.is_dirty = state.empty();
  if (!state.empty()) {
    search::SnapshotReader reader(state);
    const std::string snapshot = reader.Text();
    const size_t open = reader.Size();
    for (size_t i = 0; i < open; ++i) {
      Open& each = driven.open.emplace_back();
      each.run.value.high = reader.Uint();
      each.run.value.low = reader.Uint();
      each.number = reader.Uint();
      each.cell = reader.Uint();
      each.seed = reader.Uint();
    }
    driven.todo.resize(reader.Size());
    for (Action& action : driven.todo) action = ReadAction(&reader);
    SWITCHYARD_RETURN_IF_ERROR(reader.Finish());
    SWITCHYARD_RETURN_IF_ERROR(driven.search->Restore(snapshot));
    for (const Open& each : driven.open) watched_[each.run].insert(sweep);
  }
  // A run that ended in a commit without a strategy.
  for (const Open& each : driven.open) {
    const scheduler::Run* run = host_.state->FindRun(each.run);
    const bool is_live = run != nullptr && !IsTerminal(run->status.state);
    if (is_live || std::ranges::find(ended_, each.run, &Ended::run) != ended_.end()) continue;
    ended_.push_back(EndOf(each.run));
  }
  driven_.insert_or_assign(sweep, std::move(driven));
  return OkStatus();
}

std::string Strategies::Pack(const Driven& driven) {
  search::SnapshotWriter writer;
  writer.Text(driven.search->Snapshot());
  writer.Uint(driven.open.size());
  for (const Open& open : driven.open) {
    writer.Uint(open.run.value.high);
    writer.Uint(open.run.value.low);
    writer.Uint(open.number);
    writer.Uint(open.cell);
    writer.Uint(open.seed);
  }
  writer.Uint(driven.todo.size());
  for (const Action& action : driven.todo) Write(action, &writer);
  return std::move(writer).Take();
}

Strategies::Driven* Strategies::Find(SweepId id) {
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
  driven->open.push_back(open);
}

void Strategies::Take(Driven* driven, search::Actions actions) {
  driven->is_dirty = true;
  std::ranges::move(actions, std::back_inserter(driven->todo));
}

void Strategies::Note(const scheduler::Decision& decision) {
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
}

void Strategies::Observe(const scheduler::Run& run, const api::PreparedBatch& batch) {
  for (const scheduler::SweepLink& link : run.links) {
    Driven* driven = Find(link.sweep);
    if (driven == nullptr || !IsAdaptive(driven->search->settings())) continue;
    for (const scheduler::ChunkRow& chunk : batch.chunks) {
      if (chunk.is_vector || chunk.series != driven->objective.series) continue;
      const Result<store::ChunkColumns> columns = store::DecodeChunk(chunk.blob);
      if (!columns.ok()) {
        LogError("points of run ", run.row.id.value.ToString(), ": ", columns.status().ToString());
        continue;
      }
      for (size_t i = 0; i < columns->size(); ++i) {
        for (const Open& open : driven->open) {
          if (open.run != run.row.id) continue;
          Take(driven, driven->search->Observe(open.cell, open.seed, columns->steps[i],
                                               ScalarAt(*columns, i)));
        }
      }
    }
  }
}

void Strategies::Finish(const Ended& ended) {
  const auto watched = watched_.find(ended.run);
  if (watched == watched_.end()) return;
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
    const std::optional<double> value = host_.objective(ended.run, driven->objective);
    for (const Open& open : gone) {
      Take(driven, driven->search->Finish(
                       open.cell, open.seed,
                       {.kind = ended.kind,
                        .value = value.value_or(std::numeric_limits<double>::quiet_NaN())}));
    }
  }
}

Strategies::Ended Strategies::EndOf(RunId run) {
  const Result<store::RunInfo> info = host_.store->FindRun(run.value.ToString());
  const Result<std::vector<store::AttemptInfo>> attempts = host_.store->ListAttempts(run);
  const scheduler::RunState state =
      info.ok() ? info->status.state : scheduler::RunState::kCancelled;
  const bool has_attempt = attempts.ok() && !attempts->empty();
  return {run, KindOf(state, has_attempt ? attempts->back().status.end_class
                                         : scheduler::EndClass::kNone)};
}

void Strategies::Settle(Turn& turn) {
  runs_proposed_ = 0;
  // Those of a coordinator just started are read before the ends of this turn are looked at.
  for (const auto& [id, sweep] : host_.state->sweeps) {
    if (sweep.row.is_drawn) Find(id);
  }
  for (int pass = 0; pass < kPassesMax; ++pass) {
    bool has_moved = !ended_.empty();
    for (const Ended& ended : std::exchange(ended_, {})) Finish(ended);
    std::vector<SweepId> drawn;
    for (const auto& [id, sweep] : host_.state->sweeps) {
      if (sweep.row.is_drawn && sweep.status.state <= scheduler::SweepState::kPaused) {
        drawn.push_back(id);
      }
    }
    for (const SweepId id : drawn) {
      const scheduler::Sweep* sweep = host_.state->FindSweep(id);
      if (sweep == nullptr) continue;
      const bool is_active = sweep->status.state == scheduler::SweepState::kActive;
      Driven* driven = Find(id);
      if (driven == nullptr) {
        if (!is_active) continue;
        turn.Decide(scheduler::SteerSweep{
            .sweep = id, .verb = scheduler::Verb::kPause, .reason = "its strategy cannot be read"});
        continue;
      }
      has_moved |= Carry(turn, id, driven);
      // The end of its last run may have completed it.
      sweep = host_.state->FindSweep(id);
      if (sweep == nullptr) continue;
      if (is_active) {
        has_moved |= HoldPaused(turn, id, *driven);
        has_moved |= AskForMore(id, driven);
      }
      if (!driven->search->is_exhausted() || !driven->todo.empty() || sweep->status.is_closed) {
        continue;
      }
      if (driven->search->gave_up()) {
        turn.Write(scheduler::HistoryRow{.at_ms = turn.now().unix_ms,
                                         .kind = "strategy_gave_up",
                                         .ref = id.value,
                                         .text = "no point of 1,000 draws meets the constraints"});
      }
      turn.Decide(scheduler::CloseSweep{.sweep = id});
      has_moved = true;
    }
    if (!has_moved) break;
  }
  for (auto& [id, driven] : driven_) {
    if (!std::exchange(driven.is_dirty, false)) continue;
    turn.Write(scheduler::StrategyRow{.sweep = id, .state = Pack(driven)});
  }
  std::erase_if(driven_,
                [&](const auto& entry) { return host_.state->FindSweep(entry.first) == nullptr; });
}

uint64_t Strategies::Room(const scheduler::Sweep& sweep, const Driven& driven) const {
  std::set<RunId> live;
  for (const Open& open : driven.open) {
    const scheduler::Run* run = host_.state->FindRun(open.run);
    if (run == nullptr || IsTerminal(run->status.state) || run->status.pause_req ||
        run->status.state == scheduler::RunState::kPaused) {
      continue;
    }
    live.insert(open.run);
  }
  const search::Settings& settings = driven.search->settings();
  uint64_t capacity = scheduler::kProposalsMax;
  if (IsAdaptive(settings)) {
    // As many as can run: what it proposes later knows more.
    uint64_t slots = 0;
    for (const auto& [id, worker] : host_.state->workers) {
      if (worker.IsPlaceable()) slots += worker.row.slots.size();
    }
    capacity = std::max<uint64_t>(slots, 1);
  }
  if (const uint64_t most = driven.expansion->max_parallel(); most > 0) {
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

bool Strategies::AskForMore(SweepId id, Driven* driven) {
  if (driven->search->is_exhausted()) return false;
  const uint64_t room = Room(*host_.state->FindSweep(id), *driven);
  if (room == 0) return false;
  search::Actions actions = driven->search->Propose(room);
  if (actions.empty() && !driven->search->is_exhausted()) return false;
  Take(driven, std::move(actions));
  return true;
}

bool Strategies::Carry(Turn& turn, SweepId id, Driven* driven) {
  bool has_moved = false;
  search::Actions later;
  for (Action& action : std::exchange(driven->todo, {})) {
    const scheduler::Sweep* sweep = host_.state->FindSweep(id);
    if (sweep == nullptr) return true;
    const bool starts =
        action.kind == Action::Kind::kPropose || action.kind == Action::Kind::kResume;
    if (starts && sweep->status.state != scheduler::SweepState::kActive) {
      later.push_back(std::move(action));
      continue;
    }
    has_moved = true;
    turn.Write(scheduler::HistoryRow{
        .at_ms = turn.now().unix_ms,
        .kind = std::string(Word(action.kind)),
        .ref = id.value,
        .text = StrCat("cell ", action.cell, action.reason.empty() ? "" : ": ", action.reason)});
    if (action.kind == Action::Kind::kPropose) {
      Propose(turn, id, driven, action);
    } else {
      Steer(turn, id, driven, action);
    }
  }
  driven->is_dirty |= has_moved;
  std::ranges::move(driven->todo, std::back_inserter(later));
  driven->todo = std::move(later);
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
void Strategies::Steer(Turn& turn, SweepId id, Driven* driven, const Action& action) {
  if (action.kind == Action::Kind::kPause) return;
  const bool is_stop = action.kind == Action::Kind::kStop;
  const std::vector<Open> open = driven->open;
  for (const Open& each : open) {
    if (each.cell != action.cell) continue;
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
      Take(driven,
           driven->search->Finish(each.cell, each.seed, {.kind = search::RunEnd::Kind::kStopped}));
    }
  }
}

bool Strategies::HoldPaused(Turn& turn, SweepId id, const Driven& driven) {
  bool has_moved = false;
  for (const Open& open : driven.open) {
    if (!driven.search->IsPaused(open.cell, open.seed)) continue;
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

void Strategies::Propose(Turn& turn, SweepId id, Driven* driven, const Action& action) {
  for (const uint64_t seed : action.seeds) {
    ++runs_proposed_;
    ProposeRun(turn, id, driven, action, seed);
  }
}

void Strategies::ProposeRun(Turn& turn, SweepId id, Driven* driven, const Action& action,
                            uint64_t seed) {
  const scheduler::Sweep& sweep = *host_.state->FindSweep(id);
  Open open{.run = {}, .number = sweep.status.proposed + 1, .cell = action.cell, .seed = seed};
  Result<scheduler::PlannedRun> planned = driven->expansion->FromPoint(
      driven->search->space(), action.point, open.number, open.cell, open.seed, turn.now().unix_ms);
  Status status = planned.status();
  scheduler::Propose event{.sweep = id, .runs = {}};
  if (planned.ok()) {
    event.runs.push_back(*std::move(planned));
    status = host_.find_stored(sweep, &event.runs);
  }
  if (!status.ok()) {
    // A cell that cannot be laid ends at once, so that the strategy does not wait for it.
    turn.Write(scheduler::HistoryRow{.at_ms = turn.now().unix_ms,
                                     .kind = "strategy_cell_failed",
                                     .ref = id.value,
                                     .text = StrCat("cell ", action.cell, ": ", status.message())});
    LogError("sweep ", id.value.ToString(), ", cell ", action.cell, ": ", status.ToString());
    Take(driven,
         driven->search->Finish(open.cell, open.seed, {.kind = search::RunEnd::Kind::kLost}));
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
    Watch(id, driven, open);
    if (open.run != run.run.id) CatchUp(driven, open);
  }
}

void Strategies::CatchUp(Driven* driven, const Open& open) {
  if (IsAdaptive(driven->search->settings())) {
    store::CurveQuery query{.run = open.run, .series = driven->objective.series, .page = {}};
    do {
      Result<store::CurvePage> page = host_.store->GetCurve(query);
      if (!page.ok()) break;  // it has reported nothing yet
      for (const store::CurvePoint& point : page->points) {
        Take(driven, driven->search->Observe(open.cell, open.seed, point.step, point.value));
      }
      query.page = std::move(page->next);
    } while (!query.page.empty());
  }
  const scheduler::Run* run = host_.state->FindRun(open.run);
  if (run == nullptr || IsTerminal(run->status.state)) ended_.push_back(EndOf(open.run));
}

Result<Strategies::Driven*> Strategies::FindExternal(SweepId id) {
  const scheduler::Sweep* sweep = host_.state->FindSweep(id);
  if (sweep == nullptr || sweep->status.state > scheduler::SweepState::kPaused) {
    return FailedPrecondition(StrCat("sweep ", id.value.ToString(), " has ended"));
  }
  Driven* driven = Find(id);
  if (driven == nullptr || driven->search->settings().method != search::Method::kExternal) {
    return FailedPrecondition(
        StrCat("the strategy of sweep ", sweep->row.name, " is not external"));
  }
  return driven;
}

Result<api::AskReply> Strategies::Ask(SweepId id, uint64_t since) {
  SWITCHYARD_ASSIGN_OR_RETURN(Driven * driven, FindExternal(id));
  api::AskReply reply{.cells = driven->search->Reports(since),
                      .ended = since,
                      .is_closed = driven->search->is_closed()};
  for (const search::CellReport& cell : reply.cells) reply.ended += cell.end.has_value() ? 1 : 0;
  return reply;
}

Result<api::TellReply> Strategies::Tell(const api::TellInput& input) {
  SWITCHYARD_ASSIGN_OR_RETURN(Driven * driven, FindExternal(input.sweep));
  const std::string before = Pack(*driven);
  const std::shared_ptr<const api::Expansion> expansion = driven->expansion;
  api::TellReply reply;
  const auto apply = [&]() -> Status {
    for (size_t i = 0; i < input.cells.size(); ++i) {
      const auto tell = [&]() -> Status {
        SWITCHYARD_ASSIGN_OR_RETURN(
            const search::Point point,
            api::ParsePoint(expansion->plan().dimensions(), input.cells[i]));
        SWITCHYARD_ASSIGN_OR_RETURN(search::Actions actions, driven->search->Tell(point));
        for (const Action& action : actions) reply.cells.push_back(action.cell);
        Take(driven, std::move(actions));
        return OkStatus();
      };
      const Status status = tell();
      if (!status.ok()) return {status.code(), StrCat("cells[", i, "]: ", status.message())};
    }
    for (const uint64_t cell : input.stop) {
      SWITCHYARD_ASSIGN_OR_RETURN(search::Actions actions, driven->search->TellStop(cell));
      Take(driven, std::move(actions));
    }
    if (!input.close) return OkStatus();
    driven->is_dirty = true;
    return driven->search->Close();
  };
  if (const Status status = apply(); !status.ok()) {
    // As it was: all of the call or nothing.
    SWITCHYARD_RETURN_IF_ERROR(Load(input.sweep, expansion, before));
    driven_.at(input.sweep).is_dirty = true;
    return status;
  }
  return reply;
}

}  // namespace switchyard::app
