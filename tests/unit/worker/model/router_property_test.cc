// What every router kind must do, and what its row in the property table (common/spec) says of it.
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/router_testing.h"
#include "tests/unit/worker/model/testing.h"

namespace switchyard::model {
namespace {

constexpr int64_t kD = 6;

struct Kind {
  const char* name;
  const char* router;  // the message's text
  int64_t experts = 6;
  int64_t top_k = 2;
};

std::string Text(const Kind& kind, int64_t experts, int64_t top_k) {
  return "experts: " + std::to_string(experts) + " top_k: " + std::to_string(top_k) + " router { " +
         kind.router + " }";
}

void PrintTo(const Kind& kind, std::ostream* os) { *os << kind.name; }

class EveryRouter : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<RouterUnderTest> Make(bool is_double = true) const {
    return std::make_unique<RouterUnderTest>(Text(GetParam(), GetParam().experts, GetParam().top_k),
                                             kD, is_double);
  }
  bool Is(std::string_view name) const { return GetParam().name == name; }
};

at::Tensor TokenIds(int64_t B, int64_t T, uint64_t seed = 1) {
  at::Tensor ids = at::empty({B, T}, at::kLong);
  const RandomKey key = RandomKey::For(seed, "tokens");
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ids.data_ptr<int64_t>()[i] =
        static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(i), RouterUnderTest::kVocab));
  }
  return ids;
}

bool SameRows(const Routing& a, const Routing& b, const at::Tensor& rows) {
  // Widths may differ where a kind has open slots.
  const int64_t width = std::max(a.expert_ids.size(1), b.expert_ids.size(1));
  const auto of = [&](const Routing& routing) {
    const int64_t missing = width - routing.expert_ids.size(1);
    const at::Tensor ids = at::constant_pad_nd(routing.expert_ids, {0, missing}, -1);
    const at::Tensor weights = at::constant_pad_nd(routing.weights, {0, missing}, 0);
    return at::cat({ids.to(at::kDouble), weights.detach().to(at::kDouble)}, 1)
        .index_select(0, rows);
  };
  // Identical choices; weights to the rounding of a product over another number of rows.
  return at::allclose(of(a), of(b), 0, 1e-12);
}

at::Tensor Range(int64_t begin, int64_t end) { return at::arange(begin, end); }

// MR3: equal scores are not chosen at random; the lowest index wins.
TEST_P(EveryRouter, EqualScoresGoToTheLowestIndex) {
  auto made = Make();
  if (!made->properties.has_scores) GTEST_SKIP() << "no scores";
  for (const auto& [name, tensor] : made->store.parameters()) tensor.detach().zero_();
  for (const int64_t rows : {1, 64}) {
    for (int i = 0; i < 100; ++i) {
      const Routing routing = made->Route(Normal({rows, kD}, 1));
      if (routing.has_open_slots) {
        // Each expert takes the first tokens.
        EXPECT_EQ(routing.expert_ids[0][0].item<int64_t>(), 0);
        continue;
      }
      for (int64_t k = 0; k < routing.expert_ids.size(1); ++k) {
        // One block of columns a hop.
        const int64_t wanted = k % GetParam().top_k;
        EXPECT_EQ(routing.expert_ids.select(1, k).max().item<int64_t>(), wanted);
        EXPECT_EQ(routing.expert_ids.select(1, k).min().item<int64_t>(), wanted);
      }
    }
  }
}

