#include <algorithm>
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "server/search/sampler.h"
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

struct Arrival {
  double score = 0;
  uint64_t cell = 0;
  bool is_promoted = false;
};

struct Rung {
  uint64_t step = 0;
  std::vector<Arrival> entries;  // in order of arrival
};

// How many entries are better than entry `index`: smaller, or equal and earlier.
uint64_t RankOf(const Rung& rung, size_t index) {
  uint64_t better = 0;
  for (size_t i = 0; i < rung.entries.size(); ++i) {
    const double a = rung.entries[i].score;
    const double b = rung.entries[index].score;
    better += a < b || (a == b && i < index) ? 1 : 0;
  }
  return better;
}

// Asynchronous successive halving (Li et al., "A system for massively parallel hyperparameter
// tuning", MLSys 2020). Rule stop: a cell that reaches a rung ends there unless it is among the
// best ceil(n / eta) of the n that have reached it so far. Rule promote: each cell pauses at its
// rung, and one of the best floor(n / eta) goes on when there is room; a new cell starts only when
// none can. A cell that ends before its next rung counts there as worst.
class Asha final : public Strategy {
 public:
  explicit Asha(const StrategyInput& input)
      : cells_(input.settings->cells),
        eta_(input.settings->eta),
        is_promoting_(input.settings->rule == AshaRule::kPromote),
        sampler_(input, false) {
    for (const uint64_t step : RungSteps(*input.settings)) rungs_.push_back({step, {}});
  }

  void Propose(uint64_t limit, Actions* actions) override {
    for (uint64_t i = 0; i < limit; ++i) {
      if (is_promoting_ && Promote(actions)) continue;
      if (proposed_ >= cells_ || sampler_.gave_up()) break;
      std::optional<Point> point = sampler_.Next();
      if (!point.has_value()) break;
      live_[++proposed_] = {};
      actions->push_back({.kind = Action::Kind::kPropose,
                          .cell = proposed_,
                          .seeds = {},
                          .point = *std::move(point),
                          .until_step = UntilStep(0)});
    }
    if (limit > 0) StopTheRest(actions);
  }

  void Observe(uint64_t cell, uint64_t step, double score, Actions* actions) override {
    const auto live = live_.find(cell);
    if (live == live_.end() || live->second.is_paused) return;
    while (live->second.rung < rungs_.size() && step >= rungs_[live->second.rung].step) {
      const size_t number = live->second.rung;
      Rung& rung = rungs_[number];
      rung.entries.push_back({score, cell});
      ++live->second.rung;
      if (is_promoting_) {
        live->second.is_paused = true;
        return;
      }
      const uint64_t n = rung.entries.size();
      const uint64_t rank = RankOf(rung, n - 1);
      const uint64_t keep = (n + eta_ - 1) / eta_;
      if (rank < keep && score < kWorstScore) continue;
      actions->push_back({.kind = Action::Kind::kStop,
                          .cell = cell,
                          .seeds = {},
                          .point = {},
                          .reason = StrCat("rung ", number + 1, " (step ", rung.step,
                                           "): ", rank + 1, " of ", n, ", ", keep, " go on")});
      live_.erase(live);
      return;
    }
  }

  void Finish(uint64_t cell, const CellEnd& end, Actions*) override {
    const auto live = live_.find(cell);
    if (live == live_.end()) return;
    if (!live->second.is_paused && live->second.rung < rungs_.size()) {
      rungs_[live->second.rung].entries.push_back(
          {end.kind == CellEnd::Kind::kCompleted ? end.score : kWorstScore, cell});
    }
    live_.erase(live);
  }

  bool is_exhausted() const override {
    if (proposed_ < cells_ && !sampler_.gave_up()) return false;
    return !is_promoting_ || live_.empty() || std::ranges::none_of(live_, [&](const auto& cell) {
      return cell.second.is_paused || cell.second.rung < rungs_.size();
    });
  }
  bool gave_up() const override { return sampler_.gave_up(); }

