#include "server/search/median_stop.h"

#include <algorithm>

#include "common/base/strings.h"

namespace switchyard::search {

std::string MedianStop::Observe(uint64_t cell, uint64_t step, double score) {
  Live& live = live_[cell];
  live.best = live.count == 0 ? score : std::min(live.best, score);
  live.sum += score;
  ++live.count;
  std::vector<double>& means = means_[step];
  std::string reason;
  if (step >= grace_steps_ && means.size() >= kOthersMin) {
    const size_t half = means.size() / 2;
    const double median =
        means.size() % 2 == 1 ? means[half] : means[half - 1] + (means[half] - means[half - 1]) / 2;
    if (live.best > median) {
      reason = StrCat("step ", step, ": the best so far is worse than the median of ", means.size(),
                      " others");
    }
  }
  const double mean = live.sum / static_cast<double>(live.count);
  means.insert(std::ranges::upper_bound(means, mean), mean);
  return reason;
}

void MedianStop::Save(SnapshotWriter* writer) const {
  writer->Uint(live_.size());
  for (const auto& [cell, live] : live_) {
    writer->Uint(cell);
    writer->Double(live.sum);
    writer->Uint(live.count);
    writer->Double(live.best);
  }
  writer->Uint(means_.size());
  for (const auto& [step, means] : means_) {
    writer->Uint(step);
    writer->Uint(means.size());
    for (const double mean : means) writer->Double(mean);
  }
}

void MedianStop::Load(SnapshotReader* reader) {
  const size_t cells = reader->Size();
  for (size_t i = 0; i < cells; ++i) {
    Live& live = live_[reader->Uint()];
    live.sum = reader->Double();
    live.count = reader->Uint();
    live.best = reader->Double();
  }
  const size_t steps = reader->Size();
  for (size_t i = 0; i < steps; ++i) {
    std::vector<double>& means = means_[reader->Uint()];
    means.resize(reader->Size());
    for (double& mean : means) mean = reader->Double();
  }
}

}  // namespace switchyard::search