// MR5: padding takes part in nothing. -1 and 0 for pads, and real tokens are routed as without them
// (in training: kinds that balance a batch, over its real tokens).
TEST_P(EveryRouter, PaddingIsNeverRouted) {
  auto made = Make();
  const at::Tensor ids = TokenIds(2, 5);
  const at::Tensor x = Normal({10, kD}, 1);
  const at::Tensor pads = at::full({2, 3}, -1, at::kLong);
  const at::Tensor padded_ids = at::cat({ids, pads}, 1);
  for (const double pad_value : {0.0, 1e3}) {
    const at::Tensor padded_x =
        at::cat({x.view({2, 5, kD}), at::full({2, 3, kD}, pad_value, at::kDouble)}, 1)
            .reshape({16, kD});
    for (const bool is_training : {false, true}) {
      const Routing bare = made->Route(x, FactsOf(ids), is_training);
      const Routing padded = made->Route(padded_x, FactsOf(padded_ids), is_training);
      const at::Tensor is_pad = padded_ids.view({-1}).lt(0).nonzero().squeeze(1);
      EXPECT_EQ(padded.expert_ids.index_select(0, is_pad).max().item<int64_t>(), -1);
      EXPECT_EQ(padded.weights.index_select(0, is_pad).abs().max().item<double>(), 0.0);
      const at::Tensor real = padded_ids.view({-1}).ge(0).nonzero().squeeze(1);
      Routing kept = padded;
      kept.expert_ids = padded.expert_ids.index_select(0, real);
      kept.weights = padded.weights.index_select(0, real);
      EXPECT_TRUE(SameRows(kept, bare, Range(0, 10))) << "training " << is_training;
    }
  }
}

// MR8: one token, one sequence, as many choices as experts, one expert: no NaN, ids in range.
TEST_P(EveryRouter, SmallestCasesAreOrdinary) {
  for (const auto& [experts, top_k] : std::vector<std::pair<int64_t, int64_t>>{
           {GetParam().experts, GetParam().top_k}, {GetParam().top_k, GetParam().top_k}}) {
    RouterUnderTest made(Text(GetParam(), experts, top_k) + " allow_constant_gate: true", kD);
    for (const bool is_training : {false, true}) {
      for (const int64_t rows : {1, 5}) {
        const Routing routing =
            made.Route(Normal({rows, kD}, 3), FactsOf(TokenIds(1, rows)), is_training);
        EXPECT_TRUE(routing.weights.isfinite().all().item<bool>());
        EXPECT_LT(routing.expert_ids.max().item<int64_t>(), experts);
        EXPECT_GE(routing.expert_ids.min().item<int64_t>(), -1);
        EXPECT_EQ(routing.expert_ids.size(0), rows);
      }
      const Routing pads =
          made.Route(Normal({2, kD}, 3), FactsOf(at::full({1, 2}, -1, at::kLong)), is_training);
      EXPECT_EQ(pads.expert_ids.max().item<int64_t>(), -1);
      EXPECT_TRUE(pads.weights.isfinite().all().item<bool>());
    }
  }
}

// MR7: hidden states of 7e4 in the router's float32 give finite weights in both phases.
TEST_P(EveryRouter, LargeScoresStayFinite) {
  auto made = Make(/*is_double=*/false);
  const at::Tensor x = Normal({12, kD}, 1).to(at::kFloat) * 7e4;
  for (const bool is_training : {false, true}) {
    const Routing routing = made->Route(x, FactsOf(TokenIds(2, 6)), is_training);
    EXPECT_TRUE(routing.weights.isfinite().all().item<bool>());
    EXPECT_EQ(routing.weights.scalar_type(), at::kFloat);
    // Half precision in, float32 inside: the same choice as of the same values in float32.
    const at::Tensor half = x.to(at::kBFloat16);
    const Routing narrow = made->Route(half, FactsOf(TokenIds(2, 6)), is_training);
    const Routing wide = made->Route(half.to(at::kFloat), FactsOf(TokenIds(2, 6)), is_training);
    EXPECT_TRUE(at::equal(narrow.expert_ids, wide.expert_ids));
    if (made->properties.has_scores) {
      EXPECT_EQ(narrow.weights.scalar_type(), at::kFloat);
    }
  }
}

