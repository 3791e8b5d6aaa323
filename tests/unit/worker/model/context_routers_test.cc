// The routers that look beyond one token and layer (mcf, rmoe, cosine) in whole models: causality,
// padding, segments and memory, gradients, dropout.
#include <cmath>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "tests/unit/worker/model/testing.h"

namespace switchyard::model {
namespace {

constexpr uint32_t kVocab = 13;

at::Tensor Tokens(int64_t rows, int64_t len, uint64_t seed) {
  at::Tensor tokens = at::empty({rows, len}, at::kLong);
  const RandomKey key = RandomKey::For(seed, "tokens");
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.data_ptr<int64_t>()[i] =
        static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(i), kVocab));
  }
  return tokens;
}

constexpr char kXl[] =
    "seed: 3 model { transformer_xl { layers: 3 d_model: 16 heads: 2 d_head: 6 d_inner: 20 "
    "dropout: 0 init_std: 0.3 } ";
constexpr char kDecoder[] =
    "seed: 3 model { decoder { layers: 3 d_model: 16 heads: 4 kv_heads: 2 d_inner: 20 "
    "init_std: 0.3 } ";

std::string Mcf(const std::string& options) {
  return "mcf { heads: 2 d_kv: 4 r: 3 k_loc: 2 attn_dropout: 0 " + options + " } ";
}

std::string Moe(const std::string& router, const std::string& more = "") {
  return StrCat("moe { layers: [0, 1, 2] experts: 5 top_k: 2 dispatch: DISPATCH_DENSE_REFERENCE ",
                more, " router { ", router, " } } }");
}

struct Causality {
  const char* name;
  std::string router;
  bool is_causal = true;
  std::string more = "";
};

class CausalityTest : public testing::TestWithParam<Causality> {};

// Another token at one place changes no bit of any score or prediction before it, in both
// backbones; where the router is a literal reading that sees the future, it does (MCF-3, MCF-4).
TEST_P(CausalityTest, LaterTokensChangeNoBit) {
  const Causality& c = GetParam();
  for (const char* backbone : {kXl, kDecoder}) {
    const auto model = ModelOf(backbone + Moe(c.router, c.more), kVocab);
    const at::Tensor tokens = Tokens(2, 23, 1), targets = Tokens(2, 23, 2);
    const ForwardContext context{.wants_routing = true};
    const ForwardResult before = model->Forward(tokens, targets, context, nullptr, 0);
    const at::Tensor logits = model->Logits(tokens, context, nullptr, 0);
    bool sees_future = false;
    for (const int64_t at : {1, 2, 3, 4, 12, 21, 22}) {
      at::Tensor other = tokens.clone();
      other.narrow(1, at, 1).add_(5).remainder_(kVocab);
      const ForwardResult after = model->Forward(other, targets, context, nullptr, 0);
      for (size_t layer = 0; layer < before.routing.size(); ++layer) {
        const auto rows = [&](const ForwardResult& result) {
          return result.routing[layer].logits.view({2, 23, 5}).narrow(1, 0, at);
        };
        const auto ids = [&](const ForwardResult& result) {
          return result.routing[layer].expert_ids.view({2, 23, -1}).narrow(1, 0, at);
        };
        const bool is_equal =
            at::equal(rows(before), rows(after)) && at::equal(ids(before), ids(after));
        sees_future = sees_future || !is_equal;
        if (c.is_causal) {
          EXPECT_TRUE(is_equal) << backbone << " position " << at << " layer " << layer;
        }
      }
      if (c.is_causal) {
        EXPECT_TRUE(at::equal(logits.narrow(1, 0, at),
                              model->Logits(other, context, nullptr, 0).narrow(1, 0, at)))
            << backbone << " position " << at;
      }
    }
    EXPECT_EQ(sees_future, !c.is_causal);
  }
}
INSTANTIATE_TEST_SUITE_P(
    Routers, CausalityTest,
    testing::Values(
        Causality{"mcf", Mcf("")},
        Causality{"mcf_wide", "mcf { heads: 2 d_kv: 4 r: 40 k_loc: 50 }"},
        Causality{"mcf_self", Mcf("local_include_self: true")},
        Causality{"mcf_mean", Mcf("local_weight: LOCAL_WEIGHT_MEAN")},
        Causality{"mcf_cosine", Mcf("local_scale: LOCAL_SCALE_COSINE")},
        Causality{"mcf_window", Mcf("global_mask: GLOBAL_MASK_WINDOW")},
        Causality{"mcf_same", Mcf("global_mask: GLOBAL_MASK_SAME_POSITION global_causal: false")},
        Causality{"mcf_double", Mcf("fusion: FUSION_DOUBLE_ATTN")},
        Causality{"mcf_concat", Mcf("fusion: FUSION_CONCAT")},
        Causality{"mcf_rope", Mcf("position: ROUTER_POSITION_ROPE")},
        Causality{"mcf_outputs", Mcf("history: HISTORY_SOURCE_LAYER_OUTPUT history_layers: "
                                     "HISTORY_LAYERS_ALL_PLUS_EMBEDDING")},
        Causality{"mcf_raw", Mcf("history_norm: HISTORY_NORM_RAW_RMSNORM")},
        Causality{"mcf_both", Mcf("local_dir: LOCAL_DIRECTION_BOTH"), false},
        Causality{"mcf_global", Mcf("global_causal: false"), false},
        Causality{"mcf_double_global", Mcf("fusion: FUSION_DOUBLE_ATTN global_causal: false"),
                  false},
        Causality{"rmoe", "rmoe { state_size: 6 }"},
        Causality{"rmoe_own", "rmoe { state_size: 6 gru_shared: false residual_gate: true }"},
        Causality{"cosine", "cosine { d_score: 6 hops: 3 }"},
        Causality{"cosine_static", "cosine { d_score: 6 hops: 2 later_hidden: HOP_HIDDEN_UPDATED }",
                  true, "expert { kind: EXPERT_KIND_STATIC }"}),
    [](const auto& info) { return std::string(info.param.name); });

