#include "common/spec/router_defaults.h"

#include <algorithm>
#include <string_view>

#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Sets field NAME of MESSAGE where it is absent (proto presence).
#define SWITCHYARD_DEFAULT(message, name, value) \
  if (!(message)->has_##name()) (message)->set_##name(value)
// The same for an enum, whose 0 is "unspecified".
#define SWITCHYARD_DEFAULT_ENUM(message, name, value) \
  if ((message)->name() == 0) (message)->set_##name(value)

void FillSchedule(pb::KScheduleMode mode, const pb::MoeSpec& moe, uint64_t steps,
                  pb::KSchedule* schedule) {
  SWITCHYARD_DEFAULT_ENUM(schedule, mode, mode);
  if (schedule->mode() == pb::K_SCHEDULE_MODE_CONSTANT) return;
  SWITCHYARD_DEFAULT(schedule, k_min, std::max<uint32_t>(1, moe.experts() / 2));
  SWITCHYARD_DEFAULT(schedule, k_max, moe.experts());
  if (schedule->mode() != pb::K_SCHEDULE_MODE_MULTI_STEP && steps > 0) {
    SWITCHYARD_DEFAULT(schedule, steps, steps);
  }
}

void FillMcf(pb::McfRouter* mcf) {
  SWITCHYARD_DEFAULT(mcf, use_local, true);
  if (mcf->use_local()) {
    SWITCHYARD_DEFAULT_ENUM(mcf, local_dir, pb::LOCAL_DIRECTION_PAST);
    SWITCHYARD_DEFAULT(mcf, local_include_self, false);
    SWITCHYARD_DEFAULT_ENUM(mcf, local_scale, pb::LOCAL_SCALE_INV_SQRT_D);
    SWITCHYARD_DEFAULT_ENUM(mcf, local_weight, pb::LOCAL_WEIGHT_SOFTMAX);
    SWITCHYARD_DEFAULT(mcf, r, 16);
    SWITCHYARD_DEFAULT(mcf, k_loc, 8);
    SWITCHYARD_DEFAULT(mcf, local_residual, true);
  }
  SWITCHYARD_DEFAULT(mcf, use_global, true);
  SWITCHYARD_DEFAULT_ENUM(mcf, first_layer, pb::FIRST_LAYER_LOCAL_ONLY);
  SWITCHYARD_DEFAULT(mcf, tau, 1.0);
  SWITCHYARD_DEFAULT(mcf, tau_learned, false);
  SWITCHYARD_DEFAULT(mcf, out_dropout, 0.0);
  SWITCHYARD_DEFAULT(mcf, router_mem_len, 0);
  if (!mcf->use_global()) return;
  SWITCHYARD_DEFAULT_ENUM(mcf, history, pb::HISTORY_SOURCE_GATE_INPUT);
  SWITCHYARD_DEFAULT_ENUM(mcf, history_layers, pb::HISTORY_LAYERS_MOE);
  SWITCHYARD_DEFAULT_ENUM(mcf, history_norm, pb::HISTORY_NORM_NORMALISED);
  SWITCHYARD_DEFAULT(mcf, k_hist, 3);
  SWITCHYARD_DEFAULT_ENUM(mcf, global_mask, pb::GLOBAL_MASK_TILED);
  SWITCHYARD_DEFAULT(mcf, global_causal, true);
  SWITCHYARD_DEFAULT_ENUM(mcf, fusion, pb::FUSION_CROSS_ATTN);
  SWITCHYARD_DEFAULT_ENUM(mcf, layer_emb, pb::LAYER_EMBEDDING_ABSOLUTE);
  SWITCHYARD_DEFAULT(mcf, z_residual, false);
  SWITCHYARD_DEFAULT(mcf, heads, 8);
  SWITCHYARD_DEFAULT(mcf, d_kv, 64);
  SWITCHYARD_DEFAULT_ENUM(mcf, attn_scale, pb::ATTENTION_SCALE_INV_SQRT_HEAD);
  SWITCHYARD_DEFAULT(mcf, proj_bias, false);
  SWITCHYARD_DEFAULT(mcf, attn_dropout, 0.1);
  SWITCHYARD_DEFAULT_ENUM(mcf, position, pb::ROUTER_POSITION_NONE);
  SWITCHYARD_DEFAULT(mcf, detach_history, false);
}

void FillCosine(pb::CosineRouter* cosine) {
  SWITCHYARD_DEFAULT(cosine, d_score, 64);
  SWITCHYARD_DEFAULT(cosine, hops, 1);
  SWITCHYARD_DEFAULT(cosine, tau, 30.0);
  SWITCHYARD_DEFAULT(cosine, tau_learned, false);
  SWITCHYARD_DEFAULT(cosine, proj_bias, false);
  SWITCHYARD_DEFAULT_ENUM(cosine, init, pb::CENTROID_INIT_ORTHOGONAL);
  SWITCHYARD_DEFAULT(cosine, magnitude, false);
  if (cosine->hops() < 2) return;
  SWITCHYARD_DEFAULT(cosine, halt_eps, 0.0);
  SWITCHYARD_DEFAULT_ENUM(cosine, halt_norm, pb::HALT_NORM_CUMULATIVE);
  SWITCHYARD_DEFAULT_ENUM(cosine, later_hidden, pb::HOP_HIDDEN_FIXED_NORMALISED);
  SWITCHYARD_DEFAULT_ENUM(cosine, hop_projection, pb::HOP_PROJECTION_SHARED);
}

void FillXmoe(pb::XmoeRouter* xmoe) {
  SWITCHYARD_DEFAULT(xmoe, proj_dim, 16);
  SWITCHYARD_DEFAULT(xmoe, cos_normalize_input, true);
  SWITCHYARD_DEFAULT_ENUM(xmoe, temperature, pb::XMOE_TEMPERATURE_FIXED);
  SWITCHYARD_DEFAULT(xmoe, tau, 0.07);
  SWITCHYARD_DEFAULT_ENUM(xmoe, emb_renorm, pb::EMBEDDING_RENORM_INPLACE_1P5);
}

// Kind by kind, in the order of the oneof.
struct KindDefaults {
  uint32_t top_k = 2;
  pb::GateNorm gate_norm = pb::GATE_NORM_SOFTMAX_TOPK;
  pb::NoiseKind noise = pb::NOISE_KIND_NONE;
  std::string_view loss;
  double loss_coef = 0;
};

KindDefaults DefaultsOf(const pb::MoeSpec& moe) {
  const uint32_t k = moe.top_k();  // 0: not given
  switch (moe.router().kind_case()) {
    case pb::RouterSpec::kHash:
      return {.top_k = std::max<uint32_t>(1, moe.router().hash().multi()),
              .gate_norm = pb::GATE_NORM_UNIFORM};
    case pb::RouterSpec::kRandomFixed: {
      const pb::RandomFixedMode mode = moe.router().random_fixed().mode();
      const bool is_table =
          mode == pb::RANDOM_FIXED_MODE_TOKEN_TABLE || mode == pb::RANDOM_FIXED_MODE_POSITION_TABLE;
      return {.gate_norm = is_table ? pb::GATE_NORM_UNIFORM : pb::GATE_NORM_SOFTMAX_TOPK};
    }
    case pb::RouterSpec::kRmoe:
      return {
          .gate_norm = pb::GATE_NORM_SOFTMAX_FULL_RENORM, .loss = "hf_mixtral", .loss_coef = 0.001};
    case pb::RouterSpec::kCosine:
      return {.top_k = 12};
    case pb::RouterSpec::kXmoe:
      return {.gate_norm = k == 1 ? pb::GATE_NORM_SOFTMAX_FULL : pb::GATE_NORM_SOFTMAX_FULL_RENORM,
              .loss = "gshard_top1",
              .loss_coef = 0.01};
    case pb::RouterSpec::kSwitch:
      return {.top_k = 1,
              .gate_norm = pb::GATE_NORM_SOFTMAX_FULL,
              .noise = pb::NOISE_KIND_ADDITIVE_UNIFORM,
              .loss = k > 1 ? "" : "switch",
              .loss_coef = 0.01};
    case pb::RouterSpec::kGshard:
      return {.loss = "gshard_top1", .loss_coef = 0.01};
    case pb::RouterSpec::kNoisyTopk:
      return {.noise = pb::NOISE_KIND_GAUSSIAN_LEARNED, .loss = "cv2", .loss_coef = 0.01};
    case pb::RouterSpec::kExpertChoice:
      return {.gate_norm = pb::GATE_NORM_SOFTMAX_FULL};
    case pb::RouterSpec::kBase:
      return {.top_k = 1, .gate_norm = pb::GATE_NORM_SIGMOID};
    case pb::RouterSpec::kSinkhorn:
      return {.top_k = 1, .gate_norm = k > 1 ? pb::GATE_NORM_SOFTMAX_FULL : pb::GATE_NORM_SIGMOID};
    case pb::RouterSpec::kBiasBalanced:
      return {.top_k = 8,
              .gate_norm = moe.router().bias_balanced().score() == pb::SCORE_FUNCTION_SOFTMAX
                               ? pb::GATE_NORM_SOFTMAX_FULL_RENORM
                               : pb::GATE_NORM_SIGMOID_RENORM};
    case pb::RouterSpec::kDeepseek:
      return {.top_k = 6,
              .gate_norm = pb::GATE_NORM_SOFTMAX_FULL,
              .loss = "deepseek_seq",
              .loss_coef = 0.001};
    case pb::RouterSpec::kMixtral:
      return {
          .gate_norm = pb::GATE_NORM_SOFTMAX_FULL_RENORM, .loss = "hf_mixtral", .loss_coef = 0.02};
    case pb::RouterSpec::kOlmoe:
      return {.top_k = 8,
              .gate_norm = pb::GATE_NORM_SOFTMAX_FULL,
              .loss = "hf_mixtral",
              .loss_coef = 0.01};
    case pb::RouterSpec::kQwen3:
      return {.top_k = 8,
              .gate_norm = pb::GATE_NORM_SOFTMAX_FULL_RENORM,
              .loss = "hf_mixtral",
              .loss_coef = 0.001};
    default:
      return {};
  }
}

void FillKind(uint64_t steps, pb::MoeSpec* moe) {
  pb::RouterSpec* router = moe->mutable_router();
  switch (router->kind_case()) {
    case pb::RouterSpec::kSmoe:
      SWITCHYARD_DEFAULT(router->mutable_smoe(), dense_eval, false);
      break;
    case pb::RouterSpec::kHash:
      SWITCHYARD_DEFAULT(router->mutable_hash(), balanced, false);
      SWITCHYARD_DEFAULT(router->mutable_hash(), per_layer_table, false);
      SWITCHYARD_DEFAULT(router->mutable_hash(), multi, 1);
      break;
    case pb::RouterSpec::kSmoeDropout:
      FillSchedule(pb::K_SCHEDULE_MODE_LINEAR_INCREASE, *moe, steps,
                   router->mutable_smoe_dropout()->mutable_schedule());
      SWITCHYARD_DEFAULT(router->mutable_smoe_dropout(), logit_dropout, 0.0);
      break;
    case pb::RouterSpec::kHyperRouter:
      FillSchedule(pb::K_SCHEDULE_MODE_CONSTANT, *moe, steps,
                   router->mutable_hyper_router()->mutable_schedule());
      SWITCHYARD_DEFAULT(router->mutable_hyper_router(), hyper_size, 256);
      SWITCHYARD_DEFAULT(router->mutable_hyper_router(), shared_hypernet, false);
      break;
    case pb::RouterSpec::kRmoe:
      SWITCHYARD_DEFAULT(router->mutable_rmoe(), state_size, 256);
      SWITCHYARD_DEFAULT(router->mutable_rmoe(), gru_shared, true);
      SWITCHYARD_DEFAULT(router->mutable_rmoe(), residual_gate, false);
      SWITCHYARD_DEFAULT_ENUM(router, router_dtype, pb::ROUTER_DTYPE_FLOAT32);
      break;
    case pb::RouterSpec::kMcf:
      FillMcf(router->mutable_mcf());
      SWITCHYARD_DEFAULT_ENUM(router, router_dtype, pb::ROUTER_DTYPE_FLOAT32);
      break;
    case pb::RouterSpec::kCosine:
      FillCosine(router->mutable_cosine());
      break;
    case pb::RouterSpec::kXmoe:
      FillXmoe(router->mutable_xmoe());
      break;
    case pb::RouterSpec::kRandomFixed:
      SWITCHYARD_DEFAULT_ENUM(router->mutable_random_fixed(), mode,
                              pb::RANDOM_FIXED_MODE_FROZEN_ROUTER);
      if (router->random_fixed().mode() == pb::RANDOM_FIXED_MODE_FROZEN_ROUTER) {
        SWITCHYARD_DEFAULT_ENUM(router->mutable_random_fixed(), score,
                                pb::RANDOM_FIXED_SCORE_LINEAR);
      }
      break;
    case pb::RouterSpec::kGshard:
      SWITCHYARD_DEFAULT(router->mutable_gshard(), random_second, true);
      if (router->gshard().random_second()) {
        SWITCHYARD_DEFAULT(router->mutable_gshard(), fastmoe_compat, false);
      }
      break;
    case pb::RouterSpec::kNoisyTopk:
      SWITCHYARD_DEFAULT_ENUM(router->mutable_noisy_topk(), init, pb::NOISY_INIT_KAIMING);
      break;
    case pb::RouterSpec::kExpertChoice:
      SWITCHYARD_DEFAULT_ENUM(router->mutable_expert_choice(), group,
                              pb::EXPERT_CHOICE_GROUP_BATCH);
      SWITCHYARD_DEFAULT(router->mutable_expert_choice(), threshold_inference, false);
      if (router->expert_choice().threshold_inference()) {
        SWITCHYARD_DEFAULT(router->mutable_expert_choice(), threshold_decay, 0.99);
      }
      break;
    case pb::RouterSpec::kSinkhorn:
      SWITCHYARD_DEFAULT(router->mutable_sinkhorn(), iterations_max, 100);
      SWITCHYARD_DEFAULT(router->mutable_sinkhorn(), tolerance, 1e-4);
      break;
    case pb::RouterSpec::kBiasBalanced: {
      pb::BiasBalancedRouter* balanced = router->mutable_bias_balanced();
      SWITCHYARD_DEFAULT(balanced, bias_update_rate, 1e-3);
      SWITCHYARD_DEFAULT_ENUM(balanced, score, pb::SCORE_FUNCTION_SIGMOID);
      if (balanced->has_group_limit()) {
        SWITCHYARD_DEFAULT_ENUM(balanced->mutable_group_limit(), score, pb::GROUP_SCORE_TOP2_SUM);
        SWITCHYARD_DEFAULT(balanced->mutable_group_limit(), hf_v4_fill, false);
      }
      break;
    }
    case pb::RouterSpec::kDeepseek: {
      pb::DeepseekRouter* deepseek = router->mutable_deepseek();
      if (deepseek->has_group_limit()) {
        SWITCHYARD_DEFAULT_ENUM(deepseek->mutable_group_limit(), score, pb::GROUP_SCORE_MAX);
        SWITCHYARD_DEFAULT(deepseek->mutable_group_limit(), hf_v4_fill, false);
      }
      break;
    }
    default:
      break;
  }
}

void FillNoise(pb::NoiseKind kind, pb::NoiseSpec* noise) {
  SWITCHYARD_DEFAULT_ENUM(noise, kind, kind);
  switch (noise->kind()) {
    case pb::NOISE_KIND_ADDITIVE_UNIFORM:
    case pb::NOISE_KIND_INPUT_JITTER:
      SWITCHYARD_DEFAULT(noise, eps, 0.1);
      break;
    case pb::NOISE_KIND_GAUSSIAN_FIXED:
      SWITCHYARD_DEFAULT(noise, std, 0.1);
      break;
    default:
      break;
  }
}

}  // namespace