// A row's experts are all different, best first by weight, and no dead slot comes before a used
// one.
TEST_P(EveryRouter, RowsAreOrderedAndDistinct) {
  if (Is("cosine")) GTEST_SKIP() << "chooses anew at every hop";
  auto made = Make();
  for (const bool is_training : {false, true}) {
    const Routing routing = made->Route(Normal({40, kD}, 5), FactsOf(TokenIds(4, 10)), is_training);
    for (int64_t n = 0; n < 40; ++n) {
      std::set<int64_t> seen;
      for (int64_t k = 0; k < routing.expert_ids.size(1); ++k) {
        const int64_t id = routing.expert_ids[n][k].item<int64_t>();
        if (id >= 0) {
          EXPECT_TRUE(seen.insert(id).second) << "row " << n;
        }
        if (k > 0) {
          EXPECT_GE(routing.expert_ids[n][k - 1].item<int64_t>(), id < 0 ? -1 : 0);
        }
      }
    }
  }
}

// MR3: two calls, and two routers made alike, give the same bits.
TEST_P(EveryRouter, GivesTheSameBitsTwice) {
  auto one = Make(), two = Make();
  const at::Tensor x = Normal({12, kD}, 1);
  const TokenFacts facts = FactsOf(TokenIds(2, 6));
  for (const bool is_training : {false, true}) {
    const Routing a = one->Route(x, facts, is_training), b = one->Route(x, facts, is_training),
                  c = two->Route(x, facts, is_training);
    for (const Routing* other : {&b, &c}) {
      EXPECT_TRUE(at::equal(a.expert_ids, other->expert_ids));
      EXPECT_TRUE(at::equal(a.weights, other->weights));
    }
  }
}

// MR6: noise is of training alone: evaluation at two steps is one result, whatever the stream.
TEST_P(EveryRouter, EvaluationHasNoNoise) {
  if (Is("per_call")) GTEST_SKIP() << "draws its scores anew at every step by its definition";
  auto made = Make();
  const at::Tensor x = Normal({30, kD}, 1);
  const TokenFacts facts = FactsOf(TokenIds(3, 10));
  const Routing a = made->Route(x, facts, false, 1), b = made->Route(x, facts, false, 2);
  EXPECT_TRUE(at::equal(a.expert_ids, b.expert_ids));
  EXPECT_TRUE(at::equal(a.weights, b.weights));
}

// The noise of a token is a function of its place: a part of the batch is routed as in the whole.
TEST_P(EveryRouter, TheSplitOfTheBatchChangesNoNoise) {
  auto made = Make();
  if (!made->properties.is_batch_independent_in_training) GTEST_SKIP() << "balances the batch";
  const at::Tensor x = Normal({20, kD}, 1), ids = TokenIds(4, 5);
  const Routing whole = made->Route(x, FactsOf(ids), /*is_training=*/true);
  TokenFacts facts = FactsOf(ids.narrow(0, 2, 2));
  facts.sequence_ids = facts.sequence_ids + 2;
  Routing part = made->Route(x.narrow(0, 10, 10), facts, /*is_training=*/true);
  Routing same = whole;
  same.expert_ids = whole.expert_ids.narrow(0, 10, 10);
  same.weights = whole.weights.narrow(0, 10, 10);
  EXPECT_TRUE(SameRows(part, same, Range(0, 10)));
}

// Causality by perturbation: where the table says causal, later tokens change nothing before them;
// where it does not, some trial shows that they do.
TEST_P(EveryRouter, LaterTokensChangeNothingWhereTheTableSaysCausal) {
  auto made = Make();
  const int64_t B = 3, T = 8;
  for (const bool is_training : {false, true}) {
    const bool is_causal = is_training ? made->properties.is_causal_in_training
                                       : made->properties.is_causal_in_evaluation;
    bool has_changed = false;
    for (uint64_t trial = 0; trial < 10; ++trial) {
      const at::Tensor x = Normal({B, T, kD}, 10 + trial), ids = TokenIds(B, T, trial);
      const int64_t last = static_cast<int64_t>(trial % 6);
      at::Tensor other_x = x.clone(), other_ids = ids.clone();
      other_x.narrow(1, last + 1, T - last - 1)
          .copy_(Normal({B, T - last - 1, kD}, 99 + trial) * 2);
      other_ids.narrow(1, last + 1, T - last - 1).copy_(TokenIds(B, T - last - 1, 50 + trial));
      const Routing a = made->Route(x.view({-1, kD}), FactsOf(ids), is_training);
      const Routing b = made->Route(other_x.view({-1, kD}), FactsOf(other_ids), is_training);
      const at::Tensor rows =
          (at::arange(B).unsqueeze(1) * T + at::arange(last + 1).unsqueeze(0)).view({-1});
      has_changed = has_changed || !SameRows(a, b, rows);
    }
    EXPECT_EQ(has_changed, !is_causal) << "training " << is_training;
  }
}