struct Named {
  const char* name;
  std::string router;
  std::string more = "";
};

class EveryContextRouter : public testing::TestWithParam<Named> {};

// Every parameter of the whole model, against central differences in float64, with the router's own
// dropout on (8.2).
TEST_P(EveryContextRouter, GradientsAreThoseOfFiniteDifferences) {
  const auto model = ModelOf(kXl + Moe(GetParam().router, GetParam().more), kVocab);
  ToDouble(*model);
  const at::Tensor tokens = Tokens(2, 6, 1), targets = Tokens(2, 6, 2);
  const ForwardContext context{.is_training = true, .step = 4, .dropout = RandomKey{7}};
  const auto loss = [&] { return TotalLoss(model->Forward(tokens, targets, context, nullptr, 0)); };
  loss().backward();
  int reached = 0;
  for (const auto& [name, tensor] : model->NamedParameters()) {
    if (!tensor.grad().defined()) {
      tensor.mutable_grad() = at::zeros_like(tensor);
    } else {
      ++reached;
    }
    EXPECT_LT(GradientError(tensor, loss, 12), 1e-5) << name;
  }
  EXPECT_GT(reached, 40);
}

// Nothing is left from one pass to the next; pads behind change nothing, a row of pads alone gives
// no NaN (MCF-6, MCF-9).
TEST_P(EveryContextRouter, PadsAndEarlierPassesChangeNothing) {
  const auto model = ModelOf(kXl + Moe(GetParam().router, GetParam().more), kVocab);
  ToDouble(*model);
  at::Tensor tokens = Tokens(3, 9, 1), targets = Tokens(3, 9, 2);
  for (const at::Tensor& rows : {tokens, targets}) {
    rows[1].narrow(0, 5, 4).fill_(-1);
    rows[2].fill_(-1);
  }
  const ForwardContext context{.wants_routing = true};
  const ForwardResult first = model->Forward(tokens, targets, context, nullptr, 0);
  const ForwardResult second = model->Forward(tokens, targets, context, nullptr, 0);
  EXPECT_TRUE(at::equal(first.nll, second.nll));
  EXPECT_TRUE(first.nll.isfinite().all().item<bool>());
  for (size_t layer = 0; layer < 3; ++layer) {
    EXPECT_TRUE(at::equal(first.routing[layer].logits, second.routing[layer].logits));
  }
  const std::vector<int64_t> lengths = {9, 5};
  for (int64_t row = 0; row < 2; ++row) {
    const int64_t length = lengths[static_cast<size_t>(row)];
    const ForwardResult alone =
        model->Forward(tokens.narrow(0, row, 1).narrow(1, 0, length),
                       targets.narrow(0, row, 1).narrow(1, 0, length), context, nullptr, 0);
    EXPECT_LT(Distance(alone.nll[0], first.nll[row].narrow(0, 0, length)), 1e-10);
    for (size_t layer = 0; layer < 3; ++layer) {
      EXPECT_TRUE(at::equal(alone.routing[layer].expert_ids,
                            first.routing[layer].expert_ids.narrow(0, row * 9, length)));
    }
  }
  first.nll.sum().backward();
  for (const auto& [name, tensor] : model->NamedParameters()) {
    if (!tensor.grad().defined()) continue;
    EXPECT_TRUE(tensor.grad().isfinite().all().item<bool>()) << name;
  }
}

