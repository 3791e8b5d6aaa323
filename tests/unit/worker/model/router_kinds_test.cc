// Router kinds one by one, against their formulas written out (models.md 8.2).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/spec/router_defaults.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/model/router_testing.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/model/experts.h"
#include "worker/model/routers/balanced_assignment.h"
#include "worker/model/routers/capacity.h"
#include "worker/model/routers/score_router.h"
#include "worker/model/routers/sinkhorn.h"

namespace switchyard::model {
namespace {

double At(const at::Tensor& t, int64_t row, int64_t column) {
  return t[row][column].item<double>();
}

at::Tensor OneSequence(int64_t rows) { return at::zeros({1, rows}, at::kLong); }

// RT-1: scores with bias, the best K by score, softmax over those.
TEST(SmoeRouter, ChoosesTheBestScoresAndWeighsThem) {
  RouterUnderTest made("experts: 6 top_k: 2 router { smoe {} }", 5);
  made.Get("gate.bias").set_data(Normal({6}, 2));
  const at::Tensor weight = made.Get("gate.weight"), bias = made.Get("gate.bias");
  const at::Tensor x = Normal({9, 5}, 3);
  const Routing routing = made.Route(x);
  for (int64_t n = 0; n < 9; ++n) {
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t e = 0; e < 6; ++e) {
      double score = bias[e].item<double>();
      for (int64_t c = 0; c < 5; ++c) score += At(x, n, c) * At(weight, e, c);
      EXPECT_NEAR(At(routing.logits, n, e), score, 1e-12);
      scores.emplace_back(-score, e);
    }
    std::sort(scores.begin(), scores.end());
    const double a = std::exp(-scores[0].first), b = std::exp(-scores[1].first);
    EXPECT_EQ(routing.expert_ids[n][0].item<int64_t>(), scores[0].second);
    EXPECT_EQ(routing.expert_ids[n][1].item<int64_t>(), scores[1].second);
    EXPECT_NEAR(At(routing.weights, n, 0), a / (a + b), 1e-12);
    EXPECT_NEAR(At(routing.weights, n, 1), b / (a + b), 1e-12);
  }
}

// RT-2: with K = E the layer is the softmax mixture of all experts.
TEST(SmoeRouter, AllExpertsGiveTheSoftmaxMixture) {
  RouterUnderTest made("experts: 3 top_k: 3 router { smoe {} }", 6);
  const at::Tensor x = Normal({10, 6}, 3);
  const Experts experts{.kind = FeedForwardKind::kGelu,
                        .w_in = Normal({3, 8, 6}, 11),
                        .w_out = Normal({3, 6, 8}, 12)};
  const Routing routing = made.Route(x);
  const at::Tensor y =
      MixExperts(x, {routing.expert_ids, routing.weights}, experts, {}, Products::kParameter);
  const at::Tensor p = at::softmax(routing.logits, 1);
  at::Tensor expected = at::zeros_like(x);
  for (int64_t e = 0; e < 3; ++e) {
    const at::Tensor h = at::gelu(at::linear(x, experts.w_in[e]));
    expected = expected + p.narrow(1, e, 1) * at::linear(h, experts.w_out[e]);
  }
  EXPECT_LT(Distance(y, expected), 1e-12);
}

// The option of the reference: in evaluation the plain average of all experts.
TEST(SmoeRouter, AveragesInEvaluationWhenAsked) {
  RouterUnderTest made("experts: 4 top_k: 2 router { smoe { dense_eval: true } }", 5);
  const Routing routing = made.Route(Normal({3, 5}, 1));
  EXPECT_EQ(routing.expert_ids.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(routing.weights.min().item<double>(), 0.25);
  EXPECT_EQ(made.Route(Normal({3, 5}, 1), /*is_training=*/true).expert_ids.size(1), 2);
}

// MR2: renormalised and plain weights of one row. RT-3: renormalising equals softmax over the
// chosen; logistic weights, alone and together.
TEST(GateWeights, FollowTheirNames) {
  const at::Tensor logits = at::tensor({2.0, 1.0, 0.0, -1.0}, at::kDouble).view({1, 4});
  const at::Tensor ids = SelectTopK(logits, 2);
  const at::Tensor chosen = GateWeightsOf(logits, ids, GateWeights::kSoftmaxTopk);
  EXPECT_NEAR(At(chosen, 0, 0), 0.7311, 5e-5);
  EXPECT_NEAR(At(chosen, 0, 1), 0.2689, 5e-5);
  const at::Tensor full = GateWeightsOf(logits, ids, GateWeights::kSoftmaxFull);
  EXPECT_NEAR(At(full, 0, 0), 0.6439, 5e-5);
  EXPECT_NEAR(At(full, 0, 1), 0.2369, 5e-5);
  EXPECT_EQ(At(GateWeightsOf(logits, ids, GateWeights::kUniform), 0, 1), 0.5);
  const double a = 1 / (1 + std::exp(-2.0)), b = 1 / (1 + std::exp(-1.0));
  EXPECT_NEAR(At(GateWeightsOf(logits, ids, GateWeights::kSigmoid), 0, 0), a, 1e-12);
  EXPECT_NEAR(At(GateWeightsOf(logits, ids, GateWeights::kSigmoidRenorm), 0, 1), b / (a + b),
              1e-12);
  EXPECT_NEAR(At(GateWeightsOf(logits, ids.narrow(1, 0, 1), GateWeights::kSigmoidRenorm), 0, 0), a,
              1e-12);
  const at::Tensor random = Normal({50, 8}, 1);
  const at::Tensor picked = SelectTopK(random, 3);
  EXPECT_LT(Distance(GateWeightsOf(random, picked, GateWeights::kSoftmaxTopk),
                     GateWeightsOf(random, picked, GateWeights::kSoftmaxFullRenorm)),
            1e-6);
}

// MR7: chosen probabilities near 1e-8 still sum to 1 after renormalising, in float32.
TEST(GateWeights, TinyProbabilitiesSumToOne) {
  at::Tensor logits = at::zeros({1, 6}, at::kFloat);
  logits[0][0] = 200.0;
  const at::Tensor ids = at::tensor({2, 3}, at::kLong).view({1, 2});
  for (const auto norm : {GateWeights::kSoftmaxTopk, GateWeights::kSoftmaxFullRenorm}) {
    EXPECT_NEAR(GateWeightsOf(logits, ids, norm).sum().item<double>(), 1.0, 1e-6);
  }
  EXPECT_NEAR(GateWeightsOf(logits - 300, ids, GateWeights::kSigmoidRenorm).sum().item<double>(),
              1.0, 1e-6);
}

// MR3: NaN never wins over a number.
TEST(SelectTopK, NotANumberComesLast) {
  at::Tensor odd = at::zeros({1, 4});
  odd[0][0] = std::nan("");
  EXPECT_EQ(SelectTopK(odd, 1)[0][0].item<int64_t>(), 1);
  EXPECT_EQ(SelectTopK(at::full({1, 3}, std::nan("")), 3)[0][2].item<int64_t>(), 2);
}

// RT-4: k over 80,000 steps from 8 to 16; other modes at their ends and middle.
TEST(KSchedule, IsThePublishedOne) {
  v1::KSchedule schedule;
  schedule.set_mode(v1::K_SCHEDULE_MODE_LINEAR_INCREASE);
  schedule.set_k_min(8);
  schedule.set_k_max(16);
  schedule.set_steps(80000);
  const std::vector<std::pair<uint64_t, int64_t>> linear{{0, 8},      {5000, 8},   {5001, 9},
                                                         {15000, 10}, {15001, 10}, {40000, 12},
                                                         {75000, 16}, {80000, 16}, {90000, 16}};
  for (const auto& [step, k] : linear) EXPECT_EQ(ExpertsAt(schedule, 2, step), k) << step;
  schedule.set_mode(v1::K_SCHEDULE_MODE_COSINE);
  for (const auto& [step, k] : {std::pair{0, 8}, std::pair{40000, 12}, std::pair{80000, 16}}) {
    EXPECT_EQ(ExpertsAt(schedule, 2, static_cast<uint64_t>(step)), k) << step;
  }
  schedule.set_mode(v1::K_SCHEDULE_MODE_EXPONENTIAL);
  for (const auto& [step, k] : {std::pair{0, 8}, std::pair{40000, 11}, std::pair{80000, 16}}) {
    EXPECT_EQ(ExpertsAt(schedule, 2, static_cast<uint64_t>(step)), k) << step;
  }
  schedule.set_mode(v1::K_SCHEDULE_MODE_MULTI_STEP);
  schedule.set_k_min(3);
  schedule.add_milestones(10);
  schedule.add_milestones(20);
  schedule.add_milestones(30);
  for (const auto& [step, k] :
       {std::pair{9, 3}, std::pair{10, 6}, std::pair{20, 12}, std::pair{30, 16}}) {
    EXPECT_EQ(ExpertsAt(schedule, 2, static_cast<uint64_t>(step)), k) << step;
  }
  schedule.set_mode(v1::K_SCHEDULE_MODE_CONSTANT);
  EXPECT_EQ(ExpertsAt(schedule, 2, 5), 2);
}

// The schedule acts in training; evaluation takes top_k, or what it is asked for.
TEST(SmoeDropoutRouter, SchedulesItsExpertsInTraining) {
  RouterUnderTest made("experts: 8 top_k: 2 router { smoe_dropout { schedule { steps: 10 } } }", 5);
  const at::Tensor x = Normal({3, 5}, 1);
  EXPECT_EQ(made.Route(x, true, 0).expert_ids.size(1), 4);
  EXPECT_EQ(made.Route(x, true, 5).expert_ids.size(1), 6);
  EXPECT_EQ(made.Route(x, true, 10).expert_ids.size(1), 8);
  EXPECT_EQ(made.Route(x, false, 10).expert_ids.size(1), 2);
  const TokenFacts facts = FactsOf(OneSequence(3));
  EXPECT_EQ(made.router->Route({.hidden = x, .tokens = facts, .top_k = 8}).expert_ids.size(1), 8);
}

// RT-6: the gate is the network of the embedding, reshaped; the embedding alone is trained.
TEST(HyperRouter, MakesItsGateFromTheEmbedding) {
  RouterUnderTest made("experts: 4 top_k: 2 router { hyper_router { hyper_size: 7 } }", 5);
  const at::Tensor x = Normal({6, 5}, 1);
  const Routing routing = made.Route(x);
  const at::Tensor inner = at::relu(at::linear(made.Get("embedding"), made.Get("hypernet.0.weight"),
                                               made.Get("hypernet.0.bias")));
  const at::Tensor made_gate =
      at::linear(inner, made.Get("hypernet.2.weight"), made.Get("hypernet.2.bias")).view({4, 6});
  EXPECT_LT(
      Distance(routing.logits, at::linear(x, made_gate.narrow(1, 0, 5), made_gate.select(1, 5))),
      1e-12);
  EXPECT_FALSE(made.Get("hypernet.2.weight").requires_grad());
  EXPECT_TRUE(made.Get("embedding").requires_grad());
}

// RT-8: rows of the embeddings have norm 1.5 after a pass; scores are cosines over tau.
TEST(XmoeRouter, NormalisesItsEmbeddings) {
  RouterUnderTest made("experts: 5 top_k: 2 router { xmoe { proj_dim: 4 tau: 0.5 } }", 6);
  const at::Tensor x = Normal({7, 6}, 1);
  const Routing routing = made.Route(x);
  const at::Tensor rows = made.Get("expert_embeddings");
  EXPECT_LT(Distance(rows.norm(2, {1}), at::full({5}, 1.5, at::kDouble)), 1e-12);
  const at::Tensor z = at::linear(x, made.Get("projection"));
  const at::Tensor cosines = at::linear(z / z.norm(2, {1}, true), rows / 1.5);
  EXPECT_LT(Distance(routing.logits, cosines / 0.5), 1e-12);
}

// RT-9: a learned temperature stops at ln 100.
TEST(XmoeRouter, ClampsItsTemperature) {
  RouterUnderTest made(
      "experts: 5 top_k: 2 router { xmoe { proj_dim: 4 temperature: "
      "XMOE_TEMPERATURE_LEARNED_EXP_CLAMP tau: 0.5 } }",
      6);
  const at::Tensor x = Normal({7, 6}, 1);
  const at::Tensor at_two = made.Route(x).logits.detach().clone();
  made.Get("temperature").detach().fill_(50.0);
  // The first temperature, 2, was a logarithm in float32.
  EXPECT_LT(Distance(made.Route(x).logits, at_two * 50.0), 1e-5);
}

// RT-11: an id's expert is the same in every layer, batch and call; a table per layer differs; the
// loads of a balanced table differ by at most the most frequent id.
TEST(HashRouter, DependsOnTheTokenIdAlone) {
  const auto table = [](const std::string& options, uint32_t layer, int64_t top_k) {
    RouterUnderTest made(
        "experts: 8 top_k: " + std::to_string(top_k) + " router { hash { " + options + " } }", 4,
        true, layer);
    const TokenFacts facts = FactsOf(at::arange(50).view({2, 25}));
    const Routing routing = made.Route(at::zeros({50, 4}), facts);
    EXPECT_FALSE(routing.logits.defined());
    EXPECT_NEAR(routing.weights.min().item<double>(), 1.0 / static_cast<double>(top_k), 1e-7);
    EXPECT_TRUE(at::equal(routing.expert_ids, made.Get("gate.table")));
    return routing.expert_ids;
  };
  EXPECT_TRUE(at::equal(table("", 0, 1), table("", 3, 1)));
  EXPECT_FALSE(
      at::equal(table("per_layer_table: true", 0, 1), table("per_layer_table: true", 3, 1)));
  const at::Tensor two = table("", 0, 2);
  EXPECT_FALSE(two.select(1, 0).eq(two.select(1, 1)).any().item<bool>());
  const at::Tensor balanced = table("balanced: true", 0, 1);
  std::vector<uint64_t> load(8, 0);
  for (int64_t i = 0; i < 50; ++i) {
    load[static_cast<size_t>(balanced[i][0].item<int64_t>())] +=
        1000 / (static_cast<uint64_t>(i) + 1);
  }
  EXPECT_LE(
      *std::max_element(load.begin(), load.end()) - *std::min_element(load.begin(), load.end()),
      1000U);
}

// MultiHash: block j of a token's experts is block j of some expert, all with weight 1.
TEST(HashRouter, CutsExpertsIntoBlocks) {
  RouterUnderTest made("experts: 12 top_k: 3 router { hash { multi: 3 } }", 4);
  const at::Tensor table = made.Get("gate.table");
  EXPECT_EQ(table.sizes(), at::IntArrayRef({50, 3}));
  for (int64_t j = 0; j < 3; ++j) {
    EXPECT_TRUE(table.select(1, j).remainder(3).eq(j).all().item<bool>());
  }
  EXPECT_FALSE(at::equal(table.select(1, 0).floor_divide(3), table.select(1, 1).floor_divide(3)));
  const Routing routing = made.Route(at::zeros({50, 4}), FactsOf(at::arange(50).view({1, 50})));
  EXPECT_EQ(routing.weights.min().item<double>(), 1.0);
}

// Fresh scores every step, the same for one step; positions and ids go by their tables.
TEST(RandomFixedRouter, FollowsItsMode) {
  const at::Tensor x = Normal({20, 4}, 1), y = Normal({20, 4}, 2);
  const TokenFacts facts = FactsOf(at::arange(20).view({2, 10}));
  RouterUnderTest fresh(
      "experts: 8 top_k: 2 router { random_fixed { mode: RANDOM_FIXED_MODE_PER_CALL } }", 4);
  EXPECT_TRUE(at::equal(fresh.Route(x, facts, true, 1).expert_ids,
                        fresh.Route(y, facts, true, 1).expert_ids));
  EXPECT_FALSE(at::equal(fresh.Route(x, facts, true, 1).expert_ids,
                         fresh.Route(x, facts, true, 2).expert_ids));
  RouterUnderTest position(
      "experts: 8 top_k: 2 router { random_fixed { mode: RANDOM_FIXED_MODE_POSITION_TABLE } }", 4);
  const at::Tensor ids = position.Route(x, facts).expert_ids;
  EXPECT_TRUE(at::equal(ids.narrow(0, 0, 10), ids.narrow(0, 10, 10)));
  RouterUnderTest frozen("experts: 8 top_k: 2 router { random_fixed {} }", 4);
  EXPECT_FALSE(at::equal(frozen.Route(x, facts).expert_ids, frozen.Route(y, facts).expert_ids));
  EXPECT_FALSE(frozen.Get("gate.weight").requires_grad());
}

// Switch's noise is added to the scores, at most 1 +- eps, and its weight is the probability.
TEST(SwitchRouter, AddsUniformNoiseAndKeepsTheProbability) {
  RouterUnderTest made("experts: 5 top_k: 1 router { switch {} }", 4);
  const at::Tensor x = Normal({200, 4}, 1);
  const Routing quiet = made.Route(x), noisy = made.Route(x, true);
  const at::Tensor noise = noisy.logits - quiet.logits;
  EXPECT_GT(noise.min().item<double>(), 0.9);
  EXPECT_LT(noise.max().item<double>(), 1.1);
  EXPECT_NEAR(noise.mean().item<double>(), 1.0, 4 * 0.2 / std::sqrt(12.0 * 1000));
  EXPECT_LT(Distance(noisy.weights, at::softmax(noisy.logits, 1).gather(1, noisy.expert_ids)),
            1e-12);
}

// GShard keeps the second expert with probability 2 w2 and leaves the first weight as it is.
TEST(GshardRouter, DropsTheSecondExpertByItsWeight) {
  RouterUnderTest made("experts: 5 top_k: 2 router { gshard {} }", 4);
  const at::Tensor x = Normal({1, 4}, 1).expand({4000, 4});
  const Routing whole = made.Route(x), cut = made.Route(x, true);
  const double expected = std::min(1.0, 2 * At(whole.weights, 0, 1));
  const double kept = cut.expert_ids.select(1, 1).ge(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, expected, 4 * std::sqrt(expected * (1 - expected) / 4000) + 1e-12);
  EXPECT_LT(Distance(cut.weights.select(1, 0), whole.weights.select(1, 0)), 1e-12);
  EXPECT_GE(whole.expert_ids.min().item<int64_t>(), 0);
  RouterUnderTest compat("experts: 5 top_k: 2 router { gshard { fastmoe_compat: true } }", 4);
  EXPECT_EQ(compat.Route(x).expert_ids.min().item<int64_t>(), expected < 1 ? -1 : 0);
}

// The smooth load is the probability that fresh noise on one expert's score chooses it: compared
// with the share over many draws.
TEST(NoisyTopkRouter, SmoothLoadIsTheProbabilityOfChoice) {
  RouterUnderTest made("experts: 4 top_k: 2 router { noisy_topk {} }", 3);
  const at::Tensor x = Normal({50, 3}, 2);
  const Routing routing = made.Route(x, true);
  const at::Tensor clean = at::linear(x, made.Get("gate.weight"));
  const at::Tensor deviation = at::softplus(at::linear(x, made.Get("noise_weight"))) + 1e-2;
  for (int64_t n = 0; n < 50; n += 7) {
    for (int64_t e = 0; e < 4; ++e) {
      // The second best of the others is what it has to exceed.
      std::vector<double> others;
      for (int64_t o = 0; o < 4; ++o) {
        if (o != e) others.push_back(At(routing.logits, n, o));
      }
      std::sort(others.rbegin(), others.rend());
      const double z = (At(clean, n, e) - others[1]) / At(deviation, n, e);
      EXPECT_NEAR(At(routing.soft_load, n, e), 0.5 * std::erfc(-z / std::sqrt(2.0)), 1e-9);
    }
  }
  EXPECT_FALSE(made.Route(x).soft_load.defined());
  RouterUnderTest all("experts: 4 top_k: 4 router { noisy_topk {} }", 3);
  EXPECT_EQ(all.Route(x, true).soft_load.min().item<double>(), 1.0);
}

// RT-12: each expert takes exactly round(k N / E) tokens of its group, the ones with its highest
// probabilities, with these as weights.
TEST(ExpertChoiceRouter, EveryExpertTakesItsShare) {
  for (const char* group : {"BATCH", "SEQUENCE", "BATCH_AT_POSITION"}) {
    RouterUnderTest made(std::string("experts: 4 top_k: 2 router { expert_choice { group: "
                                     "EXPERT_CHOICE_GROUP_") +
                             group + " } }",
                         5);
    const int64_t B = 4, T = 6;
    const Routing routing =
        made.Route(Normal({B * T, 5}, 1), FactsOf(at::zeros({B, T}, at::kLong)), true);
    const at::Tensor p = at::softmax(routing.logits, 1);
    for (int64_t e = 0; e < 4; ++e) {
      const at::Tensor took = routing.expert_ids.eq(e).any(1);
      EXPECT_EQ(took.sum().item<int64_t>(), B * T / 2) << group;
      if (std::string(group) == "SEQUENCE") {
        EXPECT_TRUE(took.view({B, T}).sum(1).eq(T / 2).all().item<bool>());
      }
      if (std::string(group) == "BATCH") {
        const at::Tensor mine = p.select(1, e);
        EXPECT_GE(mine.masked_fill(took.logical_not(), 1).min().item<double>(),
                  mine.masked_fill(took, 0).max().item<double>());
      }
    }
    const at::Tensor expected =
        p.gather(1, routing.expert_ids.clamp_min(0)).masked_fill(routing.expert_ids.lt(0), 0);
    EXPECT_LT(Distance(routing.weights, expected), 1e-12);
  }
}

// The running threshold lets a trained share through, counts only training passes, and moves after
// an update alone.
TEST(ExpertChoiceRouter, ThresholdFollowsTraining) {
  RouterUnderTest made(
      "experts: 4 top_k: 2 router { expert_choice { threshold_inference: true threshold_decay: 0.5 "
      "} }",
      5);
  const at::Tensor x = Normal({400, 5}, 1);
  const TokenFacts facts = FactsOf(at::zeros({4, 100}, at::kLong));
  const at::Tensor threshold = made.Get("threshold");
  made.Route(x, facts, true);
  EXPECT_EQ(threshold.abs().max().item<double>(), 0.0);
  made.router->EndUpdate(true);
  const at::Tensor first = threshold.clone();
  const at::Tensor p = at::softmax(at::linear(x, made.Get("gate.weight")), 1);
  const at::Tensor lowest = std::get<0>(p.sort(/*stable=*/true, 0, /*descending=*/true))[199];
  EXPECT_LT(Distance(first, lowest), 1e-12);
  made.Route(x, facts, false);
  made.router->EndUpdate(true);
  EXPECT_TRUE(at::equal(threshold, first));
  const Routing routing = made.Route(x, facts, false);
  EXPECT_EQ(routing.expert_ids.ge(0).sum().item<int64_t>(), 800);
}

// RT-13: equal loads, the best total of all balanced assignments (N = E = 6 by all permutations),
// and more than a greedy repair.
TEST(BaseRouter, AssignsEvenlyAndBest) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const at::Tensor scores = Normal({6, 6}, seed);
    const auto* s = scores.const_data_ptr<double>();
    const std::vector<int64_t> columns = AssignBalanced(std::vector<double>(s, s + 36), 6, 6);
    double total = 0, best = -1e9;
    for (size_t i = 0; i < 6; ++i) total += s[i * 6 + static_cast<size_t>(columns[i])];
    std::vector<size_t> order{0, 1, 2, 3, 4, 5};
    do {
      double sum = 0;
      for (size_t i = 0; i < 6; ++i) sum += s[i * 6 + order[i]];
      best = std::max(best, sum);
    } while (std::next_permutation(order.begin(), order.end()));
    EXPECT_NEAR(total, best, 1e-9);
  }
  // 22 rows on 4 columns: loads 6, 6, 5, 5; no exchange of two rows and no move helps.
  const int64_t N = 22, E = 4;
  const at::Tensor scores = Normal({N, E}, 3);
  const auto* s = scores.const_data_ptr<double>();
  const std::vector<int64_t> columns = AssignBalanced(std::vector<double>(s, s + N * E), N, E);
  std::vector<int64_t> load(4, 0);
  for (const int64_t c : columns) ++load[static_cast<size_t>(c)];
  EXPECT_EQ(load, (std::vector<int64_t>{6, 6, 5, 5}));
  const auto score = [&](int64_t row, int64_t column) { return s[row * E + column]; };
  for (int64_t a = 0; a < N; ++a) {
    for (int64_t b = 0; b < a; ++b) {
      const int64_t ca = columns[static_cast<size_t>(a)], cb = columns[static_cast<size_t>(b)];
      EXPECT_LE(score(a, cb) + score(b, ca), score(a, ca) + score(b, cb) + 1e-9);
    }
  }
  RouterUnderTest made("experts: 4 top_k: 1 router { base {} }", 5);
  const Routing routing = made.Route(Normal({40, 5}, 1), true);
  EXPECT_TRUE(at::bincount(routing.expert_ids.view({-1}), {}, 4).eq(10).all().item<bool>());
  EXPECT_LT(Distance(routing.weights, at::sigmoid(routing.logits.gather(1, routing.expert_ids))),
            1e-12);
}

