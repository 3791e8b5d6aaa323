// Routers inside whole models: noise, shared experts, frozen gates, shared networks. What every
// kind must do is in router_rows_test.cc.
#include <map>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "common/spec/presets.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/model/testing.h"

namespace switchyard::model {
namespace {

constexpr uint32_t kVocab = 13;
constexpr char kDecoder[] =
    "seed: 3 model { decoder { layers: 3 d_model: 16 heads: 4 d_inner: 12 init_std: 0.2 } ";

at::Tensor Tokens(int64_t rows, int64_t len, uint64_t seed) {
  return RandomTokens(rows, len, seed, kVocab);
}

std::string ModelText(const std::string& router) {
  return std::string(kDecoder) + "moe { layers: [0, 2] experts: 4 top_k: 2 router { " + router +
         " } } } train { steps: 10 }";
}

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
  const auto model = DoubleModelOf(std::string(kDecoder) +
                                       "moe { layers: [0, 1, 2] experts: 4 shared_experts: 2 "
                                       "router { deepseek {} } top_k: 2 } }",
                                   kVocab);
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

// The presets that two cores train are built as they are counted.
TEST(Presets, OfSmallModelsAreBuiltAsTheyAreCounted) {
  int built = 0;
  for (const std::string& name : spec::PresetNames()) {
    v1::RunSpec run;
    ASSERT_TRUE(spec::LoadPreset(name, &run));
    spec::FillDefaults(&run);
    constexpr uint32_t kBytes = 256;
    const uint64_t wanted = spec::Account(run, kBytes).params_total;
    if (wanted > 8'000'000) continue;
    ++built;
    uint64_t total = 0;
    for (const auto& [parameter, tensor] :
         MakeModel(run, {.vocab_size = kBytes})->NamedParameters()) {
      total += static_cast<uint64_t>(tensor.numel());
    }
    EXPECT_EQ(total, wanted) << name;
  }
  EXPECT_GE(built, 10);
}

// RT-5: frozen gate weights are the same after 100 steps of training the rest.
TEST(FrozenRouter, StaysAsItStarted) {
  for (const char* router :
       {"smoe_dropout {}", "random_fixed {}", "hyper_router { hyper_size: 6 }"}) {
    const auto model = ModelOf(ModelText(router), kVocab);
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
  const auto model =
      ModelOf(ModelText("hyper_router { hyper_size: 6 shared_hypernet: true }"), kVocab);
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
