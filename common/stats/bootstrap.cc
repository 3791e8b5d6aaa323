#include "common/stats/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/rng.h"
#include "common/base/strings.h"

namespace switchyard::stats {
namespace {

constexpr size_t kFewUnits = 20;
constexpr size_t kFewSeeds = 5;

Status CheckUnits(std::span<const double> values) {
  if (values.size() < 2) {
    return FailedPrecondition(
        StrCat("bootstrap: ", values.size(), " units, at least 2 are needed"));
  }
  return CheckFinite(values, "bootstrap: unit");
}

}  // namespace

IndexSource IidIndices(size_t n, uint64_t seed) {
  const RandomKey key = RandomKey::For(seed, "bootstrap");
  return [n, key](size_t r, std::vector<uint32_t>& indices) {
    indices.resize(n);
    const RandomKey row = key.With(r);
    for (size_t i = 0; i < n; ++i) indices[i] = static_cast<uint32_t>(RandomBelow(row, i, n));
  };
}

Result<IndexSource> BlockIndices(size_t n, size_t length, BlockKind kind, uint64_t seed) {
  if (length < 1 || length > n) {
    return InvalidArgument(
        StrCat("block length ", length, ", wanted 1 to ", n, " (the number of batches)"));
  }
  const RandomKey key = RandomKey::For(seed, "block_bootstrap");
  const size_t starts = kind == BlockKind::kCircular ? n : n - length + 1;
  return IndexSource([=](size_t r, std::vector<uint32_t>& indices) {
    indices.resize(n);
    const RandomKey row = key.With(r);
    for (size_t i = 0; i < n; i += length) {
      const size_t start = RandomBelow(row, i / length, starts);
      for (size_t j = i; j < std::min(n, i + length); ++j) {
        indices[j] = static_cast<uint32_t>((start + j - i) % n);
      }
    }
  });
}

IndexSource GivenIndices(std::vector<std::vector<uint32_t>> rows) {
  return [rows = std::move(rows)](size_t r, std::vector<uint32_t>& indices) {
    SWITCHYARD_CHECK(r < rows.size()) << "resample " << r << " of " << rows.size();
    indices = rows[r];
  };
}

std::vector<double> ResampledMeans(std::span<const double> values, size_t resamples,
                                   const IndexSource& source) {
  std::vector<double> means(resamples);
  std::vector<uint32_t> indices;
  for (size_t r = 0; r < resamples; ++r) {
    source(r, indices);
    double sum = 0;
    for (const uint32_t i : indices) sum += values[i];
    means[r] = sum / static_cast<double>(indices.size());
  }
  return means;
}

Interval PercentileInterval(std::vector<double> statistics, double confidence) {
  std::sort(statistics.begin(), statistics.end());
  const double tail = (1 - confidence) / 2;
  return {.low = Quantile(statistics, tail), .high = Quantile(statistics, 1 - tail)};
}

double Bootstrap::EquivalenceP(double margin) const {
  // One-sided shares outside each bound; the larger is the smallest alpha of the interval form.
  size_t above = 0;
  size_t below = 0;
  for (const double statistic : statistics) {
    above += statistic >= margin ? 1 : 0;
    below += statistic <= -margin ? 1 : 0;
  }
  const auto total = static_cast<double>(statistics.size());
  return std::max(static_cast<double>(std::max(above, below)), 1.0) / total;
}

double Bootstrap::DifferenceP() const {
  size_t at_most = 0;
  size_t at_least = 0;
  for (const double statistic : statistics) {
    at_most += statistic <= 0 ? 1 : 0;
    at_least += statistic >= 0 ? 1 : 0;
  }
  const auto total = static_cast<double>(statistics.size());
  const auto smaller = static_cast<double>(std::min(at_most, at_least));
  return std::min(1.0, 2 * std::max(smaller, 1.0) / total);
}

Result<Bootstrap> BootstrapMean(std::span<const double> values, size_t resamples,
                                const IndexSource& source) {
  SWITCHYARD_RETURN_IF_ERROR(CheckUnits(values));
  return Bootstrap{.estimate = Mean(values),
                   .statistics = ResampledMeans(values, resamples, source),
                   .is_small = values.size() < kFewUnits};
}

Result<double> BlockWidthRatio(std::span<const double> values, size_t length, BlockKind kind,
                               size_t resamples, double confidence, uint64_t seed) {
  SWITCHYARD_RETURN_IF_ERROR(CheckUnits(values));
  SWITCHYARD_ASSIGN_OR_RETURN(IndexSource blocks, BlockIndices(values.size(), length, kind, seed));
  const double block =
      PercentileInterval(ResampledMeans(values, resamples, blocks), confidence).width();
  const double iid =
      PercentileInterval(ResampledMeans(values, resamples, IidIndices(values.size(), seed)),
                         confidence)
          .width();
  return iid > 0 ? block / iid : 1.0;
}

Result<Bootstrap> CrossedBootstrap(const SeedBatch& differences, size_t resamples,
                                   size_t block_length, uint64_t seed) {
  const size_t seeds = differences.seeds;
  const size_t batches = differences.batches;
  SWITCHYARD_CHECK(differences.values.size() == seeds * batches);
  if (seeds < 2 || batches < 2) {
    return FailedPrecondition(StrCat("crossed bootstrap: ", seeds, " seeds and ", batches,
                                     " batches, at least 2 of each are needed"));
  }
  SWITCHYARD_RETURN_IF_ERROR(CheckUnits(differences.values));
  SWITCHYARD_ASSIGN_OR_RETURN(IndexSource batch_source,
                              BlockIndices(batches, block_length, BlockKind::kCircular, seed));
  const RandomKey seed_key = RandomKey::For(seed, "crossed_bootstrap_seeds");
  Bootstrap result{.estimate = Mean(differences.values), .is_small = seeds < kFewSeeds};
  result.statistics.resize(resamples);
  std::vector<uint32_t> indices;
  std::vector<double> weight(batches);
  std::vector<double> by_seed(seeds);
  for (size_t r = 0; r < resamples; ++r) {
    batch_source(r, indices);
    std::fill(weight.begin(), weight.end(), 0);
    for (const uint32_t i : indices) weight[i] += 1;
    for (size_t s = 0; s < seeds; ++s) {
      const double* row = &differences.values[s * batches];
      double sum = 0;
      for (size_t b = 0; b < batches; ++b) sum += weight[b] * row[b];
      by_seed[s] = sum / static_cast<double>(batches);
    }
    double sum = 0;
    for (size_t s = 0; s < seeds; ++s) {
      sum += by_seed[RandomBelow(seed_key.With(r), s, seeds)];
    }
    result.statistics[r] = sum / static_cast<double>(seeds);
  }
  return result;
}

}  // namespace switchyard::stats