// RT-14: rows and columns of the plan have their sums; scores of +-80 stay finite.
TEST(SinkhornRouter, PlanIsDoublyStochastic) {
  const at::Tensor plan = SinkhornPlan(Normal({64, 8}, 1).to(at::kFloat), 100, 1e-4);
  EXPECT_LT((plan.sum(1) * 64 - 1).abs().max().item<double>(), 1e-3);
  EXPECT_LT((plan.sum(0) * 8 - 1).abs().max().item<double>(), 1e-3);
  const at::Tensor extreme = Normal({64, 8}, 2).sign().to(at::kFloat) * 80;
  EXPECT_TRUE(SinkhornPlan(extreme, 100, 1e-4).isfinite().all().item<bool>());
  EXPECT_EQ(SinkhornPlan(at::zeros({0, 8}), 100, 1e-4).size(0), 0);
  // All scores lean to expert 0; the plan spreads them, evaluation does not.
  RouterUnderTest made("experts: 4 top_k: 1 router { sinkhorn {} }", 5);
  at::Tensor x = Normal({40, 5}, 1);
  made.Get("gate.weight").detach()[0].add_(1.0);
  x = x + 1;
  const auto load = [&](bool is_training) {
    return at::bincount(made.Route(x, is_training).expert_ids.view({-1}), {}, 4)
        .max()
        .item<int64_t>();
  };
  EXPECT_LT(load(true), load(false));
}

