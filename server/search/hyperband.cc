#include <algorithm>
#include <map>
#include <utility>

#include "common/base/strings.h"
#include "server/search/sampler.h"
#include "server/search/strategy.h"

namespace switchyard::search {
namespace {

struct Arrived {
  double score = 0;
  uint64_t cell = 0;
};

struct Bracket {
  uint64_t cells = 0;           // to draw
  std::vector<uint64_t> rungs;  // steps
  uint64_t proposed = 0;
  size_t rung = 0;               // that its cells are on their way to
  uint64_t expected = 0;         // cells on their way
  std::vector<Arrived> entries;  // that have arrived, or ended on the way
};

// Hyperband (Li et al., JMLR 2018): brackets of successive halving that start with many cells and
// few steps, ..., few cells and all steps. In a bracket the best floor(n / eta) go on once all n
// have arrived. With s_max = floor(log_eta(steps / min)), bracket s begins with ceil((s_max + 1) /
// (s + 1) * eta^s) cells at steps * eta^-s.
class Hyperband final : public Strategy {
 public:
  explicit Hyperband(const StrategyInput& input)
      : eta_(input.settings->eta), sampler_(input, false) {
    const Settings& settings = *input.settings;
    uint64_t s_max = 0;
    for (uint64_t step = settings.min_steps; step <= settings.steps / eta_; step *= eta_) ++s_max;
    for (uint64_t s = s_max + 1; s-- > 0;) {
      Bracket& bracket = brackets_.emplace_back();
      uint64_t power = 1;  // eta^s
      for (uint64_t i = 0; i < s; ++i) power *= eta_;
      bracket.cells = ((s_max + 1) * power + s) / (s + 1);
      for (; power > 1; power /= eta_) {
        const uint64_t step = EvaluationAt(std::max<uint64_t>(settings.steps / power, 1), settings);
        if (step >= settings.steps) break;
        if (bracket.rungs.empty() || step > bracket.rungs.back()) bracket.rungs.push_back(step);
      }
      bracket.expected = bracket.cells;
    }
  }

  void Propose(uint64_t limit, Actions* actions) override {
    for (size_t b = 0; b < brackets_.size() && limit > 0; ++b) {
      Bracket& bracket = brackets_[b];
      for (; limit > 0 && bracket.proposed < bracket.cells; --limit) {
        std::optional<Point> point = sampler_.Next();
        if (!point.has_value()) {
          GiveUp(actions);
          return;
        }
        ++bracket.proposed;
        live_[++proposed_] = {.bracket = b};
        actions->push_back({.kind = Action::Kind::kPropose,
                            .cell = proposed_,
                            .seeds = {},
                            .point = *std::move(point),
                            .until_step = bracket.rungs.empty() ? 0 : bracket.rungs.front(),
                            .reason = StrCat("bracket ", b + 1, " of ", brackets_.size())});
      }
    }
  }

  void Observe(uint64_t cell, uint64_t step, double score, Actions* actions) override {
    const auto live = live_.find(cell);
    if (live == live_.end() || live->second.has_arrived) return;
    Bracket& bracket = brackets_[live->second.bracket];
    if (bracket.rung >= bracket.rungs.size() || step < bracket.rungs[bracket.rung]) return;
    live->second.has_arrived = true;
    bracket.entries.push_back({score, cell});
    Halve(live->second.bracket, actions);
  }

  void Finish(uint64_t cell, const CellEnd& end, Actions* actions) override {
    const auto live = live_.find(cell);
    if (live == live_.end()) return;
    const auto [number, has_arrived] = live->second;
    live_.erase(live);
    Bracket& bracket = brackets_[number];
    if (has_arrived || bracket.rung >= bracket.rungs.size()) return;
    bracket.entries.push_back(
        {end.kind == CellEnd::Kind::kCompleted ? end.score : kWorstScore, cell});
    Halve(number, actions);
  }

  bool is_exhausted() const override {
    return std::ranges::all_of(brackets_, [](const Bracket& bracket) {
      return bracket.proposed == bracket.cells && bracket.rung >= bracket.rungs.size();
    });
  }
  bool gave_up() const override { return sampler_.gave_up(); }