// The split into micro-batches changes neither the router's dropout nor anything else.
TEST_P(EveryContextRouter, MicroBatchesChangeNothing) {
  const auto model = ModelOf(kXl + Moe(GetParam().router, GetParam().more), kVocab);
  ToDouble(*model);
  const at::Tensor tokens = Tokens(4, 6, 1), targets = Tokens(4, 6, 2);
  ForwardContext context{.is_training = true, .step = 5, .dropout = RandomKey::For(3, "dropout")};
  const at::Tensor whole = model->Forward(tokens, targets, context, nullptr, 0).nll;
  std::vector<at::Tensor> parts;
  for (int64_t row = 0; row < 4; row += 2) {
    context.first_sequence = static_cast<uint64_t>(row);
    parts.push_back(
        model->Forward(tokens.narrow(0, row, 2), targets.narrow(0, row, 2), context, nullptr, 0)
            .nll);
  }
  EXPECT_LT(Distance(at::cat(parts), whole), 1e-10);
}
INSTANTIATE_TEST_SUITE_P(
    Routers, EveryContextRouter,
    testing::Values(
        Named{"mcf", "mcf { heads: 2 d_kv: 4 r: 3 k_loc: 2 attn_dropout: 0.3 out_dropout: 0.2 }"},
        Named{"mcf_double", Mcf("fusion: FUSION_DOUBLE_ATTN position: "
                                "ROUTER_POSITION_SAME_POSITION_BIAS tau_learned: true")},
        Named{"mcf_gate", Mcf("fusion: FUSION_MULTI_GATE position: ROUTER_POSITION_ROPE "
                              "proj_bias: true history: HISTORY_SOURCE_LAYER_OUTPUT")},
        Named{"mcf_window", Mcf("fusion: FUSION_GATE global_mask: GLOBAL_MASK_WINDOW layer_emb: "
                                "LAYER_EMBEDDING_RELATIVE local_scale: LOCAL_SCALE_COSINE "
                                "z_residual: true")},
        Named{"rmoe", "rmoe { state_size: 6 }"},
        Named{"cosine", "cosine { d_score: 6 hops: 3 tau: 5 tau_learned: true magnitude: true }",
              "expert { kind: EXPERT_KIND_RANK1 width: 3 act: ACTIVATION_SILU }"},
        Named{"cosine_own",
              "cosine { d_score: 6 hops: 2 tau: 5 proj_bias: true hop_projection: "
              "HOP_PROJECTION_OWN_PROJECTION later_hidden: HOP_HIDDEN_UPDATED }",
              "expert { kind: EXPERT_KIND_STATIC }"}),
    [](const auto& info) { return std::string(info.param.name); });

// With a router memory that holds all history, segments of any length, down to one token at a time,
// give the logits of one long pass; without it the router's context ends at the segment (MCF-5,
// TXL-4, A26).
TEST(McfRouter, SegmentsWithRouterMemoryEqualOnePass) {
  for (const char* options :
       {"router_mem_len: 12", "router_mem_len: 12 position: ROUTER_POSITION_ROPE",
        "router_mem_len: 12 global_mask: GLOBAL_MASK_WINDOW fusion: FUSION_CONCAT", ""}) {
    const auto model = ModelOf(kXl + Moe(Mcf(options)), kVocab);
    ToDouble(*model);
    const at::Tensor tokens = Tokens(2, 12, 1);
    const at::Tensor whole = model->Logits(tokens, {}, nullptr, 0);
    for (const int64_t length : {1, 4}) {
      Memory memory;
      std::vector<at::Tensor> parts;
      for (int64_t at = 0; at < 12; at += length) {
        parts.push_back(model->Logits(tokens.narrow(1, at, length), {}, &memory, 12));
      }
      const double distance = Distance(at::cat(parts, 1), whole);
      if (*options == '\0') {
        EXPECT_GT(distance, 1e-3);
      } else {
        EXPECT_LT(distance, 1e-9) << options << " by " << length;
      }
    }
  }
}

