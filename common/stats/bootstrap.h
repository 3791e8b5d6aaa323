#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/stats/descriptive.h"

// Percentile bootstraps (analyses N5, N6, N16). A resample is an index vector; the same vectors
// serve every metric, cell and arm of one comparison, which is what makes it paired.
namespace switchyard::stats {

inline constexpr size_t kDefaultResamples = 10'000;

// Fills `indices` for resample number `r`: a pure function of r.
using IndexSource = std::function<void(size_t r, std::vector<uint32_t>& indices)>;

// n draws with replacement from 0..n-1.
IndexSource IidIndices(size_t n, uint64_t seed);

enum class BlockKind {
  // Blocks run over the end to the start, so that no element is drawn more rarely.
  kCircular,
  // Starts 0..n - length only.
  kMoving,
};
// ceil(n / length) blocks of consecutive indices, cut to n. 1 <= length <= n.
Result<IndexSource> BlockIndices(size_t n, size_t length, BlockKind kind, uint64_t seed);
// Given rows, for comparison with another implementation.
IndexSource GivenIndices(std::vector<std::vector<uint32_t>> rows);

// The mean of each resample.
std::vector<double> ResampledMeans(std::span<const double> values, size_t resamples,
                                   const IndexSource& source);
// Quantiles (1 - confidence) / 2 and its complement, linear interpolation.
Interval PercentileInterval(std::vector<double> statistics, double confidence);

struct Bootstrap {
  double estimate = 0;
  std::vector<double> statistics = {};  // one per resample
  // Too few units for an interval to be taken at its word: fewer than 20.
  bool is_small = false;

  Interval At(double confidence) const { return PercentileInterval(statistics, confidence); }
  // Smallest alpha whose (1 - 2 alpha) percentile interval lies inside (-margin, margin), at least
  // 1 / resamples.
  double EquivalenceP(double margin) const;
  // Smallest alpha whose (1 - alpha) percentile interval excludes 0, at least 2 / resamples.
  double DifferenceP() const;
};

// Mean over units; refused below 2 units or with a non-finite value.
Result<Bootstrap> BootstrapMean(std::span<const double> values, size_t resamples,
                                const IndexSource& source);

// Width of the block interval over that of the iid one, both at `confidence`; 0 / 0 is 1.
Result<double> BlockWidthRatio(std::span<const double> values, size_t length, BlockKind kind,
                               size_t resamples, double confidence, uint64_t seed);

// Differences by seed and batch, `values[seed * batches + batch]`. Seeds and batches are drawn in
// each resample, one batch vector for all seeds: the crossed form, since seeds share their text.
struct SeedBatch {
  size_t seeds = 0;
  size_t batches = 0;
  std::vector<double> values;
};
// `is_small` below 5 seeds. `block_length` 1 draws single batches.
Result<Bootstrap> CrossedBootstrap(const SeedBatch& differences, size_t resamples,
                                   size_t block_length, uint64_t seed);

}  // namespace switchyard::stats
