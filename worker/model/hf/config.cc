#include "worker/model/hf/config.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/hf/config_fields.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

struct FamilyFacts {
  HfFamily family;
  std::string_view model_type;
};
constexpr std::array<FamilyFacts, 7> kFamilies{{{HfFamily::kLlama, "llama"},
                                                {HfFamily::kMixtral, "mixtral"},
                                                {HfFamily::kOlmoe, "olmoe"},
                                                {HfFamily::kQwen3Moe, "qwen3_moe"},
                                                {HfFamily::kDeepseek, "deepseek"},
                                                {HfFamily::kDeepseekV2, "deepseek_v2"},
                                                {HfFamily::kDeepseekV3, "deepseek_v3"}}};

// Without effect on what a forward pass computes.
constexpr std::string_view kWithoutEffect[] = {"_name_or_path",
                                               "architectures",
                                               "auto_map",
                                               "bos_token_id",
                                               "chunk_size_feed_forward",
                                               "dtype",
                                               "eos_token_id",
                                               "ep_size",
                                               "id2label",
                                               "initializer_range",
                                               "is_decoder",
                                               "is_encoder_decoder",
                                               "label2id",
                                               "max_window_layers",
                                               "num_nextn_predict_layers",
                                               "output_attentions",
                                               "output_hidden_states",
                                               "output_router_logits",
                                               "pad_token_id",
                                               "pretraining_tp",
                                               "qk_head_dim",
                                               "return_dict",
                                               "torch_dtype",
                                               "transformers_version",
                                               "use_cache"};

// The bounds of common/spec, so that a fault is named by the field of the file.
constexpr uint32_t kLayersMax = 1000, kWidthMax = 1 << 16, kInnerMax = 1 << 20, kHeadsMax = 1 << 10,
                   kExpertsMax = 1 << 16, kVocabMax = 1 << 24, kContextMax = 1 << 30;

bool IsLatent(HfFamily family) {
  return family == HfFamily::kDeepseekV2 || family == HfFamily::kDeepseekV3;
}
bool IsDeepseek(HfFamily family) { return family == HfFamily::kDeepseek || IsLatent(family); }

class Reader {
 public:
  Reader(HfFamily family, ConfigFields& fields, pb::ModelSpec* model)
      : family_(family), fields_(fields), model_(*model), decoder_(*model->mutable_decoder()) {}

  Status Run() {
    for (const std::string_view name : kWithoutEffect) fields_.Ignore(name);
    ReadCommon();
    if (IsLatent(family_)) {
      ReadLatentAttention();
    } else {
      ReadHeads();
    }
    ReadRope();
    RefuseUnsupported();
    ReadExperts();
    fields_.FailUnread();
    return fields_.status();
  }

 private:
  void ReadCommon() {
    model_.set_vocab(fields_.Count("vocab_size", 1, kVocabMax));
    decoder_.set_d_model(fields_.Count("hidden_size", 1, kWidthMax));
    decoder_.set_layers(fields_.Count("num_hidden_layers", 1, kLayersMax));
    decoder_.set_heads(fields_.Count("num_attention_heads", 1, kHeadsMax));
    decoder_.set_d_inner(fields_.Count("intermediate_size", 1, kInnerMax));
    decoder_.set_norm(pb::NORM_KIND_RMSNORM);
    decoder_.set_position(pb::POSITION_KIND_ROPE);
    decoder_.set_mlp(pb::MLP_KIND_SWIGLU);
    decoder_.set_tied(fields_.FlagOr("tie_word_embeddings", false));
    decoder_.set_norm_eps(fields_.Number("rms_norm_eps"));
    if (!(decoder_.norm_eps() > 0)) fields_.Fail("rms_norm_eps", "must be above 0");
    context_ = fields_.CountOr("max_position_embeddings", 1, kContextMax, kContextMax);
    const std::string act = fields_.TextOr("hidden_act", "silu");
    if (act != "silu") {
      fields_.Fail("hidden_act", StrCat("is '", EscapeForTerminal(act), "'; only silu is known"));
    }
  }

