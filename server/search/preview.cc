#include "server/search/preview.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <utility>

#include "common/base/check.h"

namespace switchyard::search {
namespace {

using RunName = std::pair<uint64_t, uint64_t>;  // cell, seed

struct SimulatedRun {
  std::vector<Segment> history;
  uint64_t step = 0;
  double value = 0;
  bool is_running = false;
  bool is_paused = false;
  bool wants_stop = false;
  uint64_t order = 0;  // of the start, breaks ties of time
  uint64_t due = 0;    // time of the next evaluation, while it runs
};

class Simulation {
 public:
  Simulation(Search* search, uint64_t slots, const Curve& curve, bool is_guarded)
      : search_(*search), slots_(slots), curve_(curve), is_guarded_(is_guarded) {}

  PreviewResult Run() {
    for (;;) {
      Fill();
      const auto next = Next();
      if (next == runs_.end()) break;
      Advance(next->first);
    }
    result_.cells = search_.cells_proposed();
    result_.time = time_;
    FindBest();
    return std::move(result_);
  }

 private:
  uint64_t Busy() const {
    return static_cast<uint64_t>(
        std::ranges::count_if(runs_, [](const auto& run) { return run.second.is_running; }));
  }

  // Starts what is queued, and asks for more while there is room.
  void Fill() {
    for (;;) {
      while (!queue_.empty() && Busy() < slots_) {
        const auto run = runs_.find(queue_.front());
        queue_.pop_front();
        if (run == runs_.end() || run->second.is_running || run->second.is_paused) continue;
        run->second.is_running = true;
        run->second.order = ++started_;
        run->second.due = time_ + ToNext(run->second.step);
      }
      if (!queue_.empty() || search_.is_exhausted()) return;
      // A cell takes a slot for each replicate; one more cell at least, when any slot is free.
      const uint64_t free = slots_ - Busy();
      if (free == 0) return;
      const uint64_t width =
          search_.settings().method == Method::kPbt ? 1 : search_.settings().seeds.size();
      PreviewEvent event{.kind = PreviewEvent::Kind::kPropose,
                         .time = time_,
                         .limit = std::max<uint64_t>(free / width, 1)};
      event.end = {};
      event.actions = search_.Propose(event.limit);
      const Actions actions = event.actions;
      result_.events.push_back(std::move(event));
      Carry(actions);
      if (queue_.empty()) return;
    }
  }

  uint64_t ToNext(uint64_t step) const {
    const Settings& settings = search_.settings();
    return EvaluationAt(step + 1, settings) - step;
  }

  std::map<RunName, SimulatedRun>::iterator Next() {
    auto best = runs_.end();
    for (auto run = runs_.begin(); run != runs_.end(); ++run) {
      if (!run->second.is_running) continue;
      if (best == runs_.end() || std::pair(run->second.due, run->second.order) <
                                     std::pair(best->second.due, best->second.order)) {
        best = run;
      }
    }
    return best;
  }

  // To the run's next evaluation.
  void Advance(RunName name) {
    SimulatedRun& run = runs_.at(name);
    time_ = run.due;
    const uint64_t trained = ToNext(run.step);
    run.step += trained;
    result_.steps += trained;
    run.value = curve_(run.history, name.second, run.step);
    PreviewEvent event{.kind = PreviewEvent::Kind::kObserve,
                       .time = time_,
                       .cell = name.first,
                       .seed = name.second,
                       .step = run.step,
                       .value = run.value};
    const bool is_over = run.step >= search_.settings().steps;
    const bool is_ended = is_guarded_ && !std::isfinite(run.value);
    const Actions actions = search_.Observe(name.first, name.second, run.step, run.value);
    event.actions = actions;
    result_.events.push_back(std::move(event));
    if (is_over) {
      if (std::isfinite(run.value)) ends_[name.first].push_back(run.value);
      ++result_.runs_completed;
      End(name, {.kind = RunEnd::Kind::kSucceeded, .value = run.value});
    } else if (is_ended) {
      End(name, {.kind = RunEnd::Kind::kWorst});
    } else {
      run.due = time_ + ToNext(run.step);
    }
    Carry(actions);
  }

  void End(RunName name, const RunEnd& end) {
    points_[name.first] = runs_.at(name).history.back().point;
    runs_.erase(name);
    PreviewEvent event{.kind = PreviewEvent::Kind::kFinish,
                       .time = time_,
                       .cell = name.first,
                       .seed = name.second,
                       .end = end};
    const Actions actions = search_.Finish(name.first, name.second, end);
    event.actions = actions;
    result_.events.push_back(std::move(event));
    Carry(actions);
  }

  std::vector<RunName> RunsOf(uint64_t cell) const {
    std::vector<RunName> names;
    for (auto run = runs_.lower_bound({cell, 0}); run != runs_.end() && run->first.first == cell;
         ++run) {
      names.push_back(run->first);
    }
    return names;
  }

  void Carry(const Actions& actions) {
    for (const Action& action : actions) {
      switch (action.kind) {
        case Action::Kind::kPropose:
          for (const uint64_t seed : action.seeds) {
            SimulatedRun& run = runs_[{action.cell, seed}];
            if (action.parent != 0) {
              const auto parent = histories_.find({action.parent, seed});
              SWITCHYARD_CHECK(parent != histories_.end()) << "cell " << action.parent;
              run.history = parent->second;
            }
            run.step = action.parent_step;
            run.history.push_back({action.point, action.parent_step});
            histories_[{action.cell, seed}] = run.history;
            result_.steps_full += search_.settings().steps - run.step;
            queue_.push_back({action.cell, seed});
          }
          break;
        case Action::Kind::kStop:
          for (const RunName& name : RunsOf(action.cell)) {
            ++result_.runs_stopped;
            End(name, {.kind = RunEnd::Kind::kStopped});
          }
          break;
        case Action::Kind::kPause:
          if (const auto run = runs_.find({action.cell, action.seeds.front()});
              run != runs_.end()) {
            run->second.is_running = false;
            run->second.is_paused = true;
          }
          break;
        case Action::Kind::kResume:
          for (const RunName& name : RunsOf(action.cell)) {
            SimulatedRun& run = runs_.at(name);
            if (!run.is_paused) continue;
            run.is_paused = false;
            queue_.push_back(name);
          }
          break;
      }
    }
  }

  void FindBest() {
    const double sign = search_.settings().is_maximized ? -1 : 1;
    for (const auto& [cell, values] : ends_) {
      double sum = 0;
      for (const double value : values) sum += value;
      const double mean = sum / static_cast<double>(values.size());
      if (result_.best_cell != 0 && sign * mean >= sign * result_.best_value) continue;
      result_.best_cell = cell;
      result_.best_value = mean;
      result_.best_point = points_.at(cell);
    }
  }

  Search& search_;
  const uint64_t slots_;
  const Curve& curve_;
  const bool is_guarded_;
  PreviewResult result_;
  uint64_t time_ = 0;
  uint64_t started_ = 0;
  std::map<RunName, SimulatedRun> runs_;  // not ended
  std::map<RunName, std::vector<Segment>> histories_;
  std::deque<RunName> queue_;
  std::map<uint64_t, std::vector<double>> ends_;  // by cell
  std::map<uint64_t, Point> points_;
};

}  // namespace

PreviewResult Preview(Search* search, uint64_t slots, const Curve& curve, bool is_guarded) {
  SWITCHYARD_CHECK(slots > 0);
  return Simulation(search, slots, curve, is_guarded).Run();
}

}  // namespace switchyard::search
