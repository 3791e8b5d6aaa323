// Whole models through MakeModel: memory, streams, losses in the gradient, padding, refusals.
#include <cmath>
#include <set>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/unit/worker/model/testing.h"

namespace switchyard::model {
namespace {

constexpr char kXl[] =
    "seed: 3 model { transformer_xl { layers: 3 d_model: 16 heads: 2 d_head: 6 d_inner: 20 "
    "dropout: 0 } ";
constexpr char kSmoe[] = "moe { layers: [0, 2] experts: 4 top_k: 2 router { smoe {} } ";
constexpr char kDecoder[] =
    "seed: 3 model { decoder { layers: 2 d_model: 16 heads: 4 kv_heads: 2 d_inner: 20 } ";
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

void ClearGradients(LanguageModel& model) {
  for (const auto& [name, tensor] : model.NamedParameters()) tensor.mutable_grad() = at::Tensor();
}

// Where the memory holds all history, segments give the logits of one long pass at any depth; the
// gradient differs, because memory is detached (TXL-4).
TEST(TransformerXl, SegmentsWithFullMemoryEqualOnePass) {
  const auto model = ModelOf(std::string(kXl) + kSmoe + "} }", kVocab);
  ToDouble(*model);
  const at::Tensor tokens = Tokens(2, 12, 1), targets = Tokens(2, 12, 2);
  const at::Tensor whole = model->Logits(tokens, {}, nullptr, 0);
  Memory memory;
  std::vector<at::Tensor> parts;
  for (int64_t s = 0; s < 3; ++s) {
    parts.push_back(model->Logits(tokens.narrow(1, 4 * s, 4), {}, &memory, 12));
  }
  EXPECT_LT(Distance(at::cat(parts, 1), whole), 1e-10);
  EXPECT_EQ(memory.size(), 4U);
  EXPECT_EQ(memory[0].size(1), 12);

  model->Forward(tokens, targets, {}, nullptr, 0).nll.sum().backward();
  const at::Tensor name = TensorOf(*model, "layers.0.dec_attn.qkv_net.weight");
  const at::Tensor one = name.grad().clone();
  ClearGradients(*model);
  memory.clear();
  for (int64_t s = 0; s < 3; ++s) {
    model->Forward(tokens.narrow(1, 4 * s, 4), targets.narrow(1, 4 * s, 4), {}, &memory, 12)
        .nll.sum()
        .backward();
  }
  EXPECT_GT(Distance(one, name.grad()), 1e-4);
}

// After segments of 3 the memory is exactly the last 4 states, detached; a limit of 0 keeps none
// (TX2).
TEST(TransformerXl, MemoryKeepsTheLastStates) {
  const auto model = ModelOf(std::string(kXl) + "}", kVocab);
  const at::Tensor tokens = Tokens(1, 9, 1);
  Memory memory;
  for (int64_t s = 0; s < 3; ++s) model->Logits(tokens.narrow(1, 3 * s, 3), {}, &memory, 4);
  const at::Tensor embedding = TensorOf(*model, "word_emb.emb_layers.0.weight");
  const at::Tensor last = embedding.index_select(0, tokens[0].narrow(0, 5, 4)) * 4.0;
  ASSERT_EQ(memory[0].size(1), 4);
  EXPECT_LT(Distance(memory[0][0], last), 1e-6);
  for (const at::Tensor& m : memory) EXPECT_FALSE(m.requires_grad());
  model->Logits(tokens, {}, &memory, 0);
  EXPECT_TRUE(memory.empty());
  EXPECT_THROW(model->Logits(Tokens(1, 3, 1).fill_(kVocab), {}, nullptr, 0), c10::Error);
}

// Every parameter's gradient of main plus auxiliary loss is that of finite differences, for both
// backbones and all routers (ML4).
TEST(Models, GradientsAreThoseOfFiniteDifferences) {
  const std::string losses =
      "losses { id: 'megatron_aux' coef: 0.5 } losses { id: 'z_loss' coef: 0.1 } "
      "losses { id: 'deepseek_seq' coef: 0.3 } ";
  for (const std::string& text :
       {std::string(kXl) + kSmoe + losses + "} }",
        std::string(kDecoder) + "moe { layers: [1] experts: 4 top_k: 2 router { smoe {} gate_norm: "
                                "GATE_NORM_SOFTMAX_FULL } "
                                "losses { id: 'hf_mixtral' coef: 0.5 } } }",
        std::string(kDecoder) + "moe { layers: [0] experts: 4 router { hash {} } } }",
        std::string("seed: 1 model { transformer_xl { layers: 2 d_model: 8 heads: 2 d_head: 4 "
                    "d_inner: 8 pre_norm: true clamp_len: 3 same_length: true dropout: 0.2 "
                    "attn_dropout: 0.2 } ") +
            kSmoe + "} }"}) {
    std::string fixed = text;
    if (const size_t at = fixed.find("layers: [0, 2]");
        at != std::string::npos && fixed.find("layers: 2 d_model: 8") != std::string::npos) {
      fixed.replace(at, 14, "layers: [0, 1]");
    }
    const auto model = ModelOf(fixed, kVocab);
    ToDouble(*model);
    for (const auto& [name, tensor] : model->NamedParameters()) {
      // Wide scores, so that a small step never changes a choice.
      if (name.find("gate.weight") != std::string::npos) tensor.detach().mul_(50);
    }
    const at::Tensor tokens = Tokens(2, 5, 1), targets = Tokens(2, 5, 2);
    const ForwardContext context{.is_training = true, .step = 4, .dropout = RandomKey{7}};
    const auto loss = [&] {
      return TotalLoss(model->Forward(tokens, targets, context, nullptr, 3));
    };
    loss().backward();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      ASSERT_TRUE(tensor.grad().defined()) << name;
      EXPECT_LT(GradientError(tensor, loss, 8), 2e-6) << name;
    }
  }
}

// With the main loss out, the balance loss alone moves the router, with routing export on or off;
// a router without scores refuses a loss (ML4).
TEST(Models, BalanceLossReachesTheRouter) {
  const auto model =
      ModelOf(std::string(kXl) + kSmoe + "losses { id: 'megatron_aux' coef: 1 } } }", kVocab);
  ToDouble(*model);
  at::Tensor previous;
  for (const bool wants_routing : {false, true}) {
    ClearGradients(*model);
    const ForwardContext context{.is_training = true, .wants_routing = wants_routing};
    const ForwardResult result =
        model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), context, nullptr, 0);
    ASSERT_EQ(result.aux.size(), 1U);
    EXPECT_EQ(result.routing.size(), wants_routing ? 2U : 0U);
    result.aux[0].value.backward();
    const at::Tensor grad = TensorOf(*model, "layers.0.pos_ff.gate.gate.weight").grad();
    EXPECT_GT(grad.abs().max().item<double>(), 1e-6);
    if (previous.defined()) {
      EXPECT_TRUE(at::equal(previous, grad));
    }
    previous = grad.clone();
  }
  EXPECT_THROW(ModelOf(std::string(kXl) + "moe { layers: [0] experts: 4 router { hash {} } "
                                          "losses { id: 'switch' coef: 0.01 } } }",
                       kVocab),
               c10::Error);
  EXPECT_THROW(ModelOf(std::string(kXl) + "moe { layers: [0] experts: 4 top_k: 1 "
                                          "router { smoe {} } } }",
                       kVocab),
               c10::Error);
  EXPECT_THROW(
      ModelOf(std::string(kXl) + "moe { layers: [3] experts: 4 router { smoe {} } } }", kVocab),
      c10::Error);
}

