// Balance losses against the published values, numbers worked out by hand, and the references' own
// formulas.
#include <cmath>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"
#include "worker/model/losses.h"
#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

LossConfig Config(const char* id, LossDefinition definition, LossScope scope = LossScope::kMicro,
                  LayerReduce reduce = LayerReduce::kSum) {
  return {.id = id, .definition = definition, .coef = 1.0, .scope = scope, .reduce = reduce};
}

double ValueOf(const LossConfig& config, const std::vector<LayerScores>& layers,
               const at::Tensor& valid, int64_t sequences,
               const std::vector<at::Tensor>& previous = {}) {
  return BalanceLoss(config, layers, valid, sequences, previous).item<double>();
}

// Even scores and even counts give the published values: 1, K or 1 / K; two layers add, average or
// pool (LS-1).
TEST(BalanceLoss, EvenRoutingGivesThePublishedValue) {
  const int64_t E = 4, K = 2, N = 8;
  const at::Tensor ids =
      at::stack({at::arange(N).remainder(E), (at::arange(N) + 1).remainder(E)}, 1);
  const std::vector<LayerScores> one{{at::zeros({N, E}, at::kDouble), ids}};
  const std::vector<LayerScores> two{one[0], one[0]};
  const at::Tensor valid = at::ones({N}, at::kBool);
  const std::vector<std::pair<LossDefinition, double>> cases{
      {LossDefinition::kGshardTop1, 1},         {LossDefinition::kHfMixtral, K},
      {LossDefinition::kMegatronAux, 1},        {LossDefinition::kMegatronSeq, 1},
      {LossDefinition::kMegatronGlobal, 1},     {LossDefinition::kMegablocks, 1},
      {LossDefinition::kDeepseekSeq, 1},        {LossDefinition::kDeepseekBatch, 1},
      {LossDefinition::kNaiveBalance, 1.0 / K}, {LossDefinition::kFlaxformer, K}};
  for (const auto& [definition, expected] : cases) {
    for (const LossScope scope : {LossScope::kMicro, LossScope::kSequence, LossScope::kGlobal}) {
      const LossConfig sum = Config("x", definition, scope);
      EXPECT_NEAR(ValueOf(sum, one, valid, 2), expected, 1e-12);
      EXPECT_NEAR(ValueOf(sum, two, valid, 2), 2 * expected, 1e-12);
      LossConfig other = sum;
      other.reduce = LayerReduce::kMean;
      EXPECT_NEAR(ValueOf(other, two, valid, 2), expected, 1e-12);
      other.reduce = LayerReduce::kPooled;
      EXPECT_NEAR(ValueOf(other, two, valid, 2), expected, 1e-12);
    }
  }
  const std::vector<LayerScores> single{{at::zeros({N, E}, at::kDouble), ids.narrow(1, 0, 1)}};
  EXPECT_NEAR(ValueOf(Config("switch", LossDefinition::kSwitch), single, valid, 2), 1.0, 1e-12);
}

// Two tokens, two experts, worked out by hand (LS-2): P = (0.6, 0.4), c = (2, 0).
TEST(BalanceLoss, TwoByTwoByHand) {
  const at::Tensor p = at::tensor({0.7, 0.3, 0.5, 0.5}, at::kDouble).view({2, 2});
  const std::vector<LayerScores> layers{{p.log(), at::zeros({2, 1}, at::kLong)}};
  const at::Tensor valid = at::ones({2}, at::kBool);
  EXPECT_NEAR(ValueOf(Config("a", LossDefinition::kMegatronAux), layers, valid, 1), 1.2, 1e-12);
  EXPECT_NEAR(ValueOf(Config("a", LossDefinition::kSwitch), layers, valid, 1), 1.2, 1e-12);
  // Counts of the update before, 1 and 3 of 4 tokens: 2 (0.25 * 0.6 + 0.75 * 0.4).
  const at::Tensor previous = at::tensor({1.0, 3.0, 4.0}, at::kDouble);
  EXPECT_NEAR(ValueOf(Config("g", LossDefinition::kMegatronGlobal, LossScope::kGlobal), layers,
                      valid, 1, {previous}),
              0.9, 1e-12);
}

// Scores of zero give (ln E)^2 (LS-5, ML2).
TEST(BalanceLoss, ZLossOfZeroScores) {
  const std::vector<LayerScores> layers{
      {at::zeros({6, 8}, at::kDouble), at::zeros({6, 1}, at::kLong)}};
  EXPECT_NEAR(
      ValueOf(Config("z_loss", LossDefinition::kZLoss), layers, at::ones({6}, at::kBool), 2),
      4.3241, 5e-5);
}

