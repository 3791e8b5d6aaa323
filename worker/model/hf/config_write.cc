#include <algorithm>
#include <string>
#include <utility>

#include <google/protobuf/util/message_differencer.h>
#include <nlohmann/json.hpp>

#include "common/base/strings.h"
#include "common/spec/canonical.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/hf/config.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

using Json = nlohmann::ordered_json;

const char* ClassName(HfFamily family) {
  switch (family) {
    case HfFamily::kLlama:
      return "LlamaForCausalLM";
    case HfFamily::kMixtral:
      return "MixtralForCausalLM";
    case HfFamily::kOlmoe:
      return "OlmoeForCausalLM";
    case HfFamily::kQwen3Moe:
      return "Qwen3MoeForCausalLM";
    case HfFamily::kDeepseek:
      return "DeepseekForCausalLM";
    case HfFamily::kDeepseekV2:
      return "DeepseekV2ForCausalLM";
    case HfFamily::kDeepseekV3:
      return "DeepseekV3ForCausalLM";
  }
  return "";
}

Result<HfFamily> FamilyOf(const pb::ModelSpec& model) {
  if (!model.has_decoder()) {
    return InvalidArgument("model: only a decoder has a Hugging Face family");
  }
  if (!model.has_moe()) return HfFamily::kLlama;
  switch (model.moe().router().kind_case()) {
    case pb::RouterSpec::kMixtral:
      return HfFamily::kMixtral;
    case pb::RouterSpec::kOlmoe:
      return HfFamily::kOlmoe;
    case pb::RouterSpec::kQwen3:
      return HfFamily::kQwen3Moe;
    case pb::RouterSpec::kDeepseek:
      return model.decoder().has_mla() ? HfFamily::kDeepseekV2 : HfFamily::kDeepseek;
    case pb::RouterSpec::kBiasBalanced:
      return HfFamily::kDeepseekV3;
    default:
      return InvalidArgument(
          "model.moe.router: no Hugging Face family has it; known: mixtral, olmoe, qwen3, "
          "deepseek, bias_balanced");
  }
}

void WriteAttention(const pb::DecoderSpec& decoder, HfFamily family, Json* out) {
  if (decoder.has_mla()) {
    const pb::MlaSpec& mla = decoder.mla();
    (*out)["num_key_value_heads"] = decoder.heads();
    (*out)["kv_lora_rank"] = mla.kv_rank();
    (*out)["q_lora_rank"] = mla.q_rank() > 0 ? Json(mla.q_rank()) : Json(nullptr);
    (*out)["qk_nope_head_dim"] = mla.nope_dim();
    (*out)["qk_rope_head_dim"] = mla.rope_dim();
    (*out)["v_head_dim"] = mla.value_dim();
    if (family == HfFamily::kDeepseekV3) (*out)["rope_interleave"] = decoder.rope_interleaved();
  } else {
    (*out)["num_key_value_heads"] = decoder.kv_heads();
    (*out)["head_dim"] = decoder.head_dim();
  }
  (*out)["attention_bias"] = decoder.attn_bias();
  if (family == HfFamily::kOlmoe) {
    (*out)["clip_qkv"] = decoder.qkv_clip() > 0 ? Json(decoder.qkv_clip()) : Json(nullptr);
  }
}

void WriteRope(const pb::DecoderSpec& decoder, Json* out) {
  (*out)["rope_theta"] = decoder.rope_theta();
  if (!decoder.has_yarn()) {
    (*out)["rope_scaling"] = nullptr;
    return;
  }
  const pb::YarnSpec& yarn = decoder.yarn();
  Json scaling = {{"rope_type", "yarn"},
                  {"type", "yarn"},
                  {"factor", yarn.factor()},
                  {"original_max_position_embeddings", yarn.original_context()},
                  {"beta_fast", yarn.beta_fast()},
                  {"beta_slow", yarn.beta_slow()},
                  {"truncate", yarn.truncate()}};
  if (yarn.has_mscale()) scaling["mscale"] = yarn.mscale();
  if (yarn.has_mscale_all_dim()) scaling["mscale_all_dim"] = yarn.mscale_all_dim();
  if (yarn.has_attention_factor()) scaling["attention_factor"] = yarn.attention_factor();
  (*out)["rope_scaling"] = std::move(scaling);
}