// Exported routing is what its names say: scores that are not probabilities, -1 and 0 for padding.
TEST(Models, ExportedRoutingIsRaw) {
  const auto model = ModelOf(std::string(kXl) + kSmoe + "} }", kVocab);
  at::Tensor tokens = Tokens(2, 6, 1);
  tokens[1].narrow(0, 4, 2).fill_(-1);
  at::Tensor targets = Tokens(2, 6, 2);
  targets[1].narrow(0, 4, 2).fill_(-1);
  const ForwardResult result = model->Forward(tokens, targets, {.wants_routing = true}, nullptr, 0);
  ASSERT_EQ(result.routing.size(), 2U);
  EXPECT_EQ(result.routing[1].layer, 2U);
  for (const LayerRouting& layer : result.routing) {
    EXPECT_EQ(layer.experts, 4U);
    EXPECT_FALSE(layer.weights.requires_grad());
    EXPECT_GT(Distance(layer.logits.sum(1), at::ones({12})), 1e-3);
    EXPECT_EQ(layer.expert_ids[10].max().item<int64_t>(), -1);
    EXPECT_EQ(layer.weights[11].abs().max().item<double>(), 0.0);
    EXPECT_EQ(layer.valid.sum().item<int64_t>(), 10);
  }
}

// Pads behind the real tokens change neither nll nor losses, whatever their embedding (ML2).
TEST(Models, PaddingChangesNothing) {
  for (const char* backbone : {kXl, kDecoder}) {
    const std::string text =
        std::string(backbone) +
        "moe { layers: [0, 1] experts: 4 top_k: 2 router { smoe {} } "
        "losses { id: 'megatron_seq' coef: 1 } losses { id: 'z_loss' coef: 1 } } }";
    const auto model = ModelOf(text, kVocab);
    ToDouble(*model);
    const at::Tensor tokens = Tokens(2, 6, 1).clamp_min(1), targets = Tokens(2, 6, 2);
    const at::Tensor pad = at::full({2, 3}, -1, at::kLong);
    const ForwardResult bare = model->Forward(tokens, targets, {}, nullptr, 0);
    const ForwardResult padded =
        model->Forward(at::cat({tokens, pad}, 1), at::cat({targets, pad}, 1), {}, nullptr, 0);
    EXPECT_LT(Distance(padded.nll.narrow(1, 0, 6), bare.nll), 1e-12);
    EXPECT_EQ(padded.nll.narrow(1, 6, 3).abs().max().item<double>(), 0.0);
    for (size_t i = 0; i < bare.aux.size(); ++i) {
      EXPECT_LT(Distance(padded.aux[i].value, bare.aux[i].value), 1e-12) << bare.aux[i].id;
    }
  }
}