// What a checkpoint holds, the list of memory tensors, is all that a later segment needs; the
// router's part is detached and no longer than asked for.
TEST(McfRouter, MemoryCarriesTheRouterState) {
  const std::string text = kXl + Moe(Mcf("router_mem_len: 5"));
  const auto model = ModelOf(text, kVocab);
  const at::Tensor tokens = Tokens(2, 12, 1);
  Memory memory;
  for (int64_t at = 0; at < 9; at += 3) {
    model->Logits(tokens.narrow(1, at, 3), {}, &memory, 4);
  }
  ASSERT_EQ(memory.size(), 4U + 3U);
  for (size_t i = 0; i < memory.size(); ++i) {
    EXPECT_EQ(memory[i].size(1), i < 4 ? 4 : 5);
    EXPECT_FALSE(memory[i].requires_grad());
  }
  Memory restored;
  for (const at::Tensor& tensor : memory) restored.push_back(tensor.clone());
  const auto resumed = ModelOf(text, kVocab);
  EXPECT_TRUE(at::equal(model->Logits(tokens.narrow(1, 9, 3), {}, &memory, 4),
                        resumed->Logits(tokens.narrow(1, 9, 3), {}, &restored, 4)));
  for (size_t i = 4; i < memory.size(); ++i) restored[i] = at::zeros_like(restored[i]);
  Memory again;
  for (const at::Tensor& tensor : memory) again.push_back(tensor.clone());
  EXPECT_GT(Distance(model->Logits(tokens.narrow(1, 0, 3), {}, &again, 4),
                     model->Logits(tokens.narrow(1, 0, 3), {}, &restored, 4)),
            1e-4);
}

// The first gate has no history: its projections are there, unused; a frozen one stays (A18,
// MCF-7).
TEST(McfRouter, FirstGateUsesItsInputAlone) {
  const auto model = ModelOf(kXl + Moe(Mcf("first_layer: FIRST_LAYER_LINEAR_X_FROZEN")), kVocab);
  model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.is_training = true}, nullptr, 0)
      .nll.sum()
      .backward();
  const std::string first = "layers.0.pos_ff.gate.", second = "layers.1.pos_ff.gate.";
  for (const char* name : {"w_l.weight", "w_k.weight", "w_v.weight", "w_o.weight"}) {
    EXPECT_FALSE(TensorOf(*model, first + name).grad().defined()) << name;
    EXPECT_GT(TensorOf(*model, second + name).grad().abs().max().item<double>(), 0.0) << name;
  }
  EXPECT_FALSE(TensorOf(*model, first + "gate.weight").requires_grad());
  EXPECT_FALSE(TensorOf(*model, first + "gate.bias").requires_grad());
  EXPECT_TRUE(TensorOf(*model, second + "gate.weight").requires_grad());
}

// A detached history passes the values and no gradient: the states of layer 0 reach gate 1 alone
// through the backbone.
TEST(McfRouter, DetachedHistoryKeepsTheValues) {
  const auto flows = ModelOf(kXl + Moe(Mcf("")), kVocab);
  const auto stops = ModelOf(kXl + Moe(Mcf("detach_history: true")), kVocab);
  std::vector<at::Tensor> grads;
  std::vector<at::Tensor> values;
  for (const auto* model : {&flows, &stops}) {
    const ForwardResult result =
        (*model)->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.is_training = true}, nullptr, 0);
    values.push_back(result.nll.detach());
    result.nll.sum().backward();
    grads.push_back(TensorOf(**model, "layers.0.dec_attn.o_net.weight").grad());
  }
  EXPECT_TRUE(at::equal(values[0], values[1]));
  EXPECT_GT(Distance(grads[0], grads[1]), 1e-5);
}

// In the model's type only what precedes the scores: bfloat16 follows float32, scores stay float32.
TEST(McfRouter, ContextInTheActivationTypeFollowsFloat32) {
  for (const std::string& router : {Mcf(""), std::string("rmoe { state_size: 6 } ")}) {
    const std::string half = "train { precision: PRECISION_BF16 }";
    const auto wide = ModelOf(kXl + Moe(router) + half, kVocab);
    const auto narrow =
        ModelOf(kXl + Moe(router + "router_dtype: ROUTER_DTYPE_ACTIVATION") + half, kVocab);
    const ForwardContext context{.wants_routing = true};
    const at::Tensor tokens = Tokens(2, 8, 1);
    const at::Tensor a = wide->Forward(tokens, tokens, context, nullptr, 0).routing[0].logits;
    const ForwardResult result = narrow->Forward(tokens, tokens, context, nullptr, 0);
    EXPECT_EQ(result.routing[2].logits.scalar_type(), at::kFloat);
    EXPECT_LT(Distance(result.routing[0].logits, a), 0.1 * (1 + a.abs().max().item<double>()));
  }
}

