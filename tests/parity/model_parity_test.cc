// Models against golden files (make_fixtures.py) and against published parameter counts.
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/data/safetensors.h"

namespace switchyard::model {
namespace {

std::map<std::string, at::Tensor> Golden(const std::string& name) {
  const std::string path = std::string(SWITCHYARD_SOURCE_DIR) + "/tests/golden/model/" + name;
  auto file = data::SafetensorsFile::Open(path);
  SWITCHYARD_CHECK(file.ok()) << file.status().ToString();
  std::map<std::string, at::Tensor> tensors;
  for (const data::TensorView& view : (*file)->tensors()) {
    const auto type = view.dtype == data::DType::kF64 ? at::kDouble : at::kLong;
    at::Tensor tensor = at::empty(view.shape, type);
    std::copy(view.data.begin(), view.data.end(), static_cast<char*>(tensor.data_ptr()));
    tensors.emplace(view.name, tensor);
  }
  return tensors;
}

// Gives the model the file's weights; every parameter must be there.
void Load(LanguageModel& model, const std::map<std::string, at::Tensor>& golden,
          at::ScalarType type) {
  for (const auto& [name, tensor] : model.NamedParameters()) {
    const auto found = golden.find(name);
    ASSERT_NE(found, golden.end()) << name;
    ASSERT_EQ(found->second.sizes(), tensor.sizes()) << name;
    tensor.set_data(found->second.to(type));
  }
}

struct GoldenCase {
  const char* file;
  const char* options;
};

class GoldenTest : public testing::TestWithParam<GoldenCase> {};

// Four segments with memory through three layers, one of them of experts, equal the independent
// computation: float64 to 1e-10, float32 to 1e-5 (TXL-3).
TEST_P(GoldenTest, TransformerXlSegments) {
  const auto golden = Golden(GetParam().file);
  const std::string text =
      std::string(
          "model { transformer_xl { layers: 3 d_model: 8 heads: 2 d_head: 3 d_inner: 10 "
          "dropout: 0 ") +
      GetParam().options + "} moe { layers: [1] experts: 4 top_k: 2 router { smoe {} } } }";
  for (const auto& [type, limit] : {std::pair{at::kDouble, 1e-10}, std::pair{at::kFloat, 1e-5}}) {
    const auto model = ModelOf(text, 11);
    Load(*model, golden, type);
    Memory memory;
    for (int64_t s = 0; s < 4; ++s) {
      const ForwardResult result =
          model->Forward(golden.at("tokens")[s], golden.at("targets")[s], {}, &memory, 7);
      EXPECT_LT(Distance(result.nll.detach().to(at::kDouble), golden.at("nll")[s]), limit)
          << "segment " << s;
    }
    for (size_t i = 0; i < memory.size(); ++i) {
      EXPECT_LT(Distance(memory[i].to(at::kDouble), golden.at("memory." + std::to_string(i))),
                limit)
          << "memory " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Files, GoldenTest,
                         testing::Values(GoldenCase{"transformer_xl.safetensors", ""},
                                         GoldenCase{
                                             "transformer_xl_clamped.safetensors",
                                             "clamp_len: 4 same_length: true pre_norm: true "}));

// Grouped-query attention with rotary positions, SwiGLU parts plain and of experts.
TEST(Golden, Decoder) {
  const auto golden = Golden("decoder.safetensors");
  const auto model = ModelOf(
      "model { decoder { layers: 2 d_model: 8 heads: 4 kv_heads: 2 head_dim: 4 d_inner: 6 } "
      "moe { layers: [1] experts: 4 top_k: 2 router { smoe {} } } }",
      11);
  for (const auto& [type, limit] : {std::pair{at::kDouble, 1e-10}, std::pair{at::kFloat, 2e-5}}) {
    Load(*model, golden, type);
    const at::Tensor logits = model->Logits(golden.at("tokens")[0], {}, nullptr, 0);
    EXPECT_LT(Distance(logits.detach().to(at::kDouble), golden.at("logits")), limit);
    const ForwardResult result =
        model->Forward(golden.at("tokens")[0], golden.at("targets")[0], {}, nullptr, 0);
    EXPECT_LT(Distance(result.nll.detach().to(at::kDouble), golden.at("nll")[0]), limit);
  }
}

struct CountCase {
  const char* name;
  const char* text;
  uint32_t vocab;
  uint64_t params;  // 0: only the two counts are compared
};

class CountTest : public testing::TestWithParam<CountCase> {};

// The built tensors hold exactly the published number of parameters, and what the plan announced
// (TXL-9).
TEST_P(CountTest, IsExact) {
  const CountCase& c = GetParam();
  v1::RunSpec run;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(c.text, &run));
  spec::FillDefaults(&run);
  // Constants instead of draws: only sizes matter here.
  if (run.model().has_decoder()) {
    run.mutable_model()->mutable_decoder()->set_init_std(0);
  } else {
    run.mutable_model()->mutable_transformer_xl()->set_init_std(0);
  }
  run.mutable_model()->clear_vocab();
  const auto model = MakeModel(run, {.vocab_size = c.vocab});
  uint64_t params = 0;
  for (const auto& [name, tensor] : model->NamedParameters()) {
    params += static_cast<uint64_t>(tensor.numel());
  }
  if (c.params != 0) {
    EXPECT_EQ(params, c.params);
  }
  EXPECT_EQ(spec::Account(run, c.vocab).params_total, params);
}

#define MCF(inner, moe)                                                                           \
  "model { transformer_xl { layers: 8 d_model: 352 heads: 8 d_head: 64 d_inner: " inner " } " moe \
  "}"
#define SMALL(inner, moe)                                                                         \
  "model { transformer_xl { layers: 4 d_model: 256 heads: 8 d_head: 64 d_inner: " inner " } " moe \
  "}"
#define DECODER(options, moe)                                                       \
  "model { decoder { layers: 2 d_model: 24 heads: 4 d_inner: 40 " options " } " moe \
  "} train { target_len: 16 batch: 1 }"
INSTANTIATE_TEST_SUITE_P(
    Models, CountTest,
    testing::Values(
        CountCase{"smoe",
                  MCF("512",
                      "moe { layers: [0, 1, 2, 3] experts: 16 top_k: 2 "
                      "router { smoe {} } } "),
                  204, 31885068},
        CountCase{"dense",
                  MCF("512",
                      "moe { layers: [0, 1, 2, 3] experts: 16 router { dense { "
                      "d_ff: 8192 } } } "),
                  204, 0},
        CountCase{"dense_everywhere", MCF("8192", ""), 204, 53498956},
        CountCase{"hash",
                  MCF("512", "moe { layers: [0, 1, 2, 3] experts: 16 router { hash {} } } "), 204,
                  31885068 - 4 * (16 * 352 + 16)},
        CountCase{"smoe_dropout",
                  MCF("512",
                      "moe { layers: [0, 1, 2, 3] experts: 16 router { smoe_dropout { "
                      "schedule { steps: 80000 } } } } "),
                  204, 31885068},
        CountCase{
            "hyper_router",
            MCF("512", "moe { layers: [0, 1, 2, 3] experts: 16 router { hyper_router {} } } "), 204,
            38031500},
        CountCase{
            "hyper_router_small",
            SMALL("512", "moe { layers: [0, 1, 2, 3] experts: 16 router { hyper_router {} } } "),
            204, 23996684},
        CountCase{"hyper_router_shared",
                  SMALL("512",
                        "moe { layers: [0, 1, 2, 3] experts: 16 "
                        "router { hyper_router { shared_hypernet: true } } } "),
                  204, 0},
        CountCase{"mcf", MCF("512", "moe { layers: [0, 1, 2, 3] experts: 16 router { mcf {} } } "),
                  204, 34774284},
        CountCase{"mcf_as_printed",
                  MCF("512",
                      "moe { layers: [0, 1, 2, 3] experts: 16 router { mcf { layer_emb: "
                      "LAYER_EMBEDDING_NONE } } } "),
                  204, 34768652},
        CountCase{"mcf_concat",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { mcf { fusion: FUSION_CONCAT "
                          "proj_bias: true } } } "),
                  50, 0},
        CountCase{"mcf_gate",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { mcf { fusion: FUSION_GATE "
                          "tau_learned: true } } } "),
                  50, 0},
        CountCase{"mcf_multi_gate",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { mcf { fusion: "
                          "FUSION_MULTI_GATE layer_emb: LAYER_EMBEDDING_RELATIVE k_hist: 1 } } } "),
                  50, 0},
        CountCase{"mcf_double_attn",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { mcf { fusion: "
                          "FUSION_DOUBLE_ATTN position: ROUTER_POSITION_SAME_POSITION_BIAS } } } "),
                  50, 0},
        CountCase{"mcf_all",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { mcf { history_layers: "
                          "HISTORY_LAYERS_ALL_PLUS_EMBEDDING } } } "),
                  50, 0},
        CountCase{
            "mcf_local",
            DECODER("", "moe { layers: [0, 1] experts: 8 router { mcf { use_global: false } } } "),
            50, 0},
        CountCase{"mcf_fused_add",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { mcf { layer_emb: "
                          "LAYER_EMBEDDING_FUSED_ADD history_layers: HISTORY_LAYERS_ALL } } } "),
                  50, 0},
        CountCase{"rmoe", DECODER("", "moe { layers: [0, 1] experts: 8 router { rmoe {} } } "), 50,
                  0},
        CountCase{"rmoe_unshared",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { rmoe { gru_shared: false "
                          "state_size: 7 } } } "),
                  50, 0},
        CountCase{"cosine",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 16 expert { kind: EXPERT_KIND_RANK1 } "
                          "router { cosine { tau_learned: true magnitude: true } } } "),
                  50, 0},
        CountCase{"cosine_projections",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 16 expert { kind: EXPERT_KIND_STATIC } "
                          "router { cosine { hops: 3 proj_bias: true hop_projection: "
                          "HOP_PROJECTION_OWN_PROJECTION } } } "),
                  50, 0},
        CountCase{"cosine_centroids",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 16 expert { kind: EXPERT_KIND_RANK1 "
                          "width: 3 act: ACTIVATION_RELU } router { cosine { hops: 2 "
                          "hop_projection: HOP_PROJECTION_OWN_CENTROIDS } } } "),
                  50, 0},
        CountCase{"adaptive_softmax",
                  "model { transformer_xl { layers: 2 d_model: 16 heads: 2 d_head: 4 d_inner: 8 "
                  "softmax_cutoffs: [10, 20, 40] } }",
                  50, 0},
        CountCase{"adaptive_softmax_by_2",
                  "model { transformer_xl { layers: 2 d_model: 16 heads: 2 d_head: 4 d_inner: 8 "
                  "softmax_cutoffs: [10, 20, 40] div_val: 2 } }",
                  50, 0},
        CountCase{"xmoe", DECODER("", "moe { layers: [0, 1] experts: 8 router { xmoe {} } } "), 50,
                  0},
        CountCase{"xmoe_learned",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { xmoe { temperature: "
                          "XMOE_TEMPERATURE_LEARNED_EXP_CLAMP } } } "),
                  50, 0},
        CountCase{"random_fixed",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { random_fixed {} } } "), 50,
                  0},
        CountCase{"random_fixed_cosine",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { random_fixed { score: "
                          "RANDOM_FIXED_SCORE_COSINE } } } "),
                  50, 0},
        CountCase{"random_fixed_table",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 8 router { random_fixed { mode: "
                          "RANDOM_FIXED_MODE_TOKEN_TABLE } } } "),
                  50, 0},
        CountCase{"switch", DECODER("", "moe { layers: [0, 1] experts: 8 router { switch {} } } "),
                  50, 0},
        CountCase{"gshard", DECODER("", "moe { layers: [0, 1] experts: 8 router { gshard {} } } "),
                  50, 0},
        CountCase{"noisy_topk",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { noisy_topk {} } } "), 50,
                  0},
        CountCase{"expert_choice",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { expert_choice {} } } "), 50,
                  0},
        CountCase{"base", DECODER("", "moe { layers: [0, 1] experts: 8 router { base {} } } "), 50,
                  0},
        CountCase{"sinkhorn",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { sinkhorn {} } } "), 50, 0},
        CountCase{"bias_balanced",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { bias_balanced {} } } "), 50,
                  0},
        CountCase{"deepseek",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { deepseek {} } } "), 50, 0},
        CountCase{"mixtral",
                  DECODER("", "moe { layers: [0, 1] experts: 8 router { mixtral {} } } "), 50, 0},
        CountCase{"olmoe", DECODER("", "moe { layers: [0, 1] experts: 8 router { olmoe {} } } "),
                  50, 0},
        CountCase{"qwen3", DECODER("", "moe { layers: [0, 1] experts: 8 router { qwen3 {} } } "),
                  50, 0},
        CountCase{
            "shared_experts",
            DECODER("", "moe { layers: [1] experts: 8 shared_experts: 2 router { deepseek {} } } "),
            50, 0},
        CountCase{
            "shared_relu_experts",
            SMALL("64", "moe { layers: [1] experts: 4 shared_experts: 2 router { smoe {} } } "), 50,
            0},
        CountCase{"official_enwik8_base",
                  "model { transformer_xl { layers: 12 d_model: 512 heads: 8 d_head: 64 "
                  "d_inner: 2048 } }",
                  204, 41055436},
        CountCase{"smoe_dropout_small",
                  SMALL("512",
                        "moe { layers: [0, 1, 2, 3] experts: 16 "
                        "router { smoe {} } } "),
                  204, 19521804},
        CountCase{"dense_small", SMALL("8192", ""), 204, 19489996},
        CountCase{"decoder", DECODER("", ""), 50, 0},
        CountCase{
            "decoder_gelu",
            DECODER("mlp: MLP_KIND_GELU norm: NORM_KIND_LAYERNORM kv_heads: 2 attn_bias: true "
                    "position: POSITION_KIND_LEARNED tied: true",
                    "moe { layers: [1] experts: 4 router { smoe {} } } "),
            50, 0},
        CountCase{"decoder_relu",
                  DECODER("mlp: MLP_KIND_RELU norm: NORM_KIND_LAYERNORM_NOBIAS",
                          "moe { layers: [0] experts: 4 router { smoe {} } } "),
                  50, 0},
        CountCase{"decoder_swiglu",
                  DECODER("",
                          "moe { layers: [0, 1] experts: 4 expert { width: 8 } "
                          "router { smoe {} } } "),
                  50, 0}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace switchyard::model