// The same for the other sequences of the batch.
TEST_P(EveryRouter, OtherSequencesChangeNothingWhereTheTableSaysIndependent) {
  auto made = Make();
  const int64_t B = 4, T = 6;
  for (const bool is_training : {false, true}) {
    const bool is_independent = is_training ? made->properties.is_batch_independent_in_training
                                            : made->properties.is_batch_independent_in_evaluation;
    bool has_changed = false;
    for (uint64_t trial = 0; trial < 10; ++trial) {
      const at::Tensor x = Normal({B, T, kD}, 10 + trial), ids = TokenIds(B, T, trial);
      at::Tensor other_x = x.clone(), other_ids = ids.clone();
      other_x.narrow(0, 1, B - 1).copy_(Normal({B - 1, T, kD}, 99 + trial) * 2);
      other_ids.narrow(0, 1, B - 1).copy_(TokenIds(B - 1, T, 50 + trial));
      const Routing a = made->Route(x.view({-1, kD}), FactsOf(ids), is_training);
      const Routing b = made->Route(other_x.view({-1, kD}), FactsOf(other_ids), is_training);
      has_changed = has_changed || !SameRows(a, b, Range(0, T));
    }
    EXPECT_EQ(has_changed, !is_independent) << "training " << is_training;
  }
}

// ML4: the gradient of the weights reaches every trainable tensor and is that of finite
// differences; frozen ones take none.
TEST_P(EveryRouter, GradientReachesTheRouter) {
  auto made = Make();
  made->Widen(2);
  const at::Tensor x = Normal({14, kD}, 3);
  const TokenFacts facts = FactsOf(TokenIds(2, 7));
  const auto loss = [&] {
    const Routing routing = made->Route(x, facts, /*is_training=*/true);
    at::Tensor total = (routing.weights * Normal(routing.weights.sizes(), 8)).sum();
    if (routing.logits.defined()) total = total + routing.logits.square().mean();
    return total;
  };
  std::vector<std::pair<std::string, at::Tensor>> trained;
  for (const auto& entry : made->store.parameters()) {
    if (entry.second.requires_grad()) trained.push_back(entry);
  }
  EXPECT_EQ(!trained.empty(), made->properties.is_trainable);
  if (trained.empty()) return;
  loss().backward();
  for (const auto& [name, tensor] : made->store.parameters()) {
    if (!tensor.requires_grad()) {
      EXPECT_FALSE(tensor.grad().defined()) << name;
      continue;
    }
    ASSERT_TRUE(tensor.grad().defined()) << name;
    // The state before the first layer is 0.
    if (name == "router_gru.weight_hh") continue;
    EXPECT_GT(tensor.grad().abs().max().item<double>(), 1e-9) << name;
    EXPECT_LT(GradientError(tensor, loss, 16), 1e-5) << name;
  }
}