void FillRouterDefaults(uint64_t steps, pb::MoeSpec* moe) {
  if (moe->router().kind_case() == pb::RouterSpec::KIND_NOT_SET) return;
  const KindDefaults kind = DefaultsOf(*moe);
  SWITCHYARD_DEFAULT(moe, top_k, kind.top_k);
  SWITCHYARD_DEFAULT_ENUM(moe->mutable_router(), gate_norm, kind.gate_norm);
  FillKind(steps, moe);
  const RouterProperties properties = PropertiesOf(*moe);
  if (properties.has_scores) FillNoise(kind.noise, moe->mutable_router()->mutable_noise());
  if (properties.is_trainable) SWITCHYARD_DEFAULT(moe, allow_constant_gate, false);
  if (moe->losses().empty() && !kind.loss.empty()) {
    pb::LossSpec* loss = moe->add_losses();
    loss->set_id(std::string(kind.loss));
    loss->set_coef(kind.loss_coef);
  }
  SWITCHYARD_DEFAULT(moe, shared_experts, 0);
  SWITCHYARD_DEFAULT(moe, routed_scaling_factor, 1.0);
  if (moe->has_capacity()) {
    SWITCHYARD_DEFAULT_ENUM(moe->mutable_capacity(), drop, pb::DROP_POLICY_POSITION);
    SWITCHYARD_DEFAULT(moe->mutable_capacity(), min, 0);
  }
}

#undef SWITCHYARD_DEFAULT
#undef SWITCHYARD_DEFAULT_ENUM

}  // namespace switchyard::spec
