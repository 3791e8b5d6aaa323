// Routers inside whole models: padding, micro-batches, losses, noise, capacity, controllers.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"
#include "worker/model/losses.h"

namespace switchyard::model {
namespace {

constexpr uint32_t kVocab = 13;
constexpr char kDecoder[] =
    "seed: 3 model { decoder { layers: 3 d_model: 16 heads: 4 d_inner: 12 init_std: 0.2 } ";

at::Tensor Tokens(int64_t rows, int64_t len, uint64_t seed) {
  at::Tensor tokens = at::empty({rows, len}, at::kLong);
  const RandomKey key = RandomKey::For(seed, "tokens");
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    tokens.data_ptr<int64_t>()[i] =
        static_cast<int64_t>(RandomBelow(key, static_cast<uint64_t>(i), kVocab));
  }
  return tokens;
}

struct Kind {
  const char* name;
  const char* router;
  int top_k = 2;
  const char* loss = "losses { id: 'megatron_aux' coef: 1 } losses { id: 'z_loss' coef: 0.1 } ";
  bool balances_batch = false;
};
void PrintTo(const Kind& kind, std::ostream* os) { *os << kind.name; }

std::string ModelText(const Kind& kind, const std::string& more = "") {
  return std::string(kDecoder) +
         "moe { layers: [0, 2] experts: 4 top_k: " + std::to_string(kind.top_k) + " router { " +
         kind.router + " } " + kind.loss + more + "} } train { steps: 10 }";
}

std::unique_ptr<LanguageModel> DoubleModel(const std::string& text) {
  auto model = ModelOf(text, kVocab);
  for (const auto& [name, tensor] : model->NamedParameters()) {
    const bool is_trained = tensor.requires_grad();
    tensor.set_data(tensor.detach().to(at::kDouble));
    tensor.set_requires_grad(is_trained);
  }
  return model;
}

void ClearGradients(const LanguageModel& model) {
  for (const auto& [name, tensor] : model.NamedParameters()) tensor.mutable_grad() = at::Tensor();
}

class EveryKind : public testing::TestWithParam<Kind> {};

// ML2 and MR5: batch 2 x 8 with 5 pads against the same tokens without pads: nll, balance and z
// losses and load agree, in training too.
TEST_P(EveryKind, PaddingCountsNothing) {
  const auto model = DoubleModel(ModelText(GetParam()));
  at::Tensor tokens = Tokens(2, 8, 1), targets = Tokens(2, 8, 2);
  const at::Tensor pads = at::full({2, 5}, -1, at::kLong);
  for (const bool is_training : {false, true}) {
    const ForwardContext context{
        .is_training = is_training, .dropout = RandomKey{7}, .wants_routing = true};
    const ForwardResult bare = model->Forward(tokens, targets, context, nullptr, 0);
    const ForwardResult padded = model->Forward(at::cat({tokens, pads}, 1),
                                                at::cat({targets, pads}, 1), context, nullptr, 0);
    EXPECT_LT(Distance(padded.nll.narrow(1, 0, 8), bare.nll), 1e-9);
    ASSERT_EQ(padded.aux.size(), bare.aux.size());
    for (size_t i = 0; i < bare.aux.size(); ++i) {
      EXPECT_LT(Distance(padded.aux[i].value, bare.aux[i].value), 1e-6) << bare.aux[i].id;
    }
    for (size_t l = 0; l < bare.routing.size(); ++l) {
      for (int64_t e = 0; e < 4; ++e) {
        EXPECT_EQ(padded.routing[l].expert_ids.eq(e).sum().item<int64_t>(),
                  bare.routing[l].expert_ids.eq(e).sum().item<int64_t>());
      }
    }
  }
}

// ML3: four equal micro-batches, averaged, give the router gradient of one of them; each takes its
// own noise by its place, so that the same place is repeated here.
TEST_P(EveryKind, EqualMicroBatchesKeepTheStrengthOfTheLoss) {
  const auto model = DoubleModel(ModelText(GetParam()));
  std::map<std::string, at::Tensor> once;
  for (const int parts : {1, 4}) {
    ClearGradients(*model);
    for (int i = 0; i < parts; ++i) {
      const ForwardResult result =
          model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.is_training = true}, nullptr, 0);
      at::Tensor loss = result.nll.mean();
      for (const LossTerm& term : result.aux) loss = loss + term.value;
      (loss / parts).backward();
    }
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!tensor.grad().defined()) continue;
      if (parts == 1) {
        once[name] = tensor.grad().clone();
      } else {
        EXPECT_LT(Distance(tensor.grad(), once.at(name)), 1e-6) << name;
      }
    }
  }
}

