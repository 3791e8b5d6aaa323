// The routers mcf, cosine and rmoe in whole models against golden values
// (make_context_router_fixtures.py).
#include <algorithm>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/worker/model/testing.h"
#include "worker/data/safetensors.h"

namespace switchyard::model {
namespace {

constexpr char kFile[] = SWITCHYARD_SOURCE_DIR "/tests/golden/model/context_routers.safetensors";

std::map<std::string, at::Tensor> Read(const std::string& path) {
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

struct Case {
  const char* name;      // KIND.CASE in the file
  const char* options;   // of the router's message
  const char* moe = "";  // further fields of the MoE
  bool is_pre_norm = false;
};

class ContextRouterGoldenTest : public testing::TestWithParam<Case> {};

// Two segments with memory: every layer's scores, choices and the loss per token equal the
// independent computation, in float64 to 1e-10, in float32 to 1e-5 of the largest score (RT-7,
// RT-10, MCF-1, MCF-6, MCF-7, MCF-11).
TEST_P(ContextRouterGoldenTest, GivesTheIndependentValues) {
  const Case& c = GetParam();
  const std::string name = c.name, kind = name.substr(0, name.find('.'));
  const auto golden = Read(kFile);
  // The text form takes no field twice.
  const bool has_window = std::string_view(c.options).starts_with("r: ");
  const std::string text = StrCat(
      "model { transformer_xl { layers: 4 d_model: 8 heads: 2 d_head: 3 d_inner: 6 dropout: 0 "
      "pre_norm: ",
      c.is_pre_norm ? "true" : "false", " } moe { layers: [0, 1, 3] experts: 5 top_k: 2 ", c.moe,
      " router { ", kind, " { ",
      kind == "mcf"
          ? StrCat("heads: 2 d_kv: 4 attn_dropout: 0 ", has_window ? "" : "r: 3 k_loc: 2 ")
          : "",
      c.options, " } ", name == "mcf.full" ? "gate_norm: GATE_NORM_SOFTMAX_FULL" : "", " } } }");
  for (const auto& [type, limit] : {std::pair{at::kDouble, 1e-10}, std::pair{at::kFloat, 1e-5}}) {
    const auto model = ModelOf(text, 11);
    for (const auto& [parameter, tensor] : model->NamedParameters()) {
      auto found = golden.find(name + "/" + parameter);
      if (found == golden.end()) found = golden.find(kind + "/" + parameter);
      if (found == golden.end()) found = golden.find(parameter);
      ASSERT_NE(found, golden.end()) << parameter;
      ASSERT_EQ(found->second.sizes(), tensor.sizes()) << parameter;
      tensor.set_data(found->second.to(type));
    }
    Memory memory;
    for (int64_t s = 0; s < 2; ++s) {
      const ForwardResult result = model->Forward(golden.at("tokens")[s], golden.at("targets")[s],
                                                  {.wants_routing = true}, &memory, 5);
      ASSERT_EQ(result.routing.size(), 3U);
      for (const LayerRouting& layer : result.routing) {
        const std::string at = "." + std::to_string(layer.layer);
        const at::Tensor logits = golden.at(name + "/logits" + at)[s];
        EXPECT_LT(Distance(layer.logits.to(at::kDouble), logits),
                  limit * (1.0 + logits.abs().max().item<double>()))
            << "layer " << layer.layer << " segment " << s;
        EXPECT_TRUE(at::equal(layer.expert_ids, golden.at(name + "/ids" + at)[s]))
            << "layer " << layer.layer << " segment " << s;
      }
      EXPECT_LT(Distance(result.nll.detach().to(at::kDouble), golden.at(name + "/nll")[s]),
                10 * limit)
          << "segment " << s;
    }
  }
}

#define RANK1 "expert { kind: EXPERT_KIND_RANK1 width: 2 }"
INSTANTIATE_TEST_SUITE_P(
    Mcf, ContextRouterGoldenTest,
    testing::Values(
        Case{"mcf.default", ""}, Case{"mcf.both", "local_dir: LOCAL_DIRECTION_BOTH"},
        Case{"mcf.self", "local_include_self: true"},
        Case{"mcf.unscaled", "local_scale: LOCAL_SCALE_NONE"},
        Case{"mcf.local_cosine", "local_scale: LOCAL_SCALE_COSINE"},
        Case{"mcf.mean", "local_weight: LOCAL_WEIGHT_MEAN"}, Case{"mcf.wide", "r: 20 k_loc: 9"},
        Case{"mcf.no_residual", "local_residual: false"},
        Case{"mcf.layer_output", "history: HISTORY_SOURCE_LAYER_OUTPUT"},
        Case{"mcf.all", "history_layers: HISTORY_LAYERS_ALL"},
        Case{"mcf.embedding",
             "history_layers: HISTORY_LAYERS_ALL_PLUS_EMBEDDING history: "
             "HISTORY_SOURCE_LAYER_OUTPUT"},
        Case{"mcf.one_layer", "k_hist: 1"},
        Case{"mcf.same_position", "global_mask: GLOBAL_MASK_SAME_POSITION"},
        Case{"mcf.window", "global_mask: GLOBAL_MASK_WINDOW"},
        Case{"mcf.not_causal", "global_causal: false"}, Case{"mcf.add", "fusion: FUSION_ADD"},
        Case{"mcf.double", "fusion: FUSION_DOUBLE_ATTN"},
        Case{"mcf.concat", "fusion: FUSION_CONCAT"}, Case{"mcf.gate", "fusion: FUSION_GATE"},
        Case{"mcf.multi_gate", "fusion: FUSION_MULTI_GATE"},
        Case{"mcf.no_embedding", "layer_emb: LAYER_EMBEDDING_NONE"},
        Case{"mcf.relative", "layer_emb: LAYER_EMBEDDING_RELATIVE"},
        Case{"mcf.fused", "layer_emb: LAYER_EMBEDDING_FUSED_ADD fusion: FUSION_ADD"},
        Case{"mcf.linear", "first_layer: FIRST_LAYER_LINEAR_X"},
        Case{"mcf.z_residual", "z_residual: true"}, Case{"mcf.tau", "tau: 0.5"},
        Case{"mcf.tau_learned", "tau_learned: true"}, Case{"mcf.full", ""},
        Case{"mcf.rope", "position: ROUTER_POSITION_ROPE"},
        Case{"mcf.same_bias", "position: ROUTER_POSITION_SAME_POSITION_BIAS"},
        Case{"mcf.memory", "router_mem_len: 4"},
        Case{"mcf.memory_rope", "router_mem_len: 4 position: ROUTER_POSITION_ROPE"},
        Case{"mcf.scale_p", "attn_scale: ATTENTION_SCALE_INV_SQRT_P"},
        Case{"mcf.biases", "proj_bias: true"}, Case{"mcf.no_global", "use_global: false"},
        Case{"mcf.no_local", "use_local: false"}, Case{"mcf.pre_norm", "", "", true},
        Case{"mcf.raw", "history_norm: HISTORY_NORM_RAW_RMSNORM", "", true}),
    [](const auto& info) { return std::string(info.param.name).substr(4); });
INSTANTIATE_TEST_SUITE_P(Rmoe, ContextRouterGoldenTest,
                         testing::Values(Case{"rmoe.shared", "state_size: 3"},
                                         Case{"rmoe.unshared", "state_size: 3 gru_shared: false"},
                                         Case{"rmoe.residual",
                                              "state_size: 3 residual_gate: true"}),
                         [](const auto& info) { return std::string(info.param.name).substr(5); });
INSTANTIATE_TEST_SUITE_P(
    Cosine, ContextRouterGoldenTest,
    testing::Values(
        Case{"cosine.wide", "d_score: 3 hop_top_k: [4]", RANK1, true},
        Case{"cosine.deep", "d_score: 3 hops: 3", RANK1, true},
        Case{"cosine.magnitude", "d_score: 3 hop_top_k: [4] magnitude: true", RANK1, true},
        Case{"cosine.asymmetric", "d_score: 3 hops: 3 hop_top_k: [3, 2, 1]", RANK1, true},
        Case{"cosine.decoupled",
             "d_score: 3 hops: 2 hop_projection: HOP_PROJECTION_OWN_PROJECTION proj_bias: true",
             RANK1, true},
        Case{"cosine.centroids", "d_score: 3 hops: 2 hop_projection: HOP_PROJECTION_OWN_CENTROIDS",
             RANK1, true},
        Case{"cosine.static", "d_score: 3 hops: 2", "expert { kind: EXPERT_KIND_STATIC }", true},
        Case{"cosine.learned", "d_score: 3 hops: 2 tau_learned: true", RANK1, true},
        Case{"cosine.updated", "d_score: 3 hops: 3 later_hidden: HOP_HIDDEN_UPDATED", RANK1, true},
        Case{"cosine.halting", "d_score: 3 hops: 3 halt_eps: 0.6", RANK1, true},
        Case{"cosine.halting_residual",
             "d_score: 3 hops: 3 halt_eps: 0.35 halt_norm: HALT_NORM_RESIDUAL", RANK1, true}),
    [](const auto& info) { return std::string(info.param.name).substr(7); });

}  // namespace
}  // namespace switchyard::model