  void ReadHeads() {
    const uint32_t heads = decoder_.heads();
    const uint32_t kv = fields_.CountOr("num_key_value_heads", 1, kHeadsMax, heads);
    if (heads % kv != 0) {
      fields_.Fail("num_key_value_heads",
                   StrCat(kv, " does not divide num_attention_heads ", heads));
    }
    decoder_.set_kv_heads(kv);
    if (fields_.Has("head_dim")) {
      decoder_.set_head_dim(fields_.Count("head_dim", 1, kWidthMax));
    } else if (decoder_.d_model() % heads != 0) {
      fields_.Fail("num_attention_heads", StrCat(heads, " does not divide hidden_size ",
                                                 decoder_.d_model(), ", and there is no head_dim"));
    } else {
      decoder_.set_head_dim(decoder_.d_model() / heads);
    }
    if (decoder_.head_dim() % 2 != 0) {
      fields_.Fail("head_dim", StrCat(decoder_.head_dim(), " is odd; rotary positions turn pairs"));
    }
    decoder_.set_attn_bias(fields_.FlagOr("attention_bias", false));
    if (family_ == HfFamily::kOlmoe) {
      decoder_.set_qk_norm(pb::QK_NORM_FULL_WIDTH);
      const double clip = fields_.NumberOr("clip_qkv", 0);
      if (clip < 0) fields_.Fail("clip_qkv", StrCat(clip, " must not be negative"));
      decoder_.set_qkv_clip(clip);
    }
    if (family_ == HfFamily::kQwen3Moe) decoder_.set_qk_norm(pb::QK_NORM_PER_HEAD);
  }

  void ReadLatentAttention() {
    const uint32_t heads = decoder_.heads();
    const uint32_t kv = fields_.CountOr("num_key_value_heads", 1, kHeadsMax, heads);
    if (kv != heads) {
      fields_.Fail("num_key_value_heads", StrCat(kv, " differs from num_attention_heads ", heads,
                                                 "; latent attention has one key per head"));
    }
    // transformers 5 writes the rotary width here.
    fields_.Ignore("head_dim");
    if (fields_.FlagOr("attention_bias", false)) {
      fields_.Fail("attention_bias", "is true; latent attention has no biases here");
    }
    pb::MlaSpec& mla = *decoder_.mutable_mla();
    mla.set_kv_rank(fields_.Count("kv_lora_rank", 1, kWidthMax));
    mla.set_q_rank(fields_.CountOr("q_lora_rank", 1, kWidthMax, 0));
    mla.set_nope_dim(fields_.Count("qk_nope_head_dim", 1, kWidthMax));
    mla.set_rope_dim(fields_.Count("qk_rope_head_dim", 2, kWidthMax));
    mla.set_value_dim(fields_.Count("v_head_dim", 1, kWidthMax));
    if (mla.rope_dim() % 2 != 0) {
      fields_.Fail("qk_rope_head_dim",
                   StrCat(mla.rope_dim(), " is odd; rotary positions turn pairs"));
    }
    if (family_ == HfFamily::kDeepseekV3) {
      decoder_.set_rope_interleaved(fields_.FlagOr("rope_interleave", true));
    }
  }