// ML4: with the main loss out, the balance losses alone move what the router trains, export on or
// off, by the gradient of finite differences.
TEST_P(EveryKind, LossesReachTheRouter) {
  const auto model = DoubleModel(ModelText(GetParam()));
  for (const bool wants_routing : {false, true}) {
    ClearGradients(*model);
    const auto loss = [&] {
      const ForwardResult result = model->Forward(
          Tokens(2, 6, 1), Tokens(2, 6, 2),
          {.is_training = true, .dropout = RandomKey{7}, .wants_routing = wants_routing}, nullptr,
          0);
      at::Tensor total;
      for (const LossTerm& term : result.aux) {
        total = total.defined() ? total + term.value : term.value;
      }
      return total;
    };
    const at::Tensor total = loss();
    ASSERT_TRUE(total.defined());
    total.backward();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (name.find(".gate.") == std::string::npos || !tensor.requires_grad()) continue;
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_GT(tensor.grad().abs().max().item<double>(), 1e-9) << name;
      EXPECT_LT(GradientError(tensor, loss, 6), 1e-4) << name;
    }
  }
}

// ML5: exported scores are scores: the losses recomputed from the export are the reported ones.
TEST_P(EveryKind, ExportedScoresGiveTheReportedLoss) {
  const auto model = DoubleModel(ModelText(GetParam()));
  const ForwardResult result =
      model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.wants_routing = true}, nullptr, 0);
  std::vector<LayerScores> layers;
  for (const LayerRouting& layer : result.routing) {
    EXPECT_GT(Distance(layer.logits.sum(1), at::ones({12}, layer.logits.options())), 1e-3);
    layers.push_back({.logits = layer.logits, .expert_ids = layer.expert_ids});
  }
  for (const LossTerm& term : result.aux) {
    if (term.id != "z_loss") continue;
    const LossConfig config{.id = "z_loss", .definition = LossDefinition::kZLoss, .coef = 1};
    const at::Tensor again = BalanceLoss(config, layers, at::ones({12}, at::kBool), 2, {});
    EXPECT_LT(Distance(again * 0.1, term.value), 1e-6);
  }
}

// MR8: twenty steps without NaN, on batches down to one token.
TEST_P(EveryKind, TrainsWithoutNan) {
  const auto model = ModelOf(ModelText(GetParam()), kVocab);
  for (uint64_t step = 0; step < 20; ++step) {
    ClearGradients(*model);
    const int64_t rows = step % 2 == 0 ? 2 : 1, len = step % 3 == 0 ? 1 : 5;
    const at::Tensor loss =
        TotalLoss(model->Forward(Tokens(rows, len, step), Tokens(rows, len, 99),
                                 {.is_training = true, .step = step}, nullptr, 0));
    ASSERT_TRUE(std::isfinite(loss.item<double>())) << step;
    loss.backward();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!tensor.grad().defined()) continue;
      ASSERT_TRUE(tensor.grad().isfinite().all().item<bool>()) << name;
      tensor.detach().sub_(tensor.grad() * 0.01);
    }
    model->EndUpdate(true);
  }
}