// RT-15: the bias moves the choice, never the weights; groups that lose are out; Hugging Face 4's
// fill of 0 lets a masked expert win over negative scores; V2 scores a group by its best expert.
TEST(BiasBalancedRouter, BiasAndGroupsActOnTheChoiceAlone) {
  RouterUnderTest made("experts: 4 top_k: 2 router { bias_balanced {} }", 5);
  const at::Tensor x = Normal({6, 5}, 1);
  const Routing before = made.Route(x);
  made.Get("e_score_correction_bias").detach()[3] = 5.0;
  const Routing after = made.Route(x);
  EXPECT_TRUE(after.expert_ids.eq(3).any(1).all().item<bool>());
  EXPECT_FALSE(at::equal(before.expert_ids, after.expert_ids));
  const at::Tensor s = at::sigmoid(after.logits).gather(1, after.expert_ids);
  EXPECT_LT(Distance(after.weights, s / s.sum(1, true)), 1e-12);

  v1::GroupLimit limit;
  limit.set_groups(2);
  limit.set_topk_groups(1);
  limit.set_score(v1::GROUP_SCORE_TOP2_SUM);
  const at::Tensor scores = at::tensor({0.9, 0.0, 0.5, 0.6}, at::kDouble).view({1, 4});
  EXPECT_EQ(SelectTopK(LimitToGroups(scores, limit), 1)[0][0].item<int64_t>(), 3);
  limit.set_score(v1::GROUP_SCORE_MAX);
  EXPECT_EQ(SelectTopK(LimitToGroups(scores, limit), 1)[0][0].item<int64_t>(), 0);
  const at::Tensor negative = at::tensor({-0.9, -0.8, -0.5, -0.6}, at::kDouble).view({1, 4});
  EXPECT_EQ(SelectTopK(LimitToGroups(negative, limit), 1)[0][0].item<int64_t>(), 2);
  limit.set_hf_v4_fill(true);
  EXPECT_EQ(SelectTopK(LimitToGroups(negative, limit), 1)[0][0].item<int64_t>(), 0);
}

