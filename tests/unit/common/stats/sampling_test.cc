#include "common/stats/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace switchyard::stats {
namespace {

TEST(SamplingTest, FirstChoiceFollowsTheSoftmaxAndPairsFollowPlackettLuce) {
  const std::vector<double> logits = {1.0, 0.2, -0.5, 0.7};
  double total = 0;
  std::vector<double> p;
  for (const double logit : logits) total += std::exp(logit);
  for (const double logit : logits) p.push_back(std::exp(logit) / total);
  const RandomKey key = RandomKey::For(1, "routes");
  const size_t draws = 40'000;
  std::map<std::vector<uint32_t>, double> pairs;
  std::vector<double> first(4, 0);
  for (uint64_t i = 0; i < draws; ++i) {
    const std::vector<uint32_t> route = GumbelTopK(logits, 2, 1, key, i);
    ASSERT_EQ(route.size(), 2u);
    ASSERT_NE(route[0], route[1]);
    first[route[0]] += 1;
    pairs[route] += 1;
  }
  double chi_square = 0;
  for (size_t i = 0; i < 4; ++i) {
    const double expected = p[i] * static_cast<double>(draws);
    chi_square += (first[i] - expected) * (first[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 16.27);  // 99.9 % at 3 degrees of freedom
  for (const auto& [route, count] : pairs) {
    const double probability = p[route[0]] * p[route[1]] / (1 - p[route[0]]);
    EXPECT_NEAR(count / static_cast<double>(draws), probability,
                4.5 * std::sqrt(probability / static_cast<double>(draws)));
  }
}

TEST(SamplingTest, DrawsDiffer) {
  const std::vector<double> logits = {0.1, 0.3, 0.2, 0, -0.2, 0.4, 0.1, 0};
  std::set<std::vector<uint32_t>> routes;
  for (uint64_t i = 0; i < 32; ++i) {
    routes.insert(GumbelTopK(logits, 2, 1, RandomKey::For(2, "routes"), i));
  }
  EXPECT_GE(routes.size(), 8u);
}

TEST(SamplingTest, ACoolSamplerTakesTheBest) {
  const std::vector<double> logits = {0, 3, 1, 2};
  EXPECT_EQ(GumbelTopK(logits, 3, 1e-3, RandomKey::For(3, "routes"), 0),
            (std::vector<uint32_t>{1, 3, 2}));
}

}  // namespace
}  // namespace switchyard::stats