// MR10: evaluation and repeated passes leave every buffer as it was, and the next training loss
// unchanged.
TEST_P(EveryKind, EvaluationLeavesNoTrace) {
  std::vector<double> losses;
  for (const int evaluations : {0, 50}) {
    const auto model = ModelOf(ModelText(GetParam(),
                                         "losses { id: 'deepseek_batch' coef: 0.1 "
                                         "scope: LOSS_SCOPE_GLOBAL } "),
                               kVocab);
    for (uint64_t step = 0; step < 3; ++step) {
      const ForwardContext context{.is_training = true, .step = step};
      losses.push_back(
          TotalLoss(model->Forward(Tokens(2, 6, step), Tokens(2, 6, 9), context, nullptr, 0))
              .item<double>());
      for (int i = 0; i < evaluations; ++i) {
        model->Forward(Tokens(3, 6, 40), Tokens(3, 6, 41), {.step = step}, nullptr, 0);
      }
      if (evaluations > 0) {
        ForwardContext again = context;
        again.is_recomputed = true;
        model->Forward(Tokens(2, 6, step), Tokens(2, 6, 9), again, nullptr, 0);
      }
      model->EndUpdate(true);
    }
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(losses[i], losses[i + 3]) << i;
}

// MR5: with a capacity in training, evaluation drops nothing, so that neither order nor number of
// the sequences in a batch shows.
TEST_P(EveryKind, EvaluationDoesNotDependOnTheBatch) {
  if (GetParam().balances_batch) GTEST_SKIP() << "takes no capacity";
  const auto model = DoubleModel(ModelText(GetParam(),
                                           "capacity { factor { train: 0.5 } "
                                           "drop: DROP_POLICY_POSITION } "));
  const at::Tensor tokens = Tokens(16, 5, 1), targets = Tokens(16, 5, 2);
  const ForwardContext context{.wants_routing = true};
  const ForwardResult whole = model->Forward(tokens, targets, context, nullptr, 0);
  const at::Tensor order = at::arange(15, -1, -1);
  const at::Tensor shuffled = model
                                  ->Forward(tokens.index_select(0, order),
                                            targets.index_select(0, order), context, nullptr, 0)
                                  .nll.index_select(0, order);
  EXPECT_LT(Distance(shuffled, whole.nll), 1e-9);
  for (int64_t row = 0; row < 16; ++row) {
    const at::Tensor one =
        model->Forward(tokens.narrow(0, row, 1), targets.narrow(0, row, 1), context, nullptr, 0)
            .nll;
    EXPECT_LT(Distance(one, whole.nll.narrow(0, row, 1)), 1e-5);
  }
  for (const LayerRouting& layer : whole.routing) EXPECT_EQ(layer.dropped, 0);
  // In training the drops are there and are reported.
  const ForwardResult trained =
      model->Forward(tokens, targets, {.is_training = true, .wants_routing = true}, nullptr, 0);
  for (const LayerRouting& layer : trained.routing) {
    EXPECT_GT(layer.dropped, 0);
    EXPECT_GE(layer.expert_ids.lt(0).sum().item<int64_t>(), layer.dropped);
    ASSERT_FALSE(layer.extras.empty());
    EXPECT_EQ(layer.extras.back().first, "capacity_overflow_max");
    EXPECT_GT(layer.extras.back().second.item<double>(), 0.0);
  }
}

constexpr char kZOnly[] = "losses { id: 'z_loss' coef: 0.1 } ";
INSTANTIATE_TEST_SUITE_P(
    Kinds, EveryKind,
    testing::Values(
        Kind{"smoe", "smoe {}"}, Kind{"smoe_sigmoid", "smoe {} gate_norm: GATE_NORM_SIGMOID"},
        Kind{"smoe_dropout", "smoe_dropout {}"},
        Kind{"hyper_router", "hyper_router { hyper_size: 6 }"},
        Kind{"xmoe", "xmoe { proj_dim: 4 }", 2,
             "losses { id: 'sra' coef: 1 } losses { id: 'z_loss' coef: 0.1 } "},
        Kind{"random_fixed", "random_fixed {}"},
        Kind{"switch", "switch {}", 1,
             "losses { id: 'switch' coef: 1 } losses { id: 'z_loss' coef: 0.1 } "},
        Kind{"gshard", "gshard {}", 2,
             "losses { id: 'gshard_top1' coef: 1 } losses { id: 'z_loss' coef: 0.1 } "},
        Kind{"noisy_topk", "noisy_topk {}", 2,
             "losses { id: 'cv2' coef: 1 } losses { id: 'z_loss' coef: 0.1 } "},
        Kind{"expert_choice", "expert_choice { threshold_inference: true }", 2, kZOnly, true},
        Kind{"base", "base {}", 1, kZOnly, true}, Kind{"sinkhorn", "sinkhorn {}", 1, kZOnly, true},
        Kind{"bias_balanced", "bias_balanced {}", 2,
             "losses { id: 'deepseek_seq' coef: 1 } losses { id: 'z_loss' coef: 0.1 } "},
        Kind{"deepseek", "deepseek {}", 2,
             "shared_experts: 2 losses { id: 'deepseek_seq' coef: 1 } losses { id: 'z_loss' coef: "
             "0.1 } "},
        Kind{"mixtral", "mixtral {}", 2,
             "losses { id: 'hf_mixtral' coef: 1 } losses { id: 'z_loss' coef: 0.1 } "},
        Kind{"olmoe", "olmoe {}"}, Kind{"qwen3", "qwen3 {}"}),
    [](const auto& info) { return std::string(info.param.name); });

// MR6: noise touches the router's copy alone: with one expert, whose weight is 1 whatever its
// score, a jitter of 0.5 changes no output; with more, two training steps differ.
TEST(RouterNoise, NeverReachesTheExperts) {
  const auto text = [](int experts, const char* noise) {
    return std::string(kDecoder) + "moe { layers: [0] experts: " + std::to_string(experts) +
           " top_k: 1 allow_constant_gate: true router { smoe {} noise { kind: " + noise +
           " eps: 0.5 } } } }";
  };
  const at::Tensor tokens = Tokens(2, 6, 1);
  const auto logits = [&](int experts, const char* noise, uint64_t step) {
    return ModelOf(text(experts, noise), kVocab)
        ->Logits(tokens, {.is_training = true, .step = step, .dropout = RandomKey{3}}, nullptr, 0);
  };
  EXPECT_TRUE(at::equal(logits(1, "NOISE_KIND_INPUT_JITTER", 1), logits(1, "NOISE_KIND_NONE", 1)));
  EXPECT_FALSE(
      at::equal(logits(4, "NOISE_KIND_INPUT_JITTER", 1), logits(4, "NOISE_KIND_INPUT_JITTER", 2)));
}

// RT-17: two shared experts are one of twice the width: the sum of two that hold its halves.
TEST(SharedExperts, AreTheSumOfTheirParts) {
  const auto model = DoubleModel(
      std::string(kDecoder) +
      "moe { layers: [0, 1, 2] experts: 4 shared_experts: 2 router { deepseek {} } top_k: 2 } }");
  const at::Tensor tokens = Tokens(2, 5, 1);
  const at::Tensor whole = model->Logits(tokens, {}, nullptr, 0);
  // Exchanging the halves of the width exchanges the two experts and changes nothing.
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".mlp.shared_experts.";
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
      const at::Tensor weight = TensorOf(*model, prefix + name + ".weight");
      const int64_t dim = std::string(name) == "down_proj" ? 1 : 0;
      ASSERT_EQ(weight.size(dim), 24);
      weight.detach().copy_(weight.detach().roll(12, dim));
    }
  }
  EXPECT_LT(Distance(model->Logits(tokens, {}, nullptr, 0), whole), 1e-12);
  // Without their output matrices they add nothing; the routed experts remain.
  for (int layer = 0; layer < 3; ++layer) {
    TensorOf(*model,
             "model.layers." + std::to_string(layer) + ".mlp.shared_experts.down_proj.weight")
        .detach()
        .zero_();
  }
  EXPECT_GT(Distance(model->Logits(tokens, {}, nullptr, 0), whole), 1e-4);
}