  // transformers 5 moved all of it into rope_parameters; before, rope_theta stood beside
  // rope_scaling.
  void ReadRope() {
    double theta = fields_.NumberOr("rope_theta", 0);
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
      const std::unique_ptr<ConfigFields> rope = fields_.Object(name);
      if (rope == nullptr) continue;
      const double own = rope->NumberOr("rope_theta", theta);
      if (theta != 0 && own != theta) {
        rope->Fail("rope_theta", StrCat("is ", own, ", and ", theta, " beside it"));
      }
      theta = own;
      const std::string old_type = rope->TextOr("type", "default");
      const std::string type = rope->TextOr("rope_type", old_type);
      if (rope->NumberOr("partial_rotary_factor", 1) != 1) {
        rope->Fail("partial_rotary_factor", "is not 1; only whole heads can be turned");
      }
      if (type == "yarn") {
        ReadYarn(*rope);
      } else if (type != "default") {
        rope->Fail("rope_type", StrCat("is '", EscapeForTerminal(type), "'; known: default, yarn"));
      }
      rope->FailUnread();
      fields_.Adopt(*rope);
    }
    if (theta == 0 && family_ != HfFamily::kLlama) {
      fields_.Fail("rope_theta", "is missing, expected a number");
    }
    if (theta < 0) fields_.Fail("rope_theta", StrCat("is ", theta, ", must be above 0"));
    // Old Llama files leave it out.
    decoder_.set_rope_theta(theta == 0 ? 10000.0 : theta);
  }

  void ReadYarn(ConfigFields& rope) {
    pb::YarnSpec& yarn = *decoder_.mutable_yarn();
    yarn.set_factor(rope.Number("factor"));
    if (!(yarn.factor() >= 1)) rope.Fail("factor", StrCat("is ", yarn.factor(), ", at least 1"));
    yarn.set_original_context(rope.Count("original_max_position_embeddings", 1, kContextMax));
    yarn.set_beta_fast(rope.NumberOr("beta_fast", 32));
    yarn.set_beta_slow(rope.NumberOr("beta_slow", 1));
    if (!(yarn.beta_fast() > yarn.beta_slow() && yarn.beta_slow() > 0)) {
      rope.Fail("beta_fast", StrCat("is ", yarn.beta_fast(), ", must be above beta_slow ",
                                    yarn.beta_slow(), " above 0"));
    }
    if (rope.Has("attention_factor")) {
      yarn.set_attention_factor(rope.Number("attention_factor"));
      rope.Ignore("mscale");
    } else if (rope.Has("mscale")) {
      yarn.set_mscale(rope.Number("mscale"));
    }
    if (rope.Has("mscale_all_dim") && (IsLatent(family_) || !yarn.has_attention_factor())) {
      yarn.set_mscale_all_dim(rope.Number("mscale_all_dim"));
    } else {
      rope.Ignore("mscale_all_dim");
    }
    yarn.set_truncate(rope.FlagOr("truncate", true));
  }

  void RefuseUnsupported() {
    if (fields_.Has("quantization_config")) {
      fields_.Fail("quantization_config", "is set; only unquantised weights can be read");
    }
    if (fields_.FlagOr("mlp_bias", false)) {
      fields_.Fail("mlp_bias", "is true; feed-forward parts have no biases here");
    }
    if (fields_.NumberOr("attention_dropout", 0) != 0) {
      fields_.Fail("attention_dropout", "is not 0; the decoder has no such dropout");
    }
    const bool can_slide = fields_.FlagOr("use_sliding_window", family_ != HfFamily::kQwen3Moe);
    const uint32_t window = fields_.CountOr("sliding_window", 1, kContextMax, kContextMax);
    if (can_slide && window < context_) {
      fields_.Fail("sliding_window", StrCat("of ", window, " is shorter than the context of ",
                                            context_, "; only full attention is known"));
    }
    if (fields_.Has("layer_types")) ReadLayerTypes();
  }

  void ReadLayerTypes() {
    for (const std::string& type : fields_.Texts("layer_types")) {
      if (type == "full_attention") continue;
      fields_.Fail("layer_types",
                   StrCat("holds '", EscapeForTerminal(type), "'; only full_attention is known"));
      return;
    }
  }

  void ReadExperts() {
    if (family_ == HfFamily::kLlama) return;
    const bool has_two_names = family_ == HfFamily::kQwen3Moe && !fields_.Has("num_experts");
    const char* count = family_ == HfFamily::kMixtral || has_two_names ? "num_local_experts"
                        : IsDeepseek(family_)                          ? "n_routed_experts"
                                                                       : "num_experts";
    fields_.Ignore("num_local_experts");
    pb::MoeSpec& moe = *model_.mutable_moe();
    const bool may_be_dense = family_ == HfFamily::kQwen3Moe || IsDeepseek(family_);
    const uint32_t experts = may_be_dense ? fields_.CountOr(count, 0, kExpertsMax, 0)
                                          : fields_.Count(count, 1, kExpertsMax);
    ReadLayers(experts, moe);
    moe.set_experts(experts);
    const uint32_t top_k = fields_.Count("num_experts_per_tok", 1, kExpertsMax);
    if (experts > 0 && top_k > experts) {
      fields_.Fail("num_experts_per_tok",
                   StrCat("is ", top_k, ", more than ", count, " ", experts));
    }
    moe.set_top_k(top_k);
    moe.mutable_expert()->set_kind(pb::EXPERT_KIND_SWIGLU);
    moe.mutable_expert()->set_width(
        may_be_dense ? fields_.Count("moe_intermediate_size", 1, kInnerMax) : decoder_.d_inner());
    if (IsDeepseek(family_)) {
      ReadDeepseek(moe);
    } else {
      ReadSoftmaxGate(moe);
    }
    const bool is_renormalised = moe.router().gate_norm() == pb::GATE_NORM_SOFTMAX_FULL_RENORM;
    if (top_k == 1 && is_renormalised) moe.set_allow_constant_gate(true);
    if (moe.layers().empty()) model_.clear_moe();
  }

  void ReadLayers(uint32_t experts, pb::MoeSpec& moe) {
    uint32_t first = 0, step = 1;
    std::vector<uint32_t> plain;
    if (family_ == HfFamily::kQwen3Moe) {
      step = fields_.CountOr("decoder_sparse_step", 1, kLayersMax, 1);
      plain = fields_.Counts("mlp_only_layers");
    } else if (IsDeepseek(family_)) {
      first = fields_.CountOr("first_k_dense_replace", 0, kLayersMax, 0);
      step = fields_.CountOr("moe_layer_freq", 1, kLayersMax, 1);
      if (IsLatent(family_) && step != 1) {
        fields_.Fail("moe_layer_freq", StrCat("is ", step,
                                              "; DeepSeek's code and transformers "
                                              "disagree about it, only 1 is read"));
      }
    }
    for (uint32_t layer = 0; layer < decoder_.layers() && experts > 0; ++layer) {
      const bool is_moe =
          family_ == HfFamily::kQwen3Moe
              ? (layer + 1) % step == 0 && std::ranges::find(plain, layer) == plain.end()
              : layer >= first && layer % step == 0;
      if (is_moe) moe.add_layers(layer);
    }
  }

  void ReadSoftmaxGate(pb::MoeSpec& moe) {
    pb::RouterSpec& router = *moe.mutable_router();
    bool is_renormalised = true;
    if (family_ == HfFamily::kMixtral) {
      router.mutable_mixtral();
      if (fields_.NumberOr("router_jitter_noise", 0) != 0) {
        fields_.Fail("router_jitter_noise",
                     "is not 0; there it changes what the experts see, which is not known here");
      }
    } else {
      is_renormalised = fields_.FlagOr("norm_topk_prob", false);
      if (family_ == HfFamily::kOlmoe) {
        router.mutable_olmoe();
      } else {
        router.mutable_qwen3();
      }
    }
    router.set_gate_norm(is_renormalised ? pb::GATE_NORM_SOFTMAX_FULL_RENORM
                                         : pb::GATE_NORM_SOFTMAX_FULL);
    ReadLoss("router_aux_loss_coef", "hf_mixtral", moe);
  }

  void ReadDeepseek(pb::MoeSpec& moe) {
    const bool is_v3 = family_ == HfFamily::kDeepseekV3;
    moe.set_shared_experts(fields_.CountOr("n_shared_experts", 0, kExpertsMax, 0));
    const std::string known = is_v3 ? "sigmoid" : "softmax";
    const std::string score = fields_.TextOr("scoring_func", known);
    if (score != known) {
      fields_.Fail("scoring_func", StrCat("is '", EscapeForTerminal(score), "', expected ", known));
    }
    const double scale = fields_.NumberOr("routed_scaling_factor", 1);
    if (!(scale > 0)) fields_.Fail("routed_scaling_factor", StrCat("is ", scale, ", above 0"));
    const bool is_normed = fields_.FlagOr("norm_topk_prob", is_v3);
    pb::RouterSpec& router = *moe.mutable_router();
    const uint32_t groups = fields_.CountOr("n_group", 1, kExpertsMax, 1);
    const uint32_t kept = fields_.CountOr("topk_group", 1, kExpertsMax, groups);
    if (is_v3) {
      const std::string method = fields_.TextOr("topk_method", "noaux_tc");
      if (method != "noaux_tc") {
        fields_.Fail("topk_method",
                     StrCat("is '", EscapeForTerminal(method), "', known: noaux_tc"));
      }
      pb::BiasBalancedRouter& kind = *router.mutable_bias_balanced();
      kind.set_score(pb::SCORE_FUNCTION_SIGMOID);
      router.set_gate_norm(is_normed ? pb::GATE_NORM_SIGMOID_RENORM : pb::GATE_NORM_SIGMOID);
      if (groups > 1)
        SetGroups(groups, kept, pb::GROUP_SCORE_TOP2_SUM, moe, kind.mutable_group_limit());
    } else {
      pb::DeepseekRouter& kind = *router.mutable_deepseek();
      const std::string method = fields_.TextOr("topk_method", "greedy");
      if (method == "group_limited_greedy") {
        SetGroups(groups, kept, pb::GROUP_SCORE_MAX, moe, kind.mutable_group_limit());
      } else if (method != "greedy") {
        fields_.Fail("topk_method", StrCat("is '", EscapeForTerminal(method),
                                           "', known: greedy, group_limited_greedy"));
      }
      if (is_normed && IsLatent(family_)) {
        fields_.Fail("norm_topk_prob",
                     "is true; DeepSeek's code renormalises then and "
                     "transformers does not, so that it is not known which is meant");
      }
      const bool is_renormalised = is_normed && moe.top_k() > 1;
      router.set_gate_norm(is_renormalised ? pb::GATE_NORM_SOFTMAX_FULL_RENORM
                                           : pb::GATE_NORM_SOFTMAX_FULL);
      // DeepSeek's code of this family renormalises instead of scaling.
      if (is_renormalised && scale != 1) {
        moe.set_routed_scaling_factor(1);
        return ReadDeepseekLoss(moe);
      }
    }
    moe.set_routed_scaling_factor(scale);
    ReadDeepseekLoss(moe);
  }

  void ReadDeepseekLoss(pb::MoeSpec& moe) {
    const bool is_sequence = fields_.FlagOr("seq_aux", true);
    ReadLoss("aux_loss_alpha", is_sequence ? "deepseek_seq" : "deepseek_batch", moe);
    fields_.Ignore("router_aux_loss_coef");
  }

  void SetGroups(uint32_t groups, uint32_t kept, pb::GroupScore score, const pb::MoeSpec& moe,
                 pb::GroupLimit* limit) {
    limit->set_groups(groups);
    limit->set_topk_groups(kept);
    limit->set_score(score);
    if (kept > groups || moe.experts() % groups != 0 ||
        uint64_t{kept} * moe.experts() / groups < moe.top_k()) {
      fields_.Fail("n_group", StrCat("is ", groups, " with topk_group ", kept, ": ", moe.experts(),
                                     " experts in equal groups, of which the kept ones hold ",
                                     moe.top_k(), ", are wanted"));
    }
  }

  void ReadLoss(const char* field, const char* id, pb::MoeSpec& moe) {
    if (!fields_.Has(field)) return;
    const double coef = fields_.Number(field);
    if (coef < 0) fields_.Fail(field, StrCat("is ", coef, ", must not be negative"));
    pb::LossSpec& loss = *moe.add_losses();
    loss.set_id(id);
    loss.set_coef(coef);
  }

  const HfFamily family_;
  ConfigFields& fields_;
  pb::ModelSpec& model_;
  pb::DecoderSpec& decoder_;
  uint32_t context_ = 0;
};

}  // namespace

std::string_view HfModelType(HfFamily family) {
  return std::ranges::find(kFamilies, family, &FamilyFacts::family)->model_type;
}

Result<HfFamily> ReadHfConfig(std::string_view text, std::string_view label, pb::ModelSpec* model) {
  model->Clear();
  SWITCHYARD_ASSIGN_OR_RETURN(const std::unique_ptr<ConfigFields> fields,
                              ConfigFields::Parse(text, label));
  const std::string type = fields->TextOr("model_type", "");
  const auto* found = std::ranges::find(kFamilies, type, &FamilyFacts::model_type);
  if (found == kFamilies.end()) {
    std::vector<std::string> known;
    for (const FamilyFacts& facts : kFamilies) known.emplace_back(facts.model_type);
    return InvalidArgument(StrCat(label, ": model_type ",
                                  fields->Has("model_type")
                                      ? StrCat("'", EscapeForTerminal(type), "' is not known")
                                      : std::string("is missing"),
                                  "; known: ", StrJoin(known, ", ")));
  }
  SWITCHYARD_RETURN_IF_ERROR(Reader(found->family, *fields, model).Run());
  return found->family;
}

}  // namespace switchyard::model