// Padding changes no loss under any scope (LS-7, ML2): 11 tokens of two rows with and without pads.
TEST(BalanceLoss, PaddingCountsNothing) {
  const int64_t E = 4;
  const at::Tensor logits = Normal({16, E}, 1);
  at::Tensor valid = at::ones({16}, at::kBool);
  for (const int64_t i : {5, 6, 7, 14, 15}) valid[i] = false;
  const at::Tensor ids = SelectTopK(logits, 2).masked_fill(valid.logical_not().unsqueeze(1), -1);
  const at::Tensor kept = valid.nonzero().squeeze(1);
  const std::vector<LayerScores> padded{{logits, ids}};
  at::Tensor garbage = logits.clone();
  garbage.index_put_({valid.logical_not()}, at::full({E}, 1e3, at::kDouble));
  const std::vector<LayerScores> other{{garbage, ids}};
  const std::vector<LayerScores> bare{{logits.index_select(0, kept), ids.index_select(0, kept)}};
  for (const auto definition : {LossDefinition::kMegatronAux, LossDefinition::kZLoss,
                                LossDefinition::kHfMixtral, LossDefinition::kGshardTop1}) {
    const LossConfig config = Config("x", definition);
    const double expected = ValueOf(config, bare, at::ones({11}, at::kBool), 1);
    EXPECT_NEAR(ValueOf(config, padded, valid, 2), expected, 1e-12);
    EXPECT_NEAR(ValueOf(config, other, valid, 2), expected, 1e-12);
    // Per sequence: the mean over the two rows, each by itself.
    const LossConfig sequence = Config("x", definition, LossScope::kSequence);
    double sum = 0;
    for (const auto& [first, n] : {std::pair{0, 5}, std::pair{8, 6}}) {
      const std::vector<LayerScores> row{{logits.narrow(0, first, n), ids.narrow(0, first, n)}};
      sum += ValueOf(config, row, at::ones({n}, at::kBool), 1);
    }
    EXPECT_NEAR(ValueOf(sequence, padded, valid, 2), sum / 2, 1e-12);
  }
  EXPECT_EQ(
      ValueOf(Config("x", LossDefinition::kMegatronAux), padded, at::zeros({16}, at::kBool), 2),
      0.0);
}

// LS-4: the three scopes of Megatron, written out: sum over tokens of probabilities times counts,
// E / (K N^2), of all tokens, of each sequence, and with the counts of the update before.
TEST(BalanceLoss, ScopesFollowMegatron) {
  const int64_t B = 3, T = 5, E = 4, K = 2, N = B * T;
  const at::Tensor logits = Normal({N, E}, 4);
  const at::Tensor ids = SelectTopK(logits, K), p = at::softmax(logits, 1);
  const auto formula = [&](int64_t first, int64_t n, const at::Tensor& counts) {
    double sum = 0;
    for (int64_t e = 0; e < E; ++e) {
      sum += p.narrow(0, first, n).select(1, e).sum().item<double>() * counts[e].item<double>();
    }
    return static_cast<double>(E) * sum / static_cast<double>(K * n * n);
  };
  const auto counts_of = [&](int64_t first, int64_t n) {
    return at::bincount(ids.narrow(0, first, n).reshape({-1}), {}, E).to(at::kDouble);
  };
  const std::vector<LayerScores> layers{{.logits = logits, .expert_ids = ids}};
  const at::Tensor valid = at::ones({N}, at::kBool);
  EXPECT_NEAR(ValueOf(Config("a", LossDefinition::kMegatronAux), layers, valid, B),
              formula(0, N, counts_of(0, N)), 1e-12);
  double sequences = 0;
  for (int64_t b = 0; b < B; ++b) sequences += formula(b * T, T, counts_of(b * T, T)) / B;
  EXPECT_NEAR(
      ValueOf(Config("s", LossDefinition::kMegatronSeq, LossScope::kSequence), layers, valid, B),
      sequences, 1e-12);
  const at::Tensor before = at::tensor({7.0, 1.0, 2.0, 20.0}, at::kDouble);
  const at::Tensor previous = at::cat({before, at::tensor({15.0}, at::kDouble)});
  EXPECT_NEAR(ValueOf(Config("g", LossDefinition::kMegatronGlobal, LossScope::kGlobal), layers,
                      valid, B, {previous}),
              formula(0, N, before), 1e-12);
}

// LS-3: Hugging Face's load balancing loss, written out: all layers' tokens together, one-hot by
// slot, means over the tokens of the attention mask.
TEST(BalanceLoss, PoolsLayersAsHuggingFace) {
  const int64_t E = 4, K = 2, N = 6;
  at::Tensor valid = at::ones({N}, at::kBool);
  valid[2] = valid[5] = false;
  std::vector<LayerScores> layers;
  at::Tensor share = at::zeros({K, E}, at::kDouble), mean = at::zeros({E}, at::kDouble);
  for (uint64_t l = 0; l < 3; ++l) {
    const at::Tensor logits = Normal({N, E}, 7 + l);
    const at::Tensor ids = SelectTopK(logits, K);
    layers.push_back({.logits = logits, .expert_ids = ids});
    for (int64_t n = 0; n < N; ++n) {
      if (!valid[n].item<bool>()) continue;
      for (int64_t k = 0; k < K; ++k) share[k][ids[n][k].item<int64_t>()] += 1.0 / 12;
      mean += at::softmax(logits[n], 0) / 12;
    }
  }
  const double expected = (share * mean.unsqueeze(0)).sum().item<double>() * E;
  EXPECT_NEAR(
      ValueOf(Config("h", LossDefinition::kHfMixtral, LossScope::kMicro, LayerReduce::kPooled),
              layers, valid, 2),
      expected, 1e-12);
}

