#include "common/stats/bootstrap.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

#include "common/base/rng.h"

namespace switchyard::stats {
namespace {

std::vector<double> Normals(uint64_t seed, size_t n, double phi = 0) {
  const RandomKey key = RandomKey::For(seed, "normals");
  std::vector<double> values;
  double last = 0;
  for (size_t i = 0; i < n; ++i) {
    last = phi * last + std::sqrt(1 - phi * phi) * RandomNormal(key, i);
    values.push_back(last);
  }
  return values;
}

TEST(BootstrapTest, CoversTheMeanAsOftenAsItSays) {
  const size_t trials = 400;
  size_t covered = 0;
  for (size_t i = 0; i < trials; ++i) {
    const std::vector<double> x = Normals(i, 200);
    covered += BootstrapMean(x, 1000, IidIndices(200, i))->At(0.95).Contains(0) ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(covered) / trials, 0.946, 0.034);
}

TEST(BootstrapTest, IsEquivariantAndZeroWideOnAConstant) {
  const std::vector<double> x = Normals(1, 30);
  std::vector<double> y;
  for (const double v : x) y.push_back(3 - 2 * v);
  const Interval a = BootstrapMean(x, 500, IidIndices(30, 7))->At(0.9);
  const Interval b = BootstrapMean(y, 500, IidIndices(30, 7))->At(0.9);
  EXPECT_NEAR(b.low, 3 - 2 * a.high, 1e-12);
  EXPECT_NEAR(b.high, 3 - 2 * a.low, 1e-12);
  EXPECT_EQ(BootstrapMean(std::vector<double>(5, 0.25), 100, IidIndices(5, 1))->At(0.95).width(),
            0);
}

TEST(BootstrapTest, RefusesTooFewOrNonFiniteUnits) {
  EXPECT_FALSE(BootstrapMean(std::vector<double>{1}, 10, IidIndices(1, 0)).ok());
  EXPECT_FALSE(BootstrapMean(std::vector<double>{1, INFINITY}, 10, IidIndices(2, 0)).ok());
  EXPECT_TRUE(BootstrapMean(Normals(1, 19), 10, IidIndices(19, 0))->is_small);
  EXPECT_FALSE(BootstrapMean(Normals(1, 20), 10, IidIndices(20, 0))->is_small);
  EXPECT_FALSE(BlockIndices(10, 0, BlockKind::kMoving, 0).ok());
  EXPECT_FALSE(BlockIndices(10, 11, BlockKind::kMoving, 0).ok());
}

TEST(BootstrapTest, BlocksAreConsecutive) {
  for (const BlockKind kind : {BlockKind::kCircular, BlockKind::kMoving}) {
    const IndexSource source = *BlockIndices(23, 5, kind, 3);
    std::set<uint32_t> starts;
    std::vector<uint32_t> indices;
    for (size_t r = 0; r < 300; ++r) {
      source(r, indices);
      ASSERT_EQ(indices.size(), 23u);
      for (size_t i = 0; i < 23; ++i) {
        if (i % 5 == 0) {
          starts.insert(indices[i]);
        } else {
          EXPECT_EQ(indices[i], (indices[i - 1] + 1) % 23);
        }
      }
    }
    EXPECT_EQ(starts.size(), kind == BlockKind::kCircular ? 23u : 19u);
  }
}

TEST(BootstrapTest, BlockWidthsFollowAutocorrelation) {
  struct Row {
    double phi;
    size_t length;
    double ratio;
  };
  for (const Row& row : std::vector<Row>{{0, 5, 0.993}, {0.2, 5, 1.164}, {0.2, 10, 1.182}}) {
    double sum = 0;
    const size_t series = 120;
    for (size_t i = 0; i < series; ++i) {
      sum += *BlockWidthRatio(Normals(1000 + i, 400, row.phi), row.length, BlockKind::kCircular,
                              600, 0.95, i);
    }
    // Standard deviation between series 0.06 to 0.09, and resampling noise of the same size.
    EXPECT_NEAR(sum / series, row.ratio, 4 * 0.12 / std::sqrt(series)) << row.phi;
  }
}

TEST(BootstrapTest, CrossedFormCoversWhereSeedsShareTheirText) {
  const size_t trials = 150;
  size_t covered = 0;
  for (size_t i = 0; i < trials; ++i) {
    const RandomKey key = RandomKey::For(i, "crossed");
    SeedBatch data{.seeds = 8, .batches = 200, .values = {}};
    for (size_t s = 0; s < data.seeds; ++s) {
      for (size_t b = 0; b < data.batches; ++b) {
        data.values.push_back(0.006 * RandomNormal(key.With("seed"), s) +
                              0.08 * RandomNormal(key.With("batch"), b) +
                              0.02 * RandomNormal(key.With("rest"), s * data.batches + b));
      }
    }
    covered += CrossedBootstrap(data, 400, 1, i)->At(0.95).Contains(0) ? 1 : 0;
  }
  // 0.95 by the reference simulation; the nested form would give 0.64.
  EXPECT_GT(static_cast<double>(covered) / trials, 0.88);
}

TEST(BootstrapTest, PFollowsTheInterval) {
  const Bootstrap b = *BootstrapMean(Normals(5, 40), 2000, IidIndices(40, 5));
  const double p = b.DifferenceP();
  EXPECT_TRUE(b.At(1 - p * 0.9).Contains(0));
  EXPECT_FALSE(b.At(1 - p * 1.1).Contains(0));
  const double margin = 0.3;
  const double q = b.EquivalenceP(margin);
  EXPECT_TRUE(b.At(1 - 2.2 * q).IsInside(margin));
  EXPECT_FALSE(b.At(1 - 1.8 * q).IsInside(margin));
}

}  // namespace
}  // namespace switchyard::stats