// Dropout depends on step and sequence, not on how the batch is split; off in evaluation.
TEST(Models, MicroBatchesSeeTheSameDropout) {
  for (const std::string& text :
       {std::string("seed: 3 model { transformer_xl { layers: 2 d_model: 16 heads: 2 d_head: 6 "
                    "d_inner: 20 dropout: 0.3 attn_dropout: 0.2 } moe { layers: [0] experts: 4 "
                    "top_k: 2 router { smoe {} } combine_dropout: true } }"),
        std::string("seed: 3 model { decoder { layers: 2 d_model: 16 heads: 4 d_inner: 20 "
                    "dropout: 0.3 } }")}) {
    const auto model = ModelOf(text, kVocab);
    ToDouble(*model);
    const at::Tensor tokens = Tokens(4, 6, 1), targets = Tokens(4, 6, 2);
    ForwardContext context{.is_training = true, .step = 5, .dropout = RandomKey::For(3, "dropout")};
    const at::Tensor whole = model->Forward(tokens, targets, context, nullptr, 0).nll;
    std::vector<at::Tensor> parts;
    for (uint64_t i = 0; i < 2; ++i) {
      context.first_sequence = 2 * i;
      const auto row = static_cast<int64_t>(2 * i);
      parts.push_back(
          model->Forward(tokens.narrow(0, row, 2), targets.narrow(0, row, 2), context, nullptr, 0)
              .nll);
    }
    EXPECT_LT(Distance(at::cat(parts), whole), 1e-12);
    context.first_sequence = 0;
    context.step = 6;
    EXPECT_GT(Distance(model->Forward(tokens, targets, context, nullptr, 0).nll, whole), 1e-4);
    const at::Tensor a = model->Forward(tokens, targets, {.step = 1}, nullptr, 0).nll;
    EXPECT_TRUE(at::equal(a, model->Forward(tokens, targets, {.step = 2}, nullptr, 0).nll));
  }
}