// RT-16 and MR10: counts [4, 0, 2, 2] move the bias by [-u, +u, 0, 0]; evaluation and repeated
// passes count nothing, a skipped step forgets its counts.
TEST(BiasBalancedRouter, ControllerMovesTowardsEvenLoad) {
  RouterUnderTest made("experts: 4 top_k: 1 router { bias_balanced {} }", 4);
  made.Get("gate.weight").set_data(at::eye(4, at::kDouble));
  at::Tensor x = at::zeros({8, 4}, at::kDouble);
  for (int64_t n = 0; n < 8; ++n) x[n][n < 4 ? 0 : n < 6 ? 2 : 3] = 1.0;
  const at::Tensor bias = made.Get("e_score_correction_bias");
  const TokenFacts facts = FactsOf(OneSequence(8));
  made.Route(x, true);
  made.router->EndUpdate(/*is_applied=*/false);
  made.router->EndUpdate(/*is_applied=*/true);
  EXPECT_EQ(bias.abs().max().item<double>(), 0.0);
  // Two micro-batches, an evaluation and a repeated pass between them.
  const auto part = [&](int64_t first) {
    made.Route(x.narrow(0, first, 4), FactsOf(OneSequence(4)), true);
  };
  part(0);
  made.Route(x, false);
  made.router->Route({.hidden = x, .tokens = facts, .is_training = true});
  part(4);
  made.router->EndUpdate(true);
  const at::Tensor expected = at::tensor({-1e-3F, 1e-3F, 0.0F, 0.0F});
  EXPECT_LT(Distance(bias, expected), 1e-9);
}