// Evaluation with another number of experts per token, as the schedule kinds ask for it.
TEST_P(EveryRouter, EvaluatesWithAnotherNumberOfExperts) {
  auto made = Make();
  if (!made->properties.has_scores || Is("expert_choice") || Is("expert_choice_sequence") ||
      Is("expert_choice_position") || Is("expert_choice_threshold") || Is("cosine")) {
    GTEST_SKIP() << "no top-k of a token";
  }
  const at::Tensor x = Normal({5, kD}, 1);
  const TokenFacts facts = FactsOf(TokenIds(1, 5));
  const Routing routing = made->Route(x, facts, /*is_training=*/false, /*step=*/3, /*top_k=*/1);
  EXPECT_EQ(routing.expert_ids.size(1), 1);
  EXPECT_TRUE(at::equal(routing.expert_ids, made->Route(x, facts).expert_ids.narrow(1, 0, 1)));
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryRouter,
    testing::Values(
        Kind{"smoe", "smoe {}"}, Kind{"smoe_full", "smoe {} gate_norm: GATE_NORM_SOFTMAX_FULL"},
        Kind{"smoe_sigmoid", "smoe {} gate_norm: GATE_NORM_SIGMOID_RENORM"},
        Kind{"smoe_jitter", "smoe {} noise { kind: NOISE_KIND_INPUT_JITTER eps: 0.3 }"},
        Kind{"smoe_gaussian", "smoe {} noise { kind: NOISE_KIND_GAUSSIAN_FIXED }"},
        Kind{"smoe_dropout", "smoe_dropout { logit_dropout: 0.3 }"},
        Kind{"hyper_router", "hyper_router { hyper_size: 5 }"},
        Kind{"hyper_scheduled",
             "hyper_router { hyper_size: 5 schedule { mode: K_SCHEDULE_MODE_COSINE k_min: 2 } }"},
        Kind{"xmoe", "xmoe { proj_dim: 4 }"},
        Kind{"xmoe_torchscale",
             "xmoe { proj_dim: 4 cos_normalize_input: false emb_renorm: EMBEDDING_RENORM_UNIT "
             "temperature: XMOE_TEMPERATURE_LEARNED_EXP_CLAMP tau: 0.5 }"},
        Kind{"mcf", "mcf { r: 3 k_loc: 2 heads: 2 d_kv: 4 attn_dropout: 0 }"},
        Kind{"rmoe", "rmoe { state_size: 5 }"},
        Kind{"cosine", "cosine { d_score: 4 hops: 2 tau: 5 }"}, Kind{"hash", "hash {}"},
        Kind{"hash_balanced", "hash { balanced: true }"}, Kind{"hash_multi", "hash { multi: 2 }"},
        Kind{"random_fixed", "random_fixed {}"},
        Kind{"random_fixed_cosine", "random_fixed { score: RANDOM_FIXED_SCORE_COSINE }"},
        Kind{"token_table", "random_fixed { mode: RANDOM_FIXED_MODE_TOKEN_TABLE }"},
        Kind{"position_table", "random_fixed { mode: RANDOM_FIXED_MODE_POSITION_TABLE }"},
        Kind{"per_call", "random_fixed { mode: RANDOM_FIXED_MODE_PER_CALL }"},
        Kind{"switch", "switch {}", 6, 1}, Kind{"gshard", "gshard {}"},
        Kind{"noisy_topk", "noisy_topk {}"}, Kind{"expert_choice", "expert_choice {}"},
        Kind{"expert_choice_sequence", "expert_choice { group: EXPERT_CHOICE_GROUP_SEQUENCE }"},
        Kind{"expert_choice_position",
             "expert_choice { group: EXPERT_CHOICE_GROUP_BATCH_AT_POSITION }"},
        Kind{"expert_choice_threshold", "expert_choice { threshold_inference: true }"},
        Kind{"base", "base {}", 6, 1}, Kind{"sinkhorn", "sinkhorn {}", 6, 1},
        Kind{"sinkhorn_two", "sinkhorn {}"}, Kind{"bias_balanced", "bias_balanced {}"},
        Kind{"bias_balanced_softmax", "bias_balanced { score: SCORE_FUNCTION_SOFTMAX }"},
        Kind{"deepseek", "deepseek {}"}, Kind{"mixtral", "mixtral {}"}, Kind{"olmoe", "olmoe {}"},
        Kind{"qwen3", "qwen3 {}"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace switchyard::model
