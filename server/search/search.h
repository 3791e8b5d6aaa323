#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/search/median_stop.h"
#include "server/search/strategy.h"

namespace switchyard::search {

// How a run ended, as far as a strategy cares.
struct RunEnd {
  enum class Kind : uint8_t {
    kSucceeded = 1,
    kStopped = 2,  // pruned
    kWorst = 3,    // guard, out of memory, out of time: an observation
    kLost = 4,     // cancelled, failed otherwise, quarantined: the run says nothing of its cell
  };
  Kind kind = Kind::kSucceeded;
  // The run's objective; kSucceeded only.
  double value = 0;
};

// What an external chooser is told of a cell.
struct CellReport {
  uint64_t cell = 0;
  // Empty: it goes on.
  std::optional<CellEnd::Kind> end;
  // The newest mean over its replicates, in the objective's own direction; after a completed cell's
  // end its objective. NaN: it has none that is finite.
  uint64_t step = 0;
  double value = 0;
};

// A sweep's strategy with its replicates and arms: the one thing that the coordinator drives.
// Values are of the objective in its own direction; those that are not finite rank worst. A
// strategy sees the mean over a cell's live replicates once all have reported a step; it stops and
// resumes whole cells. With `per`, each arm has a strategy of its own, and proposals go round the
// arms. pbt has a population per seed, its cells one run each.
//
// Pure: equal calls in equal order, equal actions; Restore(Snapshot()) between two calls changes
// nothing. Not thread-safe.
class Search {
 public:
  // `allowed` is true for points that meet the constraints.
  static Result<std::unique_ptr<Search>> Make(Settings settings, Space space, Predicate allowed);

  // New and resumed cells, at most `limit`: as many as there is room to run now. May stop cells.
  Actions Propose(uint64_t limit);
  // The objective of the run (cell, seed) at an evaluation. A step at or below one that was
  // reported is a repetition and changes nothing, nor does a run that is not known or has ended.
  Actions Observe(uint64_t cell, uint64_t seed, uint64_t step, double value);
  // Once a run; repetitions change nothing.
  Actions Finish(uint64_t cell, uint64_t seed, const RunEnd& end);

  // external only, else kFailedPrecondition. A new cell. kInvalidArgument: not a point of the
  // space, or one that breaks a constraint. kFailedPrecondition: closed.
  Result<Actions> Tell(const Point& point);
  // Stops the cell; kNotFound unless it runs.
  Result<Actions> TellStop(uint64_t cell);
  // Nothing more will be told.
  Status Close();
  // The cells that have ended, in order of ending, without the first `since`; behind them those
  // that go on and have reported. external only, else empty.
  std::vector<CellReport> Reports(uint64_t since) const;
  bool is_closed() const { return is_closed_; }

  // Propose adds nothing any more, whatever happens.
  bool is_exhausted() const;
  // The run waits at its budget until the strategy lets its cell go on.
  bool IsPaused(uint64_t cell, uint64_t seed) const;
  bool has_open_cells() const { return !cells_.empty(); }
  uint64_t cells_proposed() const { return proposed_; }
  // Some arm found no point that meets the constraints in kRedrawsMax draws.
  bool gave_up() const;
  const Settings& settings() const { return settings_; }
  const Space& space() const { return space_; }

  std::string Snapshot() const;
  // Into a Search just made, whose settings may have more `cells` than the one saved. kDataLoss for
  // damaged bytes, kFailedPrecondition for another method, other arms or other seeds; the Search is
  // then of no use.
  Status Restore(std::string_view snapshot);

 private:
  struct Replicate {
    uint64_t seed = 0;
    uint64_t last_step = 0;
    bool has_reported = false;
    bool is_paused = false;
    bool has_ended = false;
    RunEnd::Kind end = RunEnd::Kind::kSucceeded;
    double end_score = 0;
  };
  struct Cell {
    size_t arm = 0;
    uint64_t local = 0;
    uint64_t until_step = 0;
    bool is_stopping = false;
    // The newest mean.
    bool has_score = false;
    uint64_t step = 0;
    double score = 0;
    std::vector<Replicate> replicates;
    std::map<uint64_t, std::vector<std::optional<double>>> pending;  // by step, then replicate
  };
  struct Arm {
    std::unique_ptr<Space> space;
    std::unique_ptr<Strategy> strategy;
    std::optional<MedianStop> median;
    std::vector<uint64_t> seeds;
    uint64_t proposed = 0;
    std::map<uint64_t, uint64_t> open;  // the strategy's number -> ours
  };

  Search(Settings settings, Space space, Predicate allowed);
  void MakeArms();
  // Ask and tell go with the external strategy only.
  Status CheckExternal() const;
  double ScoreOf(double value) const;
  double ValueOf(double score) const;
  // Takes over what the arm's strategy wants, with our numbers.
  void Translate(size_t arm, Actions wanted, Actions* actions);
  void AddCell(size_t arm, Action action, Actions* actions);
  // Delivers the means that are complete.
  void Deliver(uint64_t number, Actions* actions);

  const Settings settings_;
  const Space space_;
  const Predicate allowed_;
  std::vector<Arm> arms_;
  uint64_t proposed_ = 0;
  bool is_closed_ = false;
  std::map<uint64_t, Cell> cells_;  // with a run that has not ended
  std::vector<CellReport> ended_;   // external
};

}  // namespace switchyard::search
