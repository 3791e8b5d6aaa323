#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "server/search/snapshot.h"

namespace switchyard::search {

// The median stopping rule (Golovin et al., "Google Vizier", KDD 2017): a cell is stopped at a
// step, not before `grace_steps`, when its best score up to there is worse than the median of the
// other cells' mean scores up to that step. At least kOthersMin others must have reported the step.
class MedianStop {
 public:
  static constexpr size_t kOthersMin = 3;

  explicit MedianStop(uint64_t grace_steps) : grace_steps_(grace_steps) {}

  // Why the cell shall stop; empty: it goes on. Steps rise within a cell, smaller scores are
  // better.
  std::string Observe(uint64_t cell, uint64_t step, double score);
  void Finish(uint64_t cell) { live_.erase(cell); }
  void Save(SnapshotWriter* writer) const;
  void Load(SnapshotReader* reader);

 private:
  struct Live {
    double sum = 0;
    uint64_t count = 0;
    double best = 0;
  };
  const uint64_t grace_steps_;
  std::map<uint64_t, Live> live_;
  std::map<uint64_t, std::vector<double>> means_;  // by step, ascending
};

}  // namespace switchyard::search