// Global scope uses the counts of the update before, so that splits 1 x 4 and 4 x 1 give one
// gradient; the counts are buffers and rise only in training (5.3, ML3).
TEST(Models, GlobalBalanceDoesNotDependOnTheSplit) {
  const std::string text =
      std::string(kXl) + kSmoe + "losses { id: 'megatron_global' coef: 1 } } }";
  const at::Tensor tokens = Tokens(4, 6, 1), targets = Tokens(4, 6, 2);
  std::vector<at::Tensor> grads;
  for (const int64_t rows : {4, 1}) {
    const auto model = ModelOf(text, kVocab);
    ToDouble(*model);
    for (uint64_t step = 0; step < 2; ++step) {
      ClearGradients(*model);
      for (int64_t row = 0; row < 4; row += rows) {
        const ForwardContext context{
            .is_training = true, .step = step, .first_sequence = static_cast<uint64_t>(row)};
        const ForwardResult result = model->Forward(
            tokens.narrow(0, row, rows), targets.narrow(0, row, rows), context, nullptr, 0);
        (result.aux[0].value * (static_cast<double>(rows) / 4.0)).backward();
        model->Forward(tokens, targets, {.step = step}, nullptr, 0);  // evaluation counts nothing
      }
    }
    grads.push_back(TensorOf(*model, "layers.2.pos_ff.gate.gate.weight").grad());
    const at::Tensor counts = TensorOf(*model, "balance_counts");
    EXPECT_EQ(counts[0][0][4].item<double>(), 24.0);
    EXPECT_EQ(counts[0][1].narrow(0, 0, 4).sum().item<double>(), 48.0);
  }
  EXPECT_LT(Distance(grads[0], grads[1]), 1e-12);
}

// Four equal micro-batches, averaged, give the router gradient of one of them (ML3).
TEST(Models, EqualMicroBatchesKeepTheStrengthOfTheLoss) {
  const auto model =
      ModelOf(std::string(kXl) + kSmoe + "losses { id: 'megatron_aux' coef: 1 } } }", kVocab);
  ToDouble(*model);
  const at::Tensor gate = TensorOf(*model, "layers.0.pos_ff.gate.gate.weight");
  std::vector<at::Tensor> grads;
  for (const int parts : {1, 4}) {
    ClearGradients(*model);
    for (int i = 0; i < parts; ++i) {
      const ForwardResult result =
          model->Forward(Tokens(2, 6, 1), Tokens(2, 6, 2), {.is_training = true}, nullptr, 0);
      ((result.nll.mean() + result.aux[0].value) / parts).backward();
    }
    grads.push_back(gate.grad().clone());
  }
  EXPECT_LT(Distance(grads[0], grads[1]), 1e-12);
}

// All tokens on expert 0: no NaN in 20 steps, and the idle experts do not move (MR8).
TEST(Models, IdleExpertsStayAsTheyAre) {
  const auto model =
      ModelOf(std::string(kXl) +
                  "moe { layers: [0] experts: 4 top_k: 1 router { smoe {} gate_norm: "
                  "GATE_NORM_SOFTMAX_FULL } losses { id: 'switch' coef: 0.01 } } }",
              kVocab);
  TensorOf(*model, "layers.0.pos_ff.gate.gate.bias").detach()[0] = 100.0;
  const at::Tensor experts = TensorOf(*model, "layers.0.pos_ff.experts.htoh4.weight");
  const at::Tensor before = experts.detach().clone();
  for (uint64_t step = 0; step < 20; ++step) {
    ClearGradients(*model);
    const int64_t rows = step % 2 == 0 ? 2 : 1;
    const at::Tensor loss = TotalLoss(model->Forward(
        Tokens(rows, step % 3 == 0 ? 1 : 5, step), Tokens(rows, step % 3 == 0 ? 1 : 5, 99),
        {.is_training = true, .step = step}, nullptr, 0));
    ASSERT_TRUE(std::isfinite(loss.item<double>()));
    loss.backward();
    for (const auto& [name, tensor] : model->NamedParameters()) {
      ASSERT_TRUE(tensor.grad().isfinite().all().item<bool>()) << name;
      tensor.detach().sub_(tensor.grad() * 0.01);
    }
  }
  EXPECT_TRUE(at::equal(experts.narrow(0, 1, 3), before.narrow(0, 1, 3)));
  EXPECT_FALSE(at::equal(experts[0], before[0]));
}