// ML7: the mean over layers divides by the layers that have experts, 2 of 6, and says which they
// are; a dense model has no term.
TEST(LayerMean, DividesByTheContributingLayers) {
  const auto text = [](const char* layers, const char* reduce) {
    return std::string(
               "seed: 3 model { decoder { layers: 6 d_model: 16 heads: 4 d_inner: 12 } "
               "moe { layers: ") +
           layers + " experts: 4 router { smoe {} } losses { id: 'megatron_aux' coef: 1 " +
           "layer_reduce: LAYER_REDUCE_" + reduce + " } } }";
  };
  const at::Tensor tokens = Tokens(2, 6, 1), targets = Tokens(2, 6, 2);
  const auto run = [&](const std::string& t) {
    return ModelOf(t, kVocab)->Forward(tokens, targets, {.wants_routing = true}, nullptr, 0);
  };
  const ForwardResult sum = run(text("[2, 4]", "SUM")), mean = run(text("[2, 4]", "MEAN"));
  EXPECT_NEAR(mean.aux[0].value.item<double>() * 2, sum.aux[0].value.item<double>(), 1e-6);
  ASSERT_EQ(sum.routing.size(), 2U);
  EXPECT_EQ(sum.routing[0].layer, 2U);
  EXPECT_EQ(sum.routing[1].layer, 4U);
  const ForwardResult dense =
      run("seed: 3 model { decoder { layers: 6 d_model: 16 heads: 4 d_inner: 12 } }");
  EXPECT_TRUE(dense.aux.empty());
  EXPECT_TRUE(dense.routing.empty());
}

