#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/rng.h"
#include "server/search/sobol.h"
#include "server/search/strategy.h"

namespace switchyard::search {

inline constexpr uint64_t kRedrawsMax = 1000;

// Points of the space by the number of the draw: draw n depends on the seed and n alone, and a
// dimension's values on its name (random) or place (sobol), not on the other dimensions.
class Sampler {
 public:
  // `is_sobol`: a scrambled Sobol sequence instead of independent draws.
  Sampler(const StrategyInput& input, bool is_sobol, uint64_t stream = 0);

  // The next point that meets the constraints. Empty, for good, once kRedrawsMax in a row do not.
  std::optional<Point> Next();
  bool gave_up() const { return gave_up_; }

  void Save(SnapshotWriter* writer) const;
  void Load(SnapshotReader* reader);

 private:
  const Space& space_;
  const Predicate& allowed_;
  std::vector<RandomKey> keys_;  // by dimension
  std::optional<SobolSequence> sobol_;
  uint64_t draws_ = 0;
  bool gave_up_ = false;
};

}  // namespace switchyard::search
