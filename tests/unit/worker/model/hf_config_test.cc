#include "worker/model/hf/config.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/accounting.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/hf/names.h"

namespace switchyard::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::ModelSpec Read(const std::string& text) {
  v1::ModelSpec model;
  const auto family = ReadHfConfig(text, "config.json", &model);
  EXPECT_TRUE(family.ok()) << family.status().message();
  return model;
}

struct Published {
  const char* name;
  const char* config;
  uint64_t total, active;
};

const Published kPublished[] = {
    {"Mixtral-8x7B",
     R"({"model_type": "mixtral", "hidden_size": 4096, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
         "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
         "rope_theta": 1e6, "max_position_embeddings": 32768, "rms_norm_eps": 1e-5,
         "sliding_window": null, "tie_word_embeddings": false, "router_aux_loss_coef": 0.02})",
     46702792704, 12879925248},
    {"OLMoE-1B-7B-0924",
     R"({"model_type": "olmoe", "hidden_size": 2048, "num_hidden_layers": 16,
         "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 1024,
         "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, "clip_qkv": null,
         "vocab_size": 50304, "rope_theta": 1e4, "max_position_embeddings": 4096,
         "rms_norm_eps": 1e-5, "router_aux_loss_coef": 0.01})",
     6919161856, 1282017280},
    {"DeepSeek-MoE-16B",
     R"({"model_type": "deepseek", "hidden_size": 2048, "num_hidden_layers": 28,
         "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 10944,
         "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2,
         "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1,
         "scoring_func": "softmax", "norm_topk_prob": false, "aux_loss_alpha": 0.001,
         "seq_aux": true, "vocab_size": 102400, "rope_theta": 1e4, "rope_scaling": null,
         "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "attention_bias": false})",
     16375728128, 2828650496},
    // As transformers 5 writes it.
    {"Qwen3-30B-A3B",
     R"({"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48,
         "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
         "intermediate_size": 6144, "moe_intermediate_size": 768, "num_local_experts": 128,
         "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
         "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "dtype": "bfloat16",
         "rms_norm_eps": 1e-6, "use_sliding_window": false, "sliding_window": 4096})",
     30532122624, 3353032704},
};

// The released configurations have exactly their published sizes (models.md 2.10, 7.2).
TEST(HfConfig, GivesThePublishedSizes) {
  for (const Published& model : kPublished) {
    v1::RunSpec run;
    *run.mutable_model() = Read(model.config);
    spec::FillDefaults(&run);
    const spec::Accounting sizes = spec::Account(run, run.model().vocab());
    EXPECT_EQ(sizes.params_total, model.total) << model.name;
    EXPECT_EQ(sizes.params_active, model.active) << model.name;
  }
}

// What is written is read as the same model, and what it said about losses is kept.
TEST(HfConfig, ComesBackFromItsText) {
  for (const Published& published : kPublished) {
    const v1::ModelSpec model = Read(published.config);
    const auto text = WriteHfConfig(model, 4096);
    ASSERT_TRUE(text.ok()) << text.status().message();
    EXPECT_EQ(Read(text->json).moe().losses().size(), model.moe().losses().size())
        << published.name;
  }
}

TEST(HfConfig, FollowsTheFamilysLayers) {
  std::string text = kPublished[3].config;
  const std::string all = "\"decoder_sparse_step\": 1,\n         \"mlp_only_layers\": []";
  text.replace(text.find(all), all.size(),
               "\"decoder_sparse_step\": 12, \"mlp_only_layers\": [23]");
  EXPECT_THAT(Read(text).moe().layers(), ElementsAre(11, 35, 47));
  EXPECT_EQ(Read(kPublished[2].config).moe().layers(0), 1);
}

// All faults at once, each with its field.
TEST(HfConfig, NamesEveryFault) {
  v1::ModelSpec model;
  const auto family = ReadHfConfig(
      R"({"model_type": "llama", "hidden_size": "8", "num_hidden_layers": 0, "vocab_size": 5,
          "num_attention_heads": 2, "intermediate_size": 4, "rms_norm_eps": 1e-5})",
      "config.json", &model);
  EXPECT_THAT(std::string(family.status().message()),
              testing::AllOf(HasSubstr("config.json: hidden_size is \"8\""),
                             HasSubstr("config.json: num_hidden_layers is 0")));
}

TEST(HfConfig, WantsHeadsThatDivideTheWidth) {
  v1::ModelSpec model;
  const auto family = ReadHfConfig(
      R"({"model_type": "llama", "hidden_size": 10, "num_hidden_layers": 1, "vocab_size": 5,
          "num_attention_heads": 4, "num_key_value_heads": 3, "intermediate_size": 4,
          "rms_norm_eps": 1e-5})",
      "config.json", &model);
  EXPECT_THAT(std::string(family.status().message()),
              testing::AllOf(HasSubstr("num_key_value_heads 3 does not divide"),
                             HasSubstr("num_attention_heads 4 does not divide hidden_size 10")));
}

// models.md 7.3.
TEST(HfNames, AreThoseOnDisk) {
  const auto names = [](HfFamily family, const std::string& name, std::vector<int64_t> shape,
                        bool is_fused) {
    std::vector<std::string> out;
    for (const HfPiece& piece : HfPiecesOf(family, name, shape, is_fused)) {
      out.push_back(piece.name);
    }
    return out;
  };
  const std::string in = "model.layers.3.mlp.experts.gate_up_proj";
  const std::string out = "model.layers.3.mlp.experts.down_proj";
  EXPECT_THAT(names(HfFamily::kMixtral, in, {1, 8, 4}, false),
              ElementsAre("model.layers.3.block_sparse_moe.experts.0.w1.weight",
                          "model.layers.3.block_sparse_moe.experts.0.w3.weight"));
  EXPECT_THAT(names(HfFamily::kMixtral, out, {1, 4, 4}, false),
              ElementsAre("model.layers.3.block_sparse_moe.experts.0.w2.weight"));
  EXPECT_THAT(names(HfFamily::kMixtral, "model.layers.3.mlp.gate.weight", {2, 4}, false),
              ElementsAre("model.layers.3.block_sparse_moe.gate.weight"));
  EXPECT_THAT(names(HfFamily::kOlmoe, in, {2, 8, 4}, false),
              ElementsAre("model.layers.3.mlp.experts.0.gate_proj.weight",
                          "model.layers.3.mlp.experts.0.up_proj.weight",
                          "model.layers.3.mlp.experts.1.gate_proj.weight",
                          "model.layers.3.mlp.experts.1.up_proj.weight"));
  EXPECT_THAT(names(HfFamily::kQwen3Moe, in, {2, 8, 4}, true), ElementsAre(in));
  EXPECT_THAT(names(HfFamily::kLlama, "model.layers.3.mlp.gate_proj.weight", {8, 4}, false),
              ElementsAre("model.layers.3.mlp.gate_proj.weight"));
}

}  // namespace
}  // namespace switchyard::model