  void Save(SnapshotWriter* writer) const override {
    writer->Uint(proposed_);
    sampler_.Save(writer);
    writer->Uint(brackets_.size());
    for (const Bracket& bracket : brackets_) {
      writer->Uint(bracket.cells);
      writer->Uint(bracket.proposed);
      writer->Uint(bracket.rung);
      writer->Uint(bracket.expected);
      writer->Uint(bracket.entries.size());
      for (const Arrived& entry : bracket.entries) {
        writer->Double(entry.score);
        writer->Uint(entry.cell);
      }
    }
    writer->Uint(live_.size());
    for (const auto& [cell, live] : live_) {
      writer->Uint(cell);
      writer->Uint(live.bracket);
      writer->Bool(live.has_arrived);
    }
  }
  void Load(SnapshotReader* reader) override {
    proposed_ = reader->Uint();
    sampler_.Load(reader);
    const size_t brackets = reader->Size();
    for (size_t b = 0; b < brackets; ++b) {
      Bracket stored;
      stored.cells = reader->Uint();
      stored.proposed = reader->Uint();
      stored.rung = reader->Uint();
      stored.expected = reader->Uint();
      stored.entries.resize(reader->Size());
      for (Arrived& entry : stored.entries) {
        entry.score = reader->Double();
        entry.cell = reader->Uint();
      }
      if (b >= brackets_.size()) continue;
      stored.rungs = std::move(brackets_[b].rungs);
      brackets_[b] = std::move(stored);
    }
    const size_t live = reader->Size();
    for (size_t i = 0; i < live; ++i) {
      const uint64_t cell = reader->Uint();
      Live read{.bracket = reader->Uint(), .has_arrived = reader->Bool()};
      if (read.bracket < brackets_.size()) live_[cell] = read;
    }
  }

 private:
  struct Live {
    size_t bracket = 0;
    bool has_arrived = false;
  };

  // No more cells can be drawn: the brackets go on with those they have.
  void GiveUp(Actions* actions) {
    for (size_t b = 0; b < brackets_.size(); ++b) {
      Bracket& bracket = brackets_[b];
      if (bracket.proposed == bracket.cells) continue;
      bracket.cells = bracket.proposed;
      bracket.expected = bracket.proposed;
      if (bracket.proposed == 0) bracket.rung = bracket.rungs.size();
      Halve(b, actions);
    }
  }

  void Halve(size_t number, Actions* actions) {
    Bracket& bracket = brackets_[number];
    while (bracket.rung < bracket.rungs.size() && bracket.entries.size() == bracket.expected) {
      std::vector<Arrived> entries = std::move(bracket.entries);
      bracket.entries.clear();
      std::ranges::stable_sort(entries, {}, &Arrived::score);
      const uint64_t n = entries.size();
      const uint64_t keep = std::max<uint64_t>(n / eta_, 1);
      const std::string place = StrCat("bracket ", number + 1, ", rung ", bracket.rung + 1,
                                       " (step ", bracket.rungs[bracket.rung], "): ");
      ++bracket.rung;
      bracket.expected = 0;
      for (uint64_t rank = 0; rank < n; ++rank) {
        const auto [score, cell] = entries[rank];
        const auto live = live_.find(cell);
        if (live == live_.end()) continue;  // it has ended
        const std::string reason = StrCat(place, rank + 1, " of ", n, ", ", keep, " go on");
        if (rank < keep && score < kWorstScore) {
          live->second.has_arrived = false;
          ++bracket.expected;
          actions->push_back(
              {.kind = Action::Kind::kResume,
               .cell = cell,
               .seeds = {},
               .point = {},
               .until_step = bracket.rung < bracket.rungs.size() ? bracket.rungs[bracket.rung] : 0,
               .reason = reason});
        } else {
          live_.erase(live);
          actions->push_back({.kind = Action::Kind::kStop,
                              .cell = cell,
                              .seeds = {},
                              .point = {},
                              .reason = reason});
        }
      }
      if (bracket.expected == 0) bracket.rung = bracket.rungs.size();
    }
  }

  const uint64_t eta_;
  Sampler sampler_;
  std::vector<Bracket> brackets_;
  uint64_t proposed_ = 0;
  std::map<uint64_t, Live> live_;
};

}  // namespace

std::unique_ptr<Strategy> MakeHyperband(const StrategyInput& input) {
  return std::make_unique<Hyperband>(input);
}

}  // namespace switchyard::search