// Scores that are logistic functions enter normalised to sum 1, not as a softmax (3.1).
TEST(BalanceLoss, UsesTheRoutersOwnProbabilities) {
  const at::Tensor logits = Normal({5, 3}, 1);
  const at::Tensor s = at::sigmoid(logits);
  const at::Tensor probs = s / s.sum(1, true);
  const std::vector<LayerScores> own{
      {.logits = logits, .expert_ids = SelectTopK(logits, 1), .probs = probs}};
  const std::vector<LayerScores> same{{.logits = probs.log(), .expert_ids = SelectTopK(logits, 1)}};
  const at::Tensor valid = at::ones({5}, at::kBool);
  const LossConfig config = Config("a", LossDefinition::kMegatronAux);
  EXPECT_NEAR(ValueOf(config, own, valid, 1), ValueOf(config, same, valid, 1), 1e-12);
}

// cv2 by hand: weights 0.75 + 0.5 and 0.25 + 0.5 on two experts, loads 1.5 and 0.5: variances 0.125
// and 0.5 over squared means of 1. Without noise (evaluation) it is 0.
TEST(BalanceLoss, SquaredVariationByHand) {
  const at::Tensor ids = at::tensor({0, 1, 0, 1, 0, 1}, at::kLong).view({3, 2});
  const at::Tensor weights = at::tensor({0.75, 0.25, 0.5, 0.5, 9.0, 9.0}, at::kDouble).view({3, 2});
  const at::Tensor load = at::tensor({1.0, 0.5, 0.5, 0.0, 9.0, 9.0}, at::kDouble).view({3, 2});
  const at::Tensor valid = at::tensor({1, 1, 0}, at::kLong).to(at::kBool);
  LayerScores layer{.logits = at::zeros({3, 2}, at::kDouble),
                    .expert_ids = ids,
                    .weights = weights,
                    .soft_load = load};
  const LossConfig config = Config("cv2", LossDefinition::kCv2);
  EXPECT_NEAR(ValueOf(config, {layer}, valid, 1), 0.125 + 0.5, 1e-9);
  LossConfig mean = config;
  mean.reduce = LayerReduce::kMean;
  EXPECT_NEAR(ValueOf(mean, {layer, layer}, valid, 1), 0.625, 1e-9);
  layer.soft_load = at::Tensor();
  EXPECT_EQ(ValueOf(config, {layer}, valid, 1), 0.0);
}

// sra by hand: mean probabilities 0.75 and 0.25 (variance 0.0625, squared mean 0.25) and anchors at
// 60 degrees: 0.4 * 2 * 0.25 + 0.6 * 0.5; even use of orthogonal anchors costs nothing.
TEST(BalanceLoss, AnchorsByHand) {
  const at::Tensor p = at::tensor({0.75, 0.25}, at::kDouble).view({1, 2});
  const at::Tensor anchors = at::tensor({1.0, 0.0, 1.0, std::sqrt(3.0)}, at::kDouble).view({2, 2});
  const at::Tensor valid = at::ones({1}, at::kBool);
  const LayerScores layer{
      .logits = p.log(), .expert_ids = at::zeros({1, 1}, at::kLong), .anchors = anchors};
  const LossConfig config = Config("sra", LossDefinition::kSra);
  EXPECT_NEAR(ValueOf(config, {layer}, valid, 1), 0.4 * 2 * 0.25 + 0.6 * 0.5, 1e-9);
  const LayerScores even{.logits = at::zeros({1, 2}, at::kDouble),
                         .expert_ids = at::zeros({1, 1}, at::kLong),
                         .anchors = at::eye(2, at::kDouble)};
  EXPECT_NEAR(ValueOf(config, {even}, valid, 1), 0.0, 1e-9);
  EXPECT_THROW(ValueOf(config, {{.logits = p, .expert_ids = layer.expert_ids}}, valid, 1),
               c10::Error);
}

// ML3: micro-batches of 4 and 12 real tokens, each balanced: weighted by tokens the value stays
// even and the shares of the load sum to 1.
TEST(BalanceLoss, UnevenMicroBatchesStayEven) {
  double total = 0;
  for (const int64_t n : {4, 12}) {
    const at::Tensor ids = at::arange(n).remainder(4).unsqueeze(1);
    const std::vector<LayerScores> layers{
        {.logits = at::zeros({n, 4}, at::kDouble), .expert_ids = ids}};
    total +=
        ValueOf(Config("a", LossDefinition::kMegatronAux), layers, at::ones({n}, at::kBool), 1) *
        static_cast<double>(n) / 16;
  }
  EXPECT_NEAR(total, 1.0, 1e-12);
}

}  // namespace
}  // namespace switchyard::model
