#include "worker/eval/routing_telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace switchyard::eval {
namespace {

constexpr double kTolerance = 1e-12;

// A batch whose storage lives as long as the view.
struct Batch {
  std::vector<int64_t> ids;
  std::vector<float> logits;
  std::vector<uint8_t> valid;
  RoutingView view;

  Batch(uint32_t experts, uint32_t top_k, std::vector<int64_t> chosen, std::vector<float> scores,
        uint32_t sequences = 1)
      : ids(std::move(chosen)), logits(std::move(scores)), valid(ids.size() / top_k, 1) {
    view = {.experts = experts,
            .top_k = top_k,
            .ids = ids,
            .logits = logits,
            .valid = valid,
            .sequences = sequences};
  }
};

// Every expert gets the same: all loads are 1, all entropies at their largest.
TEST(RoutingTelemetry, UniformRoutingHasTheClosedValues) {
  const Batch batch(4, 2, {0, 1, 2, 3, 0, 1, 2, 3}, std::vector<float>(16, 0.0f));
  const LoadStatistics load = ComputeLoad(CountAssignments(batch.view), 2);
  EXPECT_NEAR(load.usage_entropy_norm, 1, kTolerance);
  EXPECT_NEAR(load.effective_experts, 4, kTolerance);
  EXPECT_NEAR(load.load_max_over_mean, 1, kTolerance);
  EXPECT_NEAR(load.load_min_over_mean, 1, kTolerance);
  EXPECT_NEAR(load.load_cv, 0, kTolerance);
  EXPECT_NEAR(load.load_gini, 0, kTolerance);
  EXPECT_NEAR(load.utilisation, 1, kTolerance);
  EXPECT_EQ(load.dropped_ratio, 0);
  EXPECT_THAT(load.load, testing::ElementsAre(1, 1, 1, 1));

  const auto scores = ComputeScores(std::span(&batch.view, 1));
  ASSERT_TRUE(scores.has_value());
  const double ln4 = std::log(4.0);
  EXPECT_NEAR(scores->entropy_nats, ln4, kTolerance);
  EXPECT_NEAR(scores->entropy_norm, 1, kTolerance);
  EXPECT_NEAR(scores->top1_prob, 0.25, kTolerance);
  EXPECT_NEAR(scores->topk_mass, 0.5, kTolerance);
  EXPECT_NEAR(scores->gate_margin_top12, 0, kTolerance);
  EXPECT_NEAR(*scores->gate_margin_boundary, 0, kTolerance);
  EXPECT_NEAR(scores->z_loss, ln4 * ln4, kTolerance);
  EXPECT_NEAR(scores->aux_loss, 1, kTolerance);
  EXPECT_NEAR(scores->aux_loss_sequence, 1, kTolerance);
  EXPECT_NEAR(scores->aux_loss_global, 1, kTolerance);
  EXPECT_EQ(scores->logit_rms, 0);
  EXPECT_EQ(scores->logit_absmax, 0);
}

// All tokens on one expert: the collapsed ends of all scales.
TEST(RoutingTelemetry, OneHotRoutingHasTheClosedValues) {
  const Batch batch(4, 1, {2, 2, 2}, {0, 0, 40, 0, 0, 0, 40, 0, 0, 0, 40, 0});
  const LoadStatistics load = ComputeLoad(CountAssignments(batch.view), 1);
  EXPECT_NEAR(load.usage_entropy_norm, 0, kTolerance);
  EXPECT_NEAR(load.effective_experts, 1, kTolerance);
  EXPECT_NEAR(load.load_max_over_mean, 4, kTolerance);
  EXPECT_NEAR(load.load_min_over_mean, 0, kTolerance);
  EXPECT_NEAR(load.load_cv, std::sqrt(3.0), kTolerance);
  EXPECT_NEAR(load.load_gini, 0.75, kTolerance);
  EXPECT_NEAR(load.utilisation, 0.25, kTolerance);

  const auto scores = ComputeScores(std::span(&batch.view, 1));
  const double rest = std::exp(-40.0);
  const double sum = 1 + 3 * rest;
  EXPECT_NEAR(scores->top1_prob, 1 / sum, kTolerance);
  EXPECT_NEAR(scores->topk_mass, 1 / sum, kTolerance);
  EXPECT_NEAR(scores->entropy_nats, std::log(sum) + 3 * rest * 40 / sum, kTolerance);
  EXPECT_NEAR(*scores->gate_margin_boundary, 40, kTolerance);
  EXPECT_NEAR(scores->z_loss, std::pow(40 + std::log(sum), 2), 1e-9);
  EXPECT_NEAR(scores->aux_loss, 4 / sum, kTolerance);
  EXPECT_NEAR(scores->logit_rms, 20, kTolerance);
  EXPECT_NEAR(scores->logit_absmax, 40, kTolerance);
}

// Two of four experts share the tokens 3 to 1.
TEST(RoutingTelemetry, TwoExpertRoutingHasTheClosedValues) {
  const Batch batch(4, 1, {0, 0, 0, 1}, {});
  const LoadStatistics load = ComputeLoad(CountAssignments(batch.view), 1);
  const double h = -(0.75 * std::log(0.75) + 0.25 * std::log(0.25));
  EXPECT_NEAR(load.usage_entropy_norm, h / std::log(4.0), kTolerance);
  EXPECT_NEAR(load.effective_experts, std::exp(h), kTolerance);
  EXPECT_NEAR(load.load_max_over_mean, 3, kTolerance);
  EXPECT_NEAR(load.load_cv, std::sqrt(6.0) / 2, kTolerance);
  EXPECT_NEAR(load.load_gini, 0.625, kTolerance);
  EXPECT_NEAR(load.utilisation, 0.5, kTolerance);
  EXPECT_THAT(load.load, testing::ElementsAre(3, 1, 0, 0));
  // A router without scores has no score statistics instead of made-up ones.
  EXPECT_FALSE(ComputeScores(std::span(&batch.view, 1)).has_value());
}

// Padding is no token and a dropped choice is no assignment, or both would look like load.
TEST(RoutingTelemetry, PaddingAndDroppedChoicesAreLeftOut) {
  Batch batch(2, 2, {0, 1, 0, -1, 1, 1}, {});
  batch.valid[2] = 0;
  const RoutingCounts counts = CountAssignments(batch.view);
  EXPECT_EQ(counts.tokens, 2u);
  EXPECT_EQ(counts.dropped, 1u);
  EXPECT_THAT(counts.per_expert, testing::ElementsAre(2, 1));
  EXPECT_NEAR(ComputeLoad(counts, 2).dropped_ratio, 0.25, kTolerance);
}

// Two sequences that each load one expert are balanced together and collapsed by themselves: the
// difference between the scopes is what the three series exist to show.
TEST(RoutingTelemetry, ScopesOfTheAuxLossDiffer) {
  const float ln3 = static_cast<float>(std::log(3.0));
  const Batch batch(2, 1, {0, 0, 1, 1}, {ln3, 0, ln3, 0, 0, ln3, 0, ln3}, 2);
  const auto scores = ComputeScores(std::span(&batch.view, 1));
  EXPECT_NEAR(scores->aux_loss, 1, 1e-7);
  EXPECT_NEAR(scores->aux_loss_global, 1, 1e-7);
  EXPECT_NEAR(scores->aux_loss_sequence, 1.5, 1e-7);

  const Batch first(2, 1, {0, 0}, {ln3, 0, ln3, 0});
  const Batch second(2, 1, {1, 1}, {0, ln3, 0, ln3});
  const std::vector<RoutingView> parts = {first.view, second.view};
  const auto split = ComputeScores(parts);
  EXPECT_NEAR(split->aux_loss, 1.5, 1e-7);
  EXPECT_NEAR(split->aux_loss_global, 1, 1e-7);
}

// With all experts chosen there is no boundary of the choice, and one expert is not a collapse.
TEST(RoutingTelemetry, AllExpertsChosenOrOnlyOneExpert) {
  const Batch all(2, 2, {0, 1}, {1.0f, 0.0f});
  const auto scores = ComputeScores(std::span(&all.view, 1));
  EXPECT_FALSE(scores->gate_margin_boundary.has_value());
  EXPECT_NEAR(scores->topk_mass, 1, kTolerance);

  const Batch one(1, 1, {0, 0}, {0.5f, -0.5f});
  EXPECT_EQ(ComputeLoad(CountAssignments(one.view), 1).usage_entropy_norm, 1);
  EXPECT_EQ(ComputeScores(std::span(&one.view, 1))->entropy_norm, 1);
}

// Small batches must not call an expert dead before 100 E / K tokens were seen; old batches leave.
TEST(RoutingTelemetry, DeadExpertsNeedAFilledWindow) {
  LoadWindow window;
  const RoutingCounts lopsided{.per_expert = {50, 50, 0, 0}, .tokens = 100};
  window.Add(lopsided, 1);
  window.Add(lopsided, 1);
  window.Add(lopsided, 1);
  EXPECT_FALSE(window.Judge().has_value());
  window.Add(lopsided, 1);
  ASSERT_TRUE(window.Judge().has_value());
  EXPECT_EQ(window.Judge()->dead, 2u);
  EXPECT_EQ(window.Judge()->starved, 2u);
  const RoutingCounts even{.per_expert = {25, 25, 25, 25}, .tokens = 100};
  for (int i = 0; i < 4; ++i) window.Add(even, 1);
  EXPECT_EQ(window.Judge()->dead, 0u);
  EXPECT_EQ(window.Judge()->starved, 0u);
}

// Churn by hand: of two choices a token keeps both, one or none: 1 - (1 + 1/2 + 0) / 3. Order of
// the choices is nothing, padding and tokens without experts are left out.
TEST(RoutingTelemetry, ChurnHasTheClosedValues) {
  const Batch before(4, 2, {0, 1, 0, 1, 0, 1}, {});
  const Batch after(4, 2, {1, 0, 1, 2, 2, 3}, {});
  EXPECT_NEAR(ChurnBetween(before.view, after.view), 0.5, kTolerance);
  EXPECT_EQ(ChurnBetween(before.view, before.view), 0);
  Batch padded(4, 2, {1, 0, 1, 2, 2, 3}, {});
  padded.valid[2] = 0;
  EXPECT_NEAR(ChurnBetween(before.view, padded.view), 0.25, kTolerance);
  const Batch open(4, 3, {0, 1, 2, 0, -1, -1, -1, -1, -1}, {});
  EXPECT_NEAR(ChurnBetween(before.view, open.view), 1 - (2.0 / 3 + 1.0 / 2 + 0) / 3, kTolerance);
  const Batch none(4, 1, {-1}, {});
  EXPECT_EQ(ChurnBetween(none.view, none.view), 0);
}

}  // namespace
}  // namespace switchyard::eval