// EE-3: the controller evens out a router that leans to one expert.
TEST(BiasBalancedRouter, EvensOutALeaningRouter) {
  for (const bool is_moving : {true, false}) {
    RouterUnderTest made(std::string("experts: 8 top_k: 2 router { bias_balanced { "
                                     "bias_update_rate: ") +
                             (is_moving ? "0.001" : "0") + " } }",
                         32, /*is_double=*/false);
    made.Get("gate.weight").set_data((Normal({8, 32}, 5) * 0.2).to(at::kFloat));
    // A constant input column adds 1 to expert 0's score.
    const at::Tensor weight = made.Get("gate.weight").detach();
    weight.select(1, 31).zero_();
    weight[0][31].fill_(1.0);
    double worst = 0;
    int counted = 0;
    for (uint64_t step = 0; step < 500; ++step) {
      at::Tensor x = Normal({1024, 32}, 100 + step).to(at::kFloat);
      x.select(1, 31).fill_(1.0);
      const Routing routing = made.Route(x, true, step);
      made.router->EndUpdate(true);
      if (step < 450) continue;
      const double most =
          at::bincount(routing.expert_ids.view({-1}), {}, 8).to(at::kDouble).max().item<double>();
      worst += most / (1024.0 * 2 / 8) - 1;
      ++counted;
    }
    if (is_moving) {
      EXPECT_LT(worst / counted, 0.2);
    } else {
      EXPECT_GT(worst / counted, 1.0);
    }
  }
}

