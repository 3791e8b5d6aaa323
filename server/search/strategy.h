#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/rng.h"
#include "common/base/status.h"
#include "server/search/snapshot.h"
#include "server/search/space.h"

namespace switchyard::search {

enum class Method : uint8_t {
  kGrid = 1,
  kRandom = 2,
  kSobol = 3,
  kTpe = 4,
  kAsha = 5,
  kHyperband = 6,
  kPbt = 7,
  kExternal = 8,
};
std::string_view MethodName(Method method);

enum class AshaRule : uint8_t { kStop = 1, kPromote = 2 };

// What a sweep asks of its strategy. Steps are training steps.
struct Settings {
  Method method = Method::kRandom;
  uint64_t seed = 0;
  // Draws of random, sobol, tpe and asha; with `per`, of each arm.
  uint64_t cells = 0;
  uint64_t startup = 10;                // tpe: cells that have ended before it models
  uint64_t min_steps = 0;               // asha, hyperband: the first rung
  uint64_t eta = 3;                     // asha, hyperband: 1 of eta goes on
  AshaRule rule = AshaRule::kStop;      // asha
  uint64_t population = 0;              // pbt
  uint64_t every_steps = 0;             // pbt: length of a generation
  double quantile = 0.25;               // pbt: share that is replaced, and that is copied
  double perturb = 1.2;                 // pbt: factor
  std::optional<uint64_t> grace_steps;  // median_stop, with random, sobol and tpe
  // Of a run: its length, and the steps between evaluations (0: one, at the end).
  uint64_t steps = 0;
  uint64_t eval_steps = 0;
  // Names of categorical dimensions; each combination of their values is an arm.
  std::vector<std::string> per;
  // Replicates of each cell.
  std::vector<uint64_t> seeds = {1};
  bool is_maximized = false;
};

// kInvalidArgument, naming the field, its value and what would be right.
Status CheckSettings(const Settings& settings, const Space& space);

// The first evaluation at or after `step`; `steps` when there is none before the end.
uint64_t EvaluationAt(uint64_t step, const Settings& settings);
// Steps min, min * eta, min * eta^2, ... below the run's length, moved to the next evaluation.
std::vector<uint64_t> RungSteps(const Settings& settings);

// What a strategy wants done. Cells are numbered from 1.
struct Action {
  enum class Kind : uint8_t {
    kPropose = 1,  // a new cell with a run for each of `seeds`
    kStop = 2,     // for good
    kPause = 3,    // the run of (cell, seeds[0]): it has reached its budget
    kResume = 4,   // from where it was paused
  };
  Kind kind = Kind::kPropose;
  uint64_t cell = 0;
  std::vector<uint64_t> seeds;
  Point point;
  // Runs shall be paused once they have reported this step; 0: run to the end.
  uint64_t until_step = 0;
  // A new cell that continues this one's checkpoint at `parent_step`; 0: a fresh one.
  uint64_t parent = 0;
  uint64_t parent_step = 0;
  std::string reason;

  bool operator==(const Action&) const = default;
};
using Actions = std::vector<Action>;

// True for points that meet the sweep's constraints. Pure.
using Predicate = std::function<bool(const Point&)>;

// Scores are smaller where better; this one is of what is no number, failed, or never reported.
inline constexpr double kWorstScore = std::numeric_limits<double>::infinity();

// How a cell ended.
struct CellEnd {
  enum class Kind : uint8_t { kCompleted = 1, kStopped = 2, kFailed = 3 };
  Kind kind = Kind::kCompleted;
  double score = 0;
  uint64_t step = 0;  // the last one reported
};

// One arm's strategy. Cells are numbered from 1 in order of proposal, scores are means over
// replicates and smaller is better; infinity is worst, and what is not a number never arrives.
// Pure: equal calls in equal order, equal actions; nothing is drawn but by RandomKey from (seed,
// number of the draw). Emits kPropose, kStop and kResume.
class Strategy {
 public:
  virtual ~Strategy() = default;
  // Adds at most `limit` new or resumed cells: as many as there is room to run now.
  virtual void Propose(uint64_t limit, Actions* actions) = 0;
  // Steps rise within a cell.
  virtual void Observe(uint64_t cell, uint64_t step, double score, Actions* actions) = 0;
  // Once a cell; also for those that the strategy stopped.
  virtual void Finish(uint64_t cell, const CellEnd& end, Actions* actions) = 0;
  // Whatever happens, Propose adds nothing any more.
  virtual bool is_exhausted() const = 0;
  // No point that meets the constraints was found.
  virtual bool gave_up() const { return false; }
  virtual void Save(SnapshotWriter* writer) const = 0;
  virtual void Load(SnapshotReader* reader) = 0;
};

// What a strategy is made of. `space` and `allowed` outlive it.
struct StrategyInput {
  const Settings* settings = nullptr;
  const Space* space = nullptr;
  const Predicate* allowed = nullptr;
  uint64_t population_seed = 0;  // pbt
};

std::unique_ptr<Strategy> MakeGrid(const StrategyInput& input);
std::unique_ptr<Strategy> MakeDraws(const StrategyInput& input);  // random, sobol
std::unique_ptr<Strategy> MakeTpe(const StrategyInput& input);
std::unique_ptr<Strategy> MakeAsha(const StrategyInput& input);
std::unique_ptr<Strategy> MakeHyperband(const StrategyInput& input);
std::unique_ptr<Strategy> MakePbt(const StrategyInput& input);
std::unique_ptr<Strategy> MakeExternal(const StrategyInput& input);

}  // namespace switchyard::search