// RT-5: frozen gate weights are the same after 100 steps of training the rest.
TEST(FrozenRouter, StaysAsItStarted) {
  for (const char* router :
       {"smoe_dropout {}", "random_fixed {}", "hyper_router { hyper_size: 6 }"}) {
    const auto model = ModelOf(ModelText({"frozen", router, 2, ""}), kVocab);
    std::map<std::string, at::Tensor> before;
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!tensor.requires_grad()) before[name] = tensor.detach().clone();
    }
    EXPECT_FALSE(before.empty());
    for (uint64_t step = 0; step < 100; ++step) {
      ClearGradients(*model);
      TotalLoss(model->Forward(Tokens(2, 4, step), Tokens(2, 4, step + 1),
                               {.is_training = true, .step = step}, nullptr, 0))
          .backward();
      for (const auto& [name, tensor] : model->NamedParameters()) {
        if (tensor.grad().defined()) tensor.detach().sub_(tensor.grad() * 0.01);
      }
    }
    for (const auto& [name, tensor] : model->NamedParameters()) {
      if (!tensor.requires_grad()) {
        EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
      }
    }
  }
}

// Shared networks exist once; the scores of two layers differ by their embeddings alone.
TEST(HyperRouter, SharesItsNetworkWhenAsked) {
  const auto model = ModelOf(
      ModelText({"h", "hyper_router { hyper_size: 6 shared_hypernet: true }", 2, ""}), kVocab);
  int networks = 0, embeddings = 0;
  for (const auto& [name, tensor] : model->NamedParameters()) {
    networks += name.find("hypernet.0.weight") != std::string::npos ? 1 : 0;
    embeddings += name.find("gate.embedding") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(networks, 1);
  EXPECT_EQ(embeddings, 2);
}

}  // namespace
}  // namespace switchyard::model