void WriteDeepseek(const pb::MoeSpec& moe, HfFamily family, Json* out) {
  const pb::RouterSpec& router = moe.router();
  const bool is_v3 = family == HfFamily::kDeepseekV3;
  const pb::GroupLimit& limit =
      is_v3 ? router.bias_balanced().group_limit() : router.deepseek().group_limit();
  const bool is_limited = limit.groups() > 0;
  (*out)["n_routed_experts"] = moe.experts();
  (*out)["n_shared_experts"] =
      moe.shared_experts() > 0 ? Json(moe.shared_experts()) : Json(nullptr);
  (*out)["first_k_dense_replace"] = moe.layers(0);
  (*out)["moe_layer_freq"] = 1;
  (*out)["routed_scaling_factor"] = moe.routed_scaling_factor();
  (*out)["scoring_func"] = is_v3 ? "sigmoid" : "softmax";
  (*out)["norm_topk_prob"] = router.gate_norm() == pb::GATE_NORM_SIGMOID_RENORM ||
                             router.gate_norm() == pb::GATE_NORM_SOFTMAX_FULL_RENORM;
  if (family != HfFamily::kDeepseek || is_limited) {
    (*out)["topk_method"] = is_v3 ? "noaux_tc" : is_limited ? "group_limited_greedy" : "greedy";
  }
  if (is_v3 || is_limited) {
    (*out)["n_group"] = is_limited ? limit.groups() : 1;
    (*out)["topk_group"] = is_limited ? limit.topk_groups() : 1;
  }
  for (const pb::LossSpec& loss : moe.losses()) {
    if (loss.id() != "deepseek_seq" && loss.id() != "deepseek_batch") continue;
    (*out)["aux_loss_alpha"] = loss.coef();
    (*out)["seq_aux"] = loss.id() == "deepseek_seq";
  }
}

void WriteExperts(const pb::ModelSpec& model, HfFamily family, Json* out) {
  const pb::MoeSpec& moe = model.moe();
  (*out)["num_experts_per_tok"] = moe.top_k();
  if (family != HfFamily::kMixtral && family != HfFamily::kOlmoe) {
    (*out)["moe_intermediate_size"] = moe.expert().width();
  }
  if (family == HfFamily::kDeepseek || family == HfFamily::kDeepseekV2 ||
      family == HfFamily::kDeepseekV3) {
    return WriteDeepseek(moe, family, out);
  }
  for (const pb::LossSpec& loss : moe.losses()) {
    if (loss.id() == "hf_mixtral") (*out)["router_aux_loss_coef"] = loss.coef();
  }
  if (family == HfFamily::kMixtral) {
    (*out)["num_local_experts"] = moe.experts();
    return;
  }
  (*out)["num_experts"] = moe.experts();
  (*out)["norm_topk_prob"] = moe.router().gate_norm() == pb::GATE_NORM_SOFTMAX_FULL_RENORM;
  if (family != HfFamily::kQwen3Moe) return;
  Json plain = Json::array();
  for (uint32_t layer = 0; layer < model.decoder().layers(); ++layer) {
    if (std::ranges::find(moe.layers(), layer) == moe.layers().end()) plain.push_back(layer);
  }
  (*out)["decoder_sparse_step"] = 1;
  (*out)["mlp_only_layers"] = std::move(plain);
}

// What a forward pass depends on, with defaults filled in.
pb::ModelSpec Essence(const pb::ModelSpec& model) {
  pb::RunSpec run;
  *run.mutable_model() = model;
  spec::FillDefaults(&run);
  pb::ModelSpec out = run.model();
  pb::DecoderSpec& decoder = *out.mutable_decoder();
  decoder.clear_dropout();
  decoder.clear_init_std();
  if (!out.has_moe()) return out;
  pb::MoeSpec& moe = *out.mutable_moe();
  moe.clear_losses();
  moe.clear_dispatch();
  moe.clear_combine_dropout();
  moe.clear_allow_constant_gate();
  if (std::cmp_equal(moe.layers_size(), decoder.layers())) {
    decoder.set_d_inner(moe.expert().width());  // no layer has it
  }
  return out;
}

}  // namespace

Result<HfConfigText> WriteHfConfig(const pb::ModelSpec& model_, uint32_t context) {
  SWITCHYARD_ASSIGN_OR_RETURN(const HfFamily family, FamilyOf(model_));
  const pb::ModelSpec model = Essence(model_);
  const pb::DecoderSpec& decoder = model.decoder();
  Json out = {{"architectures", {ClassName(family)}},
              {"model_type", std::string(HfModelType(family))},
              {"vocab_size", model.vocab()},
              {"hidden_size", decoder.d_model()},
              {"intermediate_size", decoder.d_inner()},
              {"num_hidden_layers", decoder.layers()},
              {"num_attention_heads", decoder.heads()},
              {"hidden_act", "silu"},
              {"max_position_embeddings", context},
              {"rms_norm_eps", decoder.norm_eps()},
              {"tie_word_embeddings", decoder.tied()},
              {"torch_dtype", "float32"}};
  WriteAttention(decoder, family, &out);
  WriteRope(decoder, &out);
  if (model.has_moe()) {
    pb::ModelSpec with_losses = model;
    *with_losses.mutable_moe()->mutable_losses() = model_.moe().losses();
    WriteExperts(with_losses, family, &out);
  }
  HfConfigText text{.family = family, .json = out.dump(2) + "\n"};

  // Reading it back must give the same model: what the family cannot say shows here.
  pb::ModelSpec again;
  SWITCHYARD_RETURN_IF_ERROR(ReadHfConfig(text.json, "config.json", &again).status());
  google::protobuf::util::MessageDifferencer differ;
  std::string difference;
  differ.ReportDifferencesToString(&difference);
  if (!differ.Compare(model, Essence(again))) {
    return InvalidArgument(StrCat("the family ", HfModelType(family),
                                  " cannot describe this model (wanted -> describable):\n",
                                  difference));
  }
  return text;
}

}  // namespace switchyard::model
