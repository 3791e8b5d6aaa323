#include "server/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/strings.h"

namespace switchyard::search {
namespace {

constexpr std::string_view kFormat = "switchyard-search-1";

std::unique_ptr<Strategy> MakeStrategy(const StrategyInput& input) {
  switch (input.settings->method) {
    case Method::kGrid:
      return MakeGrid(input);
    case Method::kRandom:
    case Method::kSobol:
      return MakeDraws(input);
    case Method::kTpe:
      return MakeTpe(input);
    case Method::kAsha:
      return MakeAsha(input);
    case Method::kHyperband:
      return MakeHyperband(input);
    case Method::kPbt:
      return MakePbt(input);
    case Method::kExternal:
      return MakeExternal(input);
  }
  SWITCHYARD_CHECK(false) << "method " << static_cast<int>(input.settings->method);
  return nullptr;
}

}  // namespace

Search::Search(Settings settings, Space space, Predicate allowed)
    : settings_(std::move(settings)), space_(std::move(space)), allowed_(std::move(allowed)) {}

Result<std::unique_ptr<Search>> Search::Make(Settings settings, Space space, Predicate allowed) {
  SWITCHYARD_RETURN_IF_ERROR(space.Check());
  SWITCHYARD_RETURN_IF_ERROR(CheckSettings(settings, space));
  std::unique_ptr<Search> made(
      new Search(std::move(settings), std::move(space), std::move(allowed)));
  made->MakeArms();
  return made;
}

void Search::MakeArms() {
  std::vector<size_t> axes;
  for (const std::string& name : settings_.per) {
    axes.push_back(static_cast<size_t>(
        std::ranges::find(space_.dimensions, name, &Dimension::name) - space_.dimensions.begin()));
  }
  std::vector<Space> spaces = {space_};
  for (const size_t axis : axes) {
    std::vector<Space> product;
    for (const Space& before : spaces) {
      for (uint64_t value = 0; value < space_.dimensions[axis].choices; ++value) {
        product.push_back(before);
        product.back().dimensions[axis].fixed = static_cast<double>(value);
      }
    }
    spaces = std::move(product);
  }
  const bool is_by_seed = settings_.method == Method::kPbt;
  for (Space& space : spaces) {
    for (size_t s = 0; s < (is_by_seed ? settings_.seeds.size() : 1); ++s) {
      Arm& arm = arms_.emplace_back();
      arm.space = std::make_unique<Space>(space);
      arm.seeds = is_by_seed ? std::vector<uint64_t>{settings_.seeds[s]} : settings_.seeds;
      if (settings_.grace_steps.has_value()) arm.median.emplace(*settings_.grace_steps);
      arm.strategy = MakeStrategy({.settings = &settings_,
                                   .space = arm.space.get(),
                                   .allowed = &allowed_,
                                   .population_seed = is_by_seed ? arm.seeds[0] : 0});
    }
  }
}

double Search::ScoreOf(double value) const {
  if (!std::isfinite(value)) return kWorstScore;
  return settings_.is_maximized ? -value : value;
}

double Search::ValueOf(double score) const {
  if (score == kWorstScore) return std::numeric_limits<double>::quiet_NaN();
  return settings_.is_maximized ? -score : score;
}

bool Search::is_exhausted() const {
  if (settings_.method == Method::kExternal) return is_closed_;
  return std::ranges::all_of(arms_, [](const Arm& arm) { return arm.strategy->is_exhausted(); });
}

bool Search::IsPaused(uint64_t cell, uint64_t seed) const {
  const auto found = cells_.find(cell);
  if (found == cells_.end()) return false;
  return std::ranges::any_of(found->second.replicates, [seed](const Replicate& replicate) {
    return replicate.seed == seed && replicate.is_paused && !replicate.has_ended;
  });
}

bool Search::gave_up() const {
  return std::ranges::any_of(arms_, [](const Arm& arm) { return arm.strategy->gave_up(); });
}

Actions Search::Propose(uint64_t limit) {
  Actions actions;
  const auto room_taken = [&actions] {
    return static_cast<uint64_t>(std::ranges::count_if(actions, [](const Action& action) {
      return action.kind == Action::Kind::kPropose || action.kind == Action::Kind::kResume;
    }));
  };
  if (arms_.size() == 1) {
    if (limit == 0) return actions;
    Actions wanted;
    arms_[0].strategy->Propose(limit, &wanted);
    Translate(0, std::move(wanted), &actions);
    return actions;
  }
  // One at a time from the arm that has least, so that all advance alike.
  std::vector<bool> has_none(arms_.size());
  uint64_t taken = 0;
  while (taken < limit) {
    size_t next = arms_.size();
    for (size_t i = 0; i < arms_.size(); ++i) {
      if (has_none[i]) continue;
      if (next == arms_.size() || arms_[i].proposed < arms_[next].proposed) next = i;
    }
    if (next == arms_.size()) break;
    Actions wanted;
    arms_[next].strategy->Propose(1, &wanted);
    Translate(next, std::move(wanted), &actions);
    const uint64_t now = room_taken();
    has_none[next] = now == taken;
    taken = now;
  }
  return actions;
}

void Search::AddCell(size_t arm_index, Action action, Actions* actions) {
  Arm& arm = arms_[arm_index];
  const uint64_t number = ++proposed_;
  ++arm.proposed;
  Cell& cell = cells_[number];
  cell.arm = arm_index;
  cell.local = action.cell;
  cell.until_step = action.until_step;
  for (const uint64_t seed : arm.seeds) cell.replicates.push_back({.seed = seed});
  arm.open[action.cell] = number;
  action.cell = number;
  action.seeds = arm.seeds;
  if (action.parent != 0) action.parent = arm.open.at(action.parent);
  actions->push_back(std::move(action));
}

void Search::Translate(size_t arm_index, Actions wanted, Actions* actions) {
  for (Action& action : wanted) {
    if (action.kind == Action::Kind::kPropose) {
      AddCell(arm_index, std::move(action), actions);
      continue;
    }
    const auto open = arms_[arm_index].open.find(action.cell);
    if (open == arms_[arm_index].open.end()) continue;
    action.cell = open->second;
    Cell& cell = cells_.at(action.cell);
    if (cell.is_stopping) continue;
    if (action.kind == Action::Kind::kStop) {
      cell.is_stopping = true;
      cell.pending.clear();
    } else {
      cell.until_step = action.until_step;
      for (Replicate& replicate : cell.replicates) replicate.is_paused = false;
    }
    actions->push_back(std::move(action));
  }
}

Actions Search::Observe(uint64_t number, uint64_t seed, uint64_t step, double value) {
  Actions actions;
  const auto found = cells_.find(number);
  if (found == cells_.end()) return actions;
  Cell& cell = found->second;
  const auto replicate = std::ranges::find(cell.replicates, seed, &Replicate::seed);
  if (replicate == cell.replicates.end() || replicate->has_ended ||
      (replicate->has_reported && step <= replicate->last_step)) {
    return actions;
  }
  replicate->has_reported = true;
  replicate->last_step = step;
  if (cell.is_stopping) return actions;
  auto& scores = cell.pending[step];
  scores.resize(cell.replicates.size());
  scores[static_cast<size_t>(replicate - cell.replicates.begin())] = ScoreOf(value);
  Deliver(number, &actions);
  // After the strategy has spoken: it may have let the cell go on, or ended it.
  if (!cell.is_stopping && cell.until_step > 0 && step >= cell.until_step &&
      !replicate->is_paused) {
    replicate->is_paused = true;
    actions.push_back({.kind = Action::Kind::kPause,
                       .cell = number,
                       .seeds = {seed},
                       .point = {},
                       .until_step = cell.until_step,
                       .reason = StrCat("has reached step ", cell.until_step)});
  }
  return actions;
}

void Search::Deliver(uint64_t number, Actions* actions) {
  Cell& cell = cells_.at(number);
  while (!cell.pending.empty() && !cell.is_stopping) {
    const auto [step, scores] = *cell.pending.begin();
    double sum = 0;
    size_t counted = 0;
    for (size_t i = 0; i < cell.replicates.size(); ++i) {
      const Replicate& replicate = cell.replicates[i];
      if (scores[i].has_value()) {
        sum += *scores[i];
        ++counted;
      } else if (replicate.has_ended) {
        if (replicate.end != RunEnd::Kind::kWorst) continue;
        sum = kWorstScore;
        ++counted;
      } else if (replicate.last_step <= step) {
        return;  // still to come
      }
    }
    cell.pending.erase(cell.pending.begin());
    if (counted == 0) continue;
    cell.has_score = true;
    cell.step = step;
    cell.score = sum / static_cast<double>(counted);
    Arm& arm = arms_[cell.arm];
    Actions wanted;
    arm.strategy->Observe(cell.local, step, cell.score, &wanted);
    if (arm.median.has_value()) {
      std::string reason = arm.median->Observe(cell.local, step, cell.score);
      if (!reason.empty()) {
        wanted.push_back({.kind = Action::Kind::kStop,
                          .cell = cell.local,
                          .seeds = {},
                          .point = {},
                          .reason = std::move(reason)});
      }
    }
    Translate(cell.arm, std::move(wanted), actions);
  }
}

Actions Search::Finish(uint64_t number, uint64_t seed, const RunEnd& end) {
  Actions actions;
  const auto found = cells_.find(number);
  if (found == cells_.end()) return actions;
  Cell& cell = found->second;
  const auto replicate = std::ranges::find(cell.replicates, seed, &Replicate::seed);
  if (replicate == cell.replicates.end() || replicate->has_ended) return actions;
  replicate->has_ended = true;
  replicate->end = end.kind;
  replicate->end_score = end.kind == RunEnd::Kind::kSucceeded ? ScoreOf(end.value) : kWorstScore;
  Deliver(number, &actions);
  double sum = 0;
  uint64_t counted = 0;
  bool is_stopped = false;
  for (const Replicate& each : cell.replicates) {
    if (!each.has_ended) return actions;
    is_stopped |= each.end == RunEnd::Kind::kStopped;
    if (each.end != RunEnd::Kind::kSucceeded && each.end != RunEnd::Kind::kWorst) continue;
    sum += each.end_score;
    ++counted;
  }
  CellEnd cell_end{.step = cell.step};
  if (is_stopped) {
    cell_end.kind = CellEnd::Kind::kStopped;
    cell_end.score = cell.has_score ? cell.score : kWorstScore;
  } else {
    cell_end.score = counted > 0 ? sum / static_cast<double>(counted) : kWorstScore;
    cell_end.kind =
        cell_end.score < kWorstScore ? CellEnd::Kind::kCompleted : CellEnd::Kind::kFailed;
  }
  if (settings_.method == Method::kExternal) {
    ended_.push_back({.cell = number,
                      .end = cell_end.kind,
                      .step = cell_end.step,
                      .value = ValueOf(cell_end.score)});
  }
  const size_t arm_index = cell.arm;
  const uint64_t local = cell.local;
  Arm& arm = arms_[arm_index];
  arm.open.erase(local);
  cells_.erase(found);
  if (arm.median.has_value()) arm.median->Finish(local);
  Actions wanted;
  arm.strategy->Finish(local, cell_end, &wanted);
  Translate(arm_index, std::move(wanted), &actions);
  return actions;
}

Status Search::CheckExternal() const {
  if (settings_.method == Method::kExternal) return OkStatus();
  return FailedPrecondition(
      StrCat("the sweep's strategy is ", MethodName(settings_.method), ", not external"));
}

Result<Actions> Search::Tell(const Point& point) {
  SWITCHYARD_RETURN_IF_ERROR(CheckExternal());
  if (is_closed_) return FailedPrecondition("the sweep's external strategy is closed");
  SWITCHYARD_RETURN_IF_ERROR(space_.CheckPoint(point));
  if (!allowed_(point)) return InvalidArgument("the point breaks a constraint of the sweep");
  Actions actions;
  AddCell(0, {.cell = arms_[0].proposed + 1, .seeds = {}, .point = point}, &actions);
  return actions;
}

Result<Actions> Search::TellStop(uint64_t cell) {
  SWITCHYARD_RETURN_IF_ERROR(CheckExternal());
  const auto found = cells_.find(cell);
  if (found == cells_.end()) return NotFound(StrCat("cell ", cell, " has no run that goes on"));
  Actions actions;
  Translate(0,
            {{.kind = Action::Kind::kStop,
              .cell = found->second.local,
              .seeds = {},
              .point = {},
              .reason = "stopped from outside"}},
            &actions);
  return actions;
}

Status Search::Close() {
  SWITCHYARD_RETURN_IF_ERROR(CheckExternal());
  is_closed_ = true;
  return OkStatus();
}

std::vector<CellReport> Search::Reports(uint64_t since) const {
  std::vector<CellReport> reports;
  if (settings_.method != Method::kExternal) return reports;
  for (uint64_t i = since; i < ended_.size(); ++i) reports.push_back(ended_[i]);
  for (const auto& [number, cell] : cells_) {
    if (!cell.has_score) continue;
    reports.push_back({.cell = number, .end = {}, .step = cell.step, .value = ValueOf(cell.score)});
  }
  return reports;
}

std::string Search::Snapshot() const {
  SnapshotWriter writer;
  writer.Text(kFormat);
  writer.Text(MethodName(settings_.method));
  writer.Uint(settings_.seeds.size());
  for (const uint64_t seed : settings_.seeds) writer.Uint(seed);
  writer.Uint(proposed_);
  writer.Bool(is_closed_);
  writer.Uint(arms_.size());
  for (const Arm& arm : arms_) {
    writer.Uint(arm.proposed);
    if (arm.median.has_value()) arm.median->Save(&writer);
    arm.strategy->Save(&writer);
  }
  writer.Uint(ended_.size());
  for (const CellReport& report : ended_) {
    writer.Uint(report.cell);
    writer.Uint(static_cast<uint64_t>(*report.end));
    writer.Uint(report.step);
    writer.Double(report.value);
  }
  writer.Uint(cells_.size());
  for (const auto& [number, cell] : cells_) {
    writer.Uint(number);
    writer.Uint(cell.arm);
    writer.Uint(cell.local);
    writer.Uint(cell.until_step);
    writer.Bool(cell.is_stopping);
    writer.Bool(cell.has_score);
    writer.Uint(cell.step);
    writer.Double(cell.score);
    for (const Replicate& replicate : cell.replicates) {
      writer.Uint(replicate.last_step);
      writer.Bool(replicate.has_reported);
      writer.Bool(replicate.is_paused);
      writer.Bool(replicate.has_ended);
      writer.Uint(static_cast<uint64_t>(replicate.end));
      writer.Double(replicate.end_score);
    }
    writer.Uint(cell.pending.size());
    for (const auto& [step, scores] : cell.pending) {
      writer.Uint(step);
      writer.Put(scores);
    }
  }
  return std::move(writer).Take();
}

Status Search::Restore(std::string_view snapshot) {
  SnapshotReader reader(snapshot);
  if (const std::string format = reader.Text(); format != kFormat) {
    return DataLoss(StrCat("the strategy's stored state begins with \"", EscapeForTerminal(format),
                           "\"; wanted is \"", kFormat, "\""));
  }
  if (const std::string method = reader.Text(); method != MethodName(settings_.method)) {
    return FailedPrecondition(StrCat("the stored state is of strategy ", EscapeForTerminal(method),
                                     ", the sweep's is ", MethodName(settings_.method)));
  }
  std::vector<uint64_t> seeds(reader.Size());
  for (uint64_t& seed : seeds) seed = reader.Uint();
  if (seeds != settings_.seeds) {
    return FailedPrecondition("the stored state has other replicates than the sweep");
  }
  proposed_ = reader.Uint();
  is_closed_ = reader.Bool();
  if (const size_t arms = reader.Size(); arms != arms_.size()) {
    return FailedPrecondition(
        StrCat("the stored state has ", arms, " arms, the sweep has ", arms_.size()));
  }
  for (Arm& arm : arms_) {
    arm.proposed = reader.Uint();
    if (arm.median.has_value()) arm.median->Load(&reader);
    arm.strategy->Load(&reader);
  }
  ended_.resize(reader.Size());
  for (CellReport& report : ended_) {
    report.cell = reader.Uint();
    report.end = static_cast<CellEnd::Kind>(reader.Uint());
    report.step = reader.Uint();
    report.value = reader.Double();
  }
  const size_t cells = reader.Size();
  for (size_t i = 0; i < cells; ++i) {
    const uint64_t number = reader.Uint();
    Cell& cell = cells_[number];
    cell.arm = reader.Uint();
    if (cell.arm >= arms_.size()) return DataLoss("the strategy's stored state names no such arm");
    Arm& arm = arms_[cell.arm];
    cell.local = reader.Uint();
    arm.open[cell.local] = number;
    cell.until_step = reader.Uint();
    cell.is_stopping = reader.Bool();
    cell.has_score = reader.Bool();
    cell.step = reader.Uint();
    cell.score = reader.Double();
    for (const uint64_t seed : arm.seeds) {
      Replicate& replicate = cell.replicates.emplace_back();
      replicate.seed = seed;
      replicate.last_step = reader.Uint();
      replicate.has_reported = reader.Bool();
      replicate.is_paused = reader.Bool();
      replicate.has_ended = reader.Bool();
      replicate.end = static_cast<RunEnd::Kind>(reader.Uint());
      replicate.end_score = reader.Double();
    }
    const size_t pending = reader.Size();
    for (size_t p = 0; p < pending; ++p) {
      const uint64_t step = reader.Uint();
      Point scores = reader.TakePoint();
      scores.resize(cell.replicates.size());
      cell.pending[step] = std::move(scores);
    }
  }
  return reader.Finish();
}

}  // namespace switchyard::search
