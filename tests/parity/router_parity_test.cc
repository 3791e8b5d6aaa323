// Routers and balance losses against the golden file of make_router_fixtures.py.
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/base/check.h"
#include "tests/unit/worker/model/router_testing.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/data/safetensors.h"
#include "worker/model/losses.h"
#include "worker/model/routers/sinkhorn.h"

namespace switchyard::model {
namespace {

const std::map<std::string, at::Tensor>& Golden() {
  static const auto* tensors = [] {
    auto* all = new std::map<std::string, at::Tensor>;
    auto file = data::SafetensorsFile::Open(std::string(SWITCHYARD_SOURCE_DIR) +
                                            "/tests/golden/model/routers.safetensors");
    SWITCHYARD_CHECK(file.ok()) << file.status().ToString();
    for (const data::TensorView& view : (*file)->tensors()) {
      const auto type = view.dtype == data::DType::kF64 ? at::kDouble : at::kLong;
      at::Tensor tensor = at::empty(view.shape, type);
      std::copy(view.data.begin(), view.data.end(), static_cast<char*>(tensor.data_ptr()));
      all->emplace(view.name, tensor);
    }
    return all;
  }();
  return *tensors;
}

struct GoldenRouter {
  const char* kind;
  const char* moe;
  bool is_training = false;
};

class GoldenRouterTest : public testing::TestWithParam<GoldenRouter> {};

// Choices are the same, weights agree to 1e-12 in float64 and 1e-6 in float32.
TEST_P(GoldenRouterTest, SaysWhatTheFormulasSay) {
  const std::string kind = GetParam().kind;
  const auto get = [&](const std::string& name) { return Golden().at(kind + "/" + name); };
  for (const bool is_double : {true, false}) {
    RouterUnderTest made(std::string("experts: 8 ") + GetParam().moe, 6, is_double);
    const auto type = is_double ? at::kDouble : at::kFloat;
    for (const auto* list : {&made.store.parameters(), &made.store.buffers()}) {
      for (const auto& [name, tensor] : *list) {
        ASSERT_EQ(get(name).sizes(), tensor.sizes()) << name;
        if (list == &made.store.parameters()) {
          tensor.set_data(get(name).to(type));
        } else {
          tensor.copy_(get(name));
        }
      }
    }
    const Routing routing = made.Route(
        Golden().at("x").to(type), FactsOf(at::zeros({2, 8}, at::kLong)), GetParam().is_training);
    const double limit = is_double ? 1e-12 : 1e-6;
    EXPECT_TRUE(at::equal(routing.expert_ids, get("ids")));
    EXPECT_LT(Distance(routing.weights.detach().to(at::kDouble), get("weights")),
              limit * std::max(1.0, get("weights").max().item<double>()));
    EXPECT_LT(Distance(routing.logits.detach().to(at::kDouble), get("logits")),
              limit * 10 * get("logits").abs().max().item<double>());
  }
}

constexpr char kBiasBalanced[] =
    "top_k: 2 routed_scaling_factor: 2.5 router { bias_balanced { group_limit { groups: 4 "
    "topk_groups: 2 score: GROUP_SCORE_TOP2_SUM } } }";
constexpr char kDeepseek[] =
    "top_k: 2 router { deepseek { group_limit { groups: 4 topk_groups: 2 score: GROUP_SCORE_MAX } "
    "} }";
INSTANTIATE_TEST_SUITE_P(
    Kinds, GoldenRouterTest,
    testing::Values(GoldenRouter{"smoe", "router { smoe {} }"},
                    GoldenRouter{"switch", "router { switch {} }"},
                    GoldenRouter{"hyper_router", "router { hyper_router { hyper_size: 5 } }"},
                    GoldenRouter{"xmoe", "router { xmoe { proj_dim: 4 } }"},
                    GoldenRouter{"olmoe", "top_k: 2 router { olmoe {} }"},
                    GoldenRouter{"mixtral", "router { mixtral {} }"},
                    GoldenRouter{"deepseek", kDeepseek},
                    GoldenRouter{"bias_balanced", kBiasBalanced},
                    GoldenRouter{"sinkhorn", "router { sinkhorn {} }", true},
                    GoldenRouter{"expert_choice", "router { expert_choice {} }", true}),
    [](const auto& info) { return std::string(info.param.kind); });

// RT-14: the plan itself, 1e-5 relative in float32.
TEST(GoldenRouters, SinkhornPlan) {
  const at::Tensor expected = Golden().at("sinkhorn/plan");
  const at::Tensor logits = Golden().at("sinkhorn/logits");
  EXPECT_LT(Distance(SinkhornPlan(logits, 100, 1e-4), expected), 1e-12);
  const at::Tensor narrow = SinkhornPlan(logits.to(at::kFloat), 100, 1e-4).to(at::kDouble);
  EXPECT_LT(((narrow - expected) / expected).abs().max().item<double>(), 1e-5);
}

struct GoldenLoss {
  const char* id;
  LossDefinition definition;
  LossScope scope = LossScope::kMicro;
  LayerReduce reduce = LayerReduce::kSum;
};

// LS-3, LS-4 and the other definitions on two layers with padding.
TEST(GoldenRouters, EveryLossHasItsValue) {
  const at::Tensor logits = Golden().at("losses/logits"), ids = Golden().at("losses/ids");
  const at::Tensor valid = Golden().at("losses/mask").to(at::kBool);
  const std::vector<LayerScores> layers{{.logits = logits[0], .expert_ids = ids[0]},
                                        {.logits = logits[1], .expert_ids = ids[1]}};
  const GoldenLoss losses[] = {
      {"megatron_aux", LossDefinition::kMegatronAux},
      {"megatron_seq", LossDefinition::kMegatronSeq, LossScope::kSequence},
      {"deepseek_seq", LossDefinition::kDeepseekSeq, LossScope::kSequence},
      {"deepseek_batch", LossDefinition::kDeepseekBatch},
      {"megablocks", LossDefinition::kMegablocks, LossScope::kMicro, LayerReduce::kMean},
      {"naive_balance", LossDefinition::kNaiveBalance},
      {"flaxformer", LossDefinition::kFlaxformer},
      {"gshard_top1", LossDefinition::kGshardTop1},
      {"hf_mixtral", LossDefinition::kHfMixtral, LossScope::kMicro, LayerReduce::kPooled},
      {"z_loss", LossDefinition::kZLoss}};
  for (const GoldenLoss& loss : losses) {
    const LossConfig config{.id = loss.id,
                            .definition = loss.definition,
                            .coef = 1,
                            .scope = loss.scope,
                            .reduce = loss.reduce};
    const double expected = Golden().at(std::string("losses/") + loss.id).item<double>();
    EXPECT_NEAR(BalanceLoss(config, layers, valid, 2, {}).item<double>(), expected, 1e-12)
        << loss.id;
  }
}

}  // namespace
}  // namespace switchyard::model