  void Save(SnapshotWriter* writer) const override {
    writer->Uint(proposed_);
    sampler_.Save(writer);
    writer->Uint(rungs_.size());
    for (const Rung& rung : rungs_) {
      writer->Uint(rung.entries.size());
      for (const Arrival& entry : rung.entries) {
        writer->Double(entry.score);
        writer->Uint(entry.cell);
        writer->Bool(entry.is_promoted);
      }
    }
    writer->Uint(live_.size());
    for (const auto& [cell, live] : live_) {
      writer->Uint(cell);
      writer->Uint(live.rung);
      writer->Bool(live.is_paused);
    }
  }
  void Load(SnapshotReader* reader) override {
    proposed_ = reader->Uint();
    sampler_.Load(reader);
    const size_t rungs = reader->Size();
    for (size_t r = 0; r < rungs; ++r) {
      // The rungs are the settings'; what was observed beyond them is dropped.
      std::vector<Arrival> entries(reader->Size());
      for (Arrival& entry : entries) {
        entry.score = reader->Double();
        entry.cell = reader->Uint();
        entry.is_promoted = reader->Bool();
      }
      if (r < rungs_.size()) rungs_[r].entries = std::move(entries);
    }
    const size_t live = reader->Size();
    for (size_t i = 0; i < live; ++i) {
      const uint64_t cell = reader->Uint();
      live_[cell].rung = reader->Uint();
      live_[cell].is_paused = reader->Bool();
    }
  }

 private:
  struct Live {
    size_t rung = 0;  // the next one
    bool is_paused = false;
  };

  uint64_t UntilStep(size_t rung) const {
    return is_promoting_ && rung < rungs_.size() ? rungs_[rung].step : 0;
  }

  // Resumes the best cell of the highest rung that may go on.
  bool Promote(Actions* actions) {
    for (size_t number = rungs_.size(); number-- > 0;) {
      Rung& rung = rungs_[number];
      const uint64_t keep = rung.entries.size() / eta_;
      size_t best = rung.entries.size();
      for (size_t i = 0; i < rung.entries.size(); ++i) {
        const Arrival& entry = rung.entries[i];
        if (entry.is_promoted || entry.score == kWorstScore || !live_.contains(entry.cell))
          continue;
        if (best == rung.entries.size() || entry.score < rung.entries[best].score) best = i;
      }
      if (best == rung.entries.size()) continue;
      const uint64_t rank = RankOf(rung, best);
      if (rank >= keep) continue;
      rung.entries[best].is_promoted = true;
      const uint64_t cell = rung.entries[best].cell;
      live_[cell].is_paused = false;
      actions->push_back(
          {.kind = Action::Kind::kResume,
           .cell = cell,
           .seeds = {},
           .point = {},
           .until_step = UntilStep(number + 1),
           .reason = StrCat("rung ", number + 1, " (step ", rung.step, "): ", rank + 1, " of ",
                            rung.entries.size(), ", ", keep, " go on")});
      return true;
    }
    return false;
  }

  // When nothing runs and nothing is left to start, the paused ones cannot go on any more.
  void StopTheRest(Actions* actions) {
    if (!is_promoting_ || (proposed_ < cells_ && !sampler_.gave_up())) return;
    for (const auto& [cell, live] : live_) {
      if (!live.is_paused) return;
    }
    for (const auto& [cell, live] : live_) {
      actions->push_back({.kind = Action::Kind::kStop,
                          .cell = cell,
                          .seeds = {},
                          .point = {},
                          .reason = StrCat("not promoted from rung ", live.rung, " (step ",
                                           rungs_[live.rung - 1].step, ")")});
    }
    live_.clear();
  }

  const uint64_t cells_;
  const uint64_t eta_;
  const bool is_promoting_;
  Sampler sampler_;
  std::vector<Rung> rungs_;
  uint64_t proposed_ = 0;
  std::map<uint64_t, Live> live_;
};

}  // namespace

std::unique_ptr<Strategy> MakeAsha(const StrategyInput& input) {
  return std::make_unique<Asha>(input);
}

}  // namespace switchyard::search