// RT-18 and MR5: which of eight assignments an expert with room for two gives up, by each policy.
TEST(Capacity, DropsByItsPolicy) {
  // Four tokens of two sequences, two choices each; expert 0 is wanted by all.
  const auto routing = [] {
    Routing made;
    made.expert_ids = at::tensor({0, 1, 1, 0, 0, 1, 1, 0}, at::kLong).view({4, 2});
    made.weights = at::tensor({0.6, 0.4, 0.9, 0.1, 0.8, 0.2, 0.7, 0.3}, at::kDouble).view({4, 2});
    return made;
  };
  const TokenFacts facts = FactsOf(at::zeros({2, 2}, at::kLong));
  v1::CapacitySpec spec;
  spec.mutable_factor()->set_train(0.5);  // 4 * 2 / 2 * 0.5 = 2
  const auto kept = [&](v1::DropPolicy policy) {
    spec.set_drop(policy);
    Routing cut = routing();
    const CapacityOutcome outcome = ApplyCapacity(spec, true, 2, facts, &cut);
    EXPECT_EQ(outcome.capacity, 2);
    EXPECT_EQ(outcome.dropped, 4);
    EXPECT_EQ(outcome.load_max, 4);
    EXPECT_TRUE(at::equal(cut.weights.eq(0), cut.expert_ids.lt(0)));
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 8; ++i) ids.push_back(cut.expert_ids.view({-1})[i].item<int64_t>());
    return ids;
  };
  // Rows are (sequence 0: t 0, t 1), (sequence 1: t 0, t 1). First come by time: rows 0 and 2.
  EXPECT_EQ(kept(v1::DROP_POLICY_POSITION), (std::vector<int64_t>{0, 1, -1, -1, 0, 1, -1, -1}));
  // All first choices before all second ones.
  EXPECT_EQ(kept(v1::DROP_POLICY_SLOT), (std::vector<int64_t>{0, -1, 1, -1, 0, -1, 1, -1}));
  // The largest weights: 0.8 and 0.6 on expert 0, 0.9 and 0.7 on expert 1.
  EXPECT_EQ(kept(v1::DROP_POLICY_PROBABILITY), (std::vector<int64_t>{0, -1, 1, -1, 0, -1, 1, -1}));
  spec.set_min(4);
  Routing all = routing();
  EXPECT_EQ(ApplyCapacity(spec, true, 2, facts, &all).dropped, 0);
}

// MR5: twelve pads before four real tokens take no place of expert 0.
TEST(Capacity, PaddingTakesNoPlace) {
  Routing routing;
  routing.expert_ids = at::cat({at::full({12, 1}, -1, at::kLong), at::zeros({4, 1}, at::kLong)});
  routing.weights = at::cat({at::zeros({12, 1}), at::ones({4, 1})});
  v1::CapacitySpec spec;
  spec.mutable_factor()->set_train(1.0);
  spec.set_drop(v1::DROP_POLICY_POSITION);
  const at::Tensor ids =
      at::cat({at::full({1, 12}, -1, at::kLong), at::zeros({1, 4}, at::kLong)}, 1);
  const CapacityOutcome outcome = ApplyCapacity(spec, true, 4, FactsOf(ids), &routing);
  EXPECT_EQ(outcome.capacity, 4);
  EXPECT_EQ(outcome.dropped, 0);
}

}  // namespace
}  // namespace switchyard::model