// bfloat16 products follow float32; parameters, gradients, router and nll stay float32.
TEST(Models, Bfloat16FollowsFloat32) {
  for (const char* backbone : {kXl, kDecoder}) {
    const std::string moe =
        "moe { layers: [0, 1] experts: 4 top_k: 2 router { smoe {} } } } train { precision: ";
    const auto wide = ModelOf(std::string(backbone) + moe + "PRECISION_FP32 }", kVocab);
    const auto half = ModelOf(std::string(backbone) + moe + "PRECISION_BF16 }", kVocab);
    const at::Tensor tokens = Tokens(2, 8, 1), targets = Tokens(2, 8, 2);
    const ForwardContext context{.wants_routing = true};
    const at::Tensor expected = wide->Forward(tokens, targets, context, nullptr, 0).nll;
    const ForwardResult result = half->Forward(tokens, targets, context, nullptr, 0);
    EXPECT_EQ(result.nll.scalar_type(), at::kFloat);
    EXPECT_EQ(result.routing[0].logits.scalar_type(), at::kFloat);
    EXPECT_LT(Distance(result.nll, expected), 0.05);
    result.nll.sum().backward();
    for (const auto& [name, tensor] : half->NamedParameters()) {
      EXPECT_EQ(tensor.grad().scalar_type(), at::kFloat) << name;
    }
  }
}

// The oracle dispatch gives the model of the default one.
TEST(Models, ReferenceDispatchGivesTheSameModel) {
  const std::string xl =
      "seed: 3 model { transformer_xl { layers: 2 d_model: 16 heads: 2 d_head: 6 d_inner: 20 "
      "dropout: 0.2 } moe { layers: [0, 1] experts: 4 top_k: 2 router { smoe {} } dispatch: ";
  std::vector<at::Tensor> nll;
  for (const char* dispatch : {"DISPATCH_AUTO", "DISPATCH_DENSE_REFERENCE"}) {
    const auto model = ModelOf(xl + dispatch + " } }", kVocab);
    ToDouble(*model);
    nll.push_back(model
                      ->Forward(Tokens(2, 8, 1), Tokens(2, 8, 2),
                                {.is_training = true, .dropout = RandomKey{5}}, nullptr, 0)
                      .nll);
  }
  EXPECT_LT(Distance(nll[0], nll[1]), 1e-10);
}

// Tensors of equal name and shape start equal under every router; classes have the statistics of
// their initial values (TXL-8), within four standard errors.
TEST(Models, InitialValuesComeFromNames) {
  const std::string xl =
      "seed: 8 model { transformer_xl { layers: 2 d_model: 128 heads: 4 d_head: 32 d_inner: 64 } ";
  const auto smoe = ModelOf(xl + "moe { layers: [0] experts: 4 router { smoe {} } } }", 64);
  const auto hash = ModelOf(xl + "moe { layers: [0] experts: 4 router { hash {} } } }", 64);
  std::set<std::string> names;
  for (const auto& [name, tensor] : hash->NamedParameters()) {
    EXPECT_TRUE(at::equal(tensor, TensorOf(*smoe, name))) << name;
    EXPECT_TRUE(names.insert(name).second);
    const auto n = static_cast<double>(tensor.numel());
    const double mean = tensor.mean().item<double>(), sd = tensor.std().item<double>();
    if (name.find("bias") != std::string::npos && name[0] != 'r') {
      EXPECT_EQ(tensor.abs().max().item<double>(), 0.0) << name;
      continue;
    }
    const double expected = name.find("layer_norm") != std::string::npos ? 1.0 : 0.0;
    EXPECT_NEAR(mean, expected, 4 * 0.02 / std::sqrt(n)) << name;
    EXPECT_NEAR(sd, 0.02, 4 * 0.02 / std::sqrt(2 * n)) << name;
  }
  EXPECT_EQ(hash->NamedBuffers().at(0).first, "layers.0.pos_ff.gate.gate.table");
}

}  // namespace
}  // namespace switchyard::model