// One hop never reads the displacements; scores do not depend on the length of the hidden state;
// the learned temperature ends at 100 (RT-9, RT-10, E0).
TEST(CosineRouter, ScoresAreCosinesTimesTau) {
  const auto model = ModelOf(kDecoder + Moe("cosine { d_score: 6 tau: 8 tau_learned: true }",
                                            "expert { kind: EXPERT_KIND_RANK1 }"),
                             kVocab);
  ToDouble(*model);
  const std::string gate = "model.layers.0.mlp.gate.";
  const at::Tensor tokens = Tokens(2, 6, 1), targets = Tokens(2, 6, 2);
  const ForwardContext context{.wants_routing = true};
  const auto scores = [&] {
    return model->Forward(tokens, targets, context, nullptr, 0).routing[0].logits;
  };
  const at::Tensor before = scores();
  EXPECT_LE(before.abs().max().item<double>(), 8.0 + 1e-9);
  TensorOf(*model, gate + "displacement.weight").detach().mul_(7.0);
  TensorOf(*model, "model.layers.0.post_attention_layernorm.weight").detach().mul_(3.0);
  EXPECT_LT(Distance(scores(), before), 1e-10);
  model->Forward(tokens, targets, {.is_training = true}, nullptr, 0).nll.sum().backward();
  EXPECT_FALSE(TensorOf(*model, gate + "displacement.weight").grad().defined());
  const at::Tensor log_tau = TensorOf(*model, gate + "log_tau");
  EXPECT_NE(log_tau.grad().item<double>(), 0.0);

  log_tau.detach().fill_(9.0);
  // The first temperature, 8, was a logarithm in float32.
  EXPECT_LT(Distance(scores(), before * (100.0 / 8.0)), 1e-5);
  log_tau.mutable_grad() = at::Tensor();
  model->Forward(tokens, targets, {.is_training = true}, nullptr, 0).nll.sum().backward();
  EXPECT_EQ(log_tau.grad().item<double>(), 0.0);

  TensorOf(*model, gate + "w_c.weight").detach().zero_();
  EXPECT_EQ(scores().abs().max().item<double>(), 0.0);
}

// Hops stop in evaluation alone; a threshold above every norm leaves one hop, one of 0 all.
TEST(CosineRouter, HaltsInEvaluationOnly) {
  const auto nll = [](const std::string& options, bool is_training) {
    const auto model = ModelOf(kDecoder + Moe("cosine { d_score: 6 hops: 3 " + options + " }",
                                              "expert { kind: EXPERT_KIND_RANK1 }"),
                               kVocab);
    return model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2),
                          {.is_training = is_training, .wants_routing = true}, nullptr, 0);
  };
  const ForwardResult all = nll("", false), halted = nll("halt_eps: 1e9", false);
  EXPECT_TRUE(at::equal(all.nll, nll("halt_eps: 1e9", true).nll));
  EXPECT_GT(Distance(all.nll, halted.nll), 1e-5);
  EXPECT_EQ(halted.routing[0].expert_ids.narrow(1, 2, 4).max().item<int64_t>(), -1);
  EXPECT_GE(halted.routing[0].expert_ids.narrow(1, 0, 2).min().item<int64_t>(), 0);
  ASSERT_EQ(halted.routing[0].extras.size(), 1U);
  EXPECT_EQ(halted.routing[0].extras[0].second.item<double>(), 1.0);
  EXPECT_TRUE(at::equal(all.nll, nll("halt_eps: 1e-9", false).nll));
}

// A loss on the last layer's scores reaches the first layer's projection through the recurrent
// state alone.
TEST(RmoeRouter, GradientFlowsThroughTheLayers) {
  const auto model =
      ModelOf(kXl + Moe("rmoe { state_size: 6 }", "losses { id: 'z_loss' coef: 1 }"), kVocab);
  ToDouble(*model);
  model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.is_training = true}, nullptr, 0)
      .aux.at(0)
      .value.backward();
  EXPECT_GT(TensorOf(*model, "layers.0.pos_ff.gate.w1.weight").grad().abs().max().item<double>(),
            1e-8);
  EXPECT_GT(TensorOf(*model, "router_gru.weight_hh").grad().abs().max().item<double>(), 1e-8);
}

}  // namespace
}  // namespace switchyard::model
