#include "common/spec/router_accounting.h"

#include <algorithm>
#include <vector>

#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

struct Sizes {
  uint64_t d = 0;        // d_model
  uint64_t layers = 0;   // of the backbone
  uint64_t experts = 0;  // E
  uint64_t moe_layers = 0;
};

// Hidden states of earlier layers that layer `index` finds.
uint64_t EarlierSources(const pb::McfRouter& mcf, const pb::MoeSpec& moe, int ordinal) {
  switch (mcf.history_layers()) {
    case pb::HISTORY_LAYERS_ALL:
      return moe.layers(ordinal);
    case pb::HISTORY_LAYERS_ALL_PLUS_EMBEDDING:
      return uint64_t{moe.layers(ordinal)} + 1;
    default:
      return static_cast<uint64_t>(ordinal);
  }
}

uint64_t EmbeddingRows(const pb::McfRouter& mcf, const Sizes& sizes) {
  const uint64_t sources = mcf.history_layers() == pb::HISTORY_LAYERS_ALL ? sizes.layers
                           : mcf.history_layers() == pb::HISTORY_LAYERS_ALL_PLUS_EMBEDDING
                               ? sizes.layers + 1
                               : sizes.moe_layers;
  switch (mcf.layer_emb()) {
    case pb::LAYER_EMBEDDING_NONE:
      return 0;
    case pb::LAYER_EMBEDDING_RELATIVE:
      return std::min<uint64_t>(mcf.k_hist(), sources);
    case pb::LAYER_EMBEDDING_FUSED_ADD:
      return sizes.moe_layers;
    default:
      return sources;
  }
}

// Parameters of the gate's fusion beyond the four projections, and their FLOPs per token.
RouterCost Fusion(const pb::McfRouter& mcf, uint64_t d, uint64_t p, uint64_t length) {
  switch (mcf.fusion()) {
    case pb::FUSION_CONCAT:
      return {.params = 2 * d * d, .flops = 4 * d * d};
    case pb::FUSION_GATE:
      return {.params = 2 * d + 1, .flops = 4 * d};
    case pb::FUSION_MULTI_GATE:
      return {.params = 2 * d * d + d, .flops = 4 * d * d};
    case pb::FUSION_DOUBLE_ATTN:
      return {.params = d * p + 2 * p * p, .flops = 2 * d * p + 4 * p * p + 4 * length * p};
    default:
      return {};
  }
}

RouterCost OfMcf(const pb::MoeSpec& moe, const Sizes& sizes, uint64_t length) {
  const pb::McfRouter& mcf = moe.router().mcf();
  const uint64_t d = sizes.d, e = sizes.experts;
  const uint64_t p = uint64_t{mcf.heads()} * mcf.d_kv();
  const bool is_global = mcf.use_global() && mcf.k_hist() > 0;
  const RouterCost fusion = Fusion(mcf, d, p, length);
  const uint64_t keys = length + mcf.router_mem_len();
  RouterCost sum;
  for (int ordinal = 0; ordinal < moe.layers_size(); ++ordinal) {
    sum.params += d * e + e + (mcf.tau_learned() ? 1 : 0);
    sum.flops += 2 * d * e;
    if (mcf.use_local()) {
      const uint64_t sides = mcf.local_dir() == pb::LOCAL_DIRECTION_BOTH ? 2 : 1;
      const uint64_t window = sides * mcf.r() + (mcf.local_include_self() ? 1 : 0);
      sum.flops += 2 * d * (window + std::min<uint64_t>(mcf.k_loc(), window));
    }
    if (!is_global) continue;
    sum.params += 4 * d * p + (mcf.proj_bias() ? 3 * p + d : 0) + EmbeddingRows(mcf, sizes) * d +
                  fusion.params;
    if (mcf.position() == pb::ROUTER_POSITION_SAME_POSITION_BIAS) sum.params += mcf.heads();
    const uint64_t n = std::min<uint64_t>(mcf.k_hist(), EarlierSources(mcf, moe, ordinal));
    if (n > 0) sum.flops += 4 * d * p + 4 * n * d * p + 4 * n * keys * p + fusion.flops;
  }
  return sum;
}

std::vector<uint64_t> HopTopK(const pb::MoeSpec& moe) {
  const pb::CosineRouter& cosine = moe.router().cosine();
  if (!cosine.hop_top_k().empty()) return {cosine.hop_top_k().begin(), cosine.hop_top_k().end()};
  return std::vector<uint64_t>(cosine.hops(), moe.top_k());
}

RouterCost OfCosine(const pb::MoeSpec& moe, const Sizes& sizes) {
  const pb::CosineRouter& cosine = moe.router().cosine();
  const uint64_t d = sizes.d, e = sizes.experts, size = cosine.d_score(), hops = cosine.hops();
  const bool has_own = hops > 1;
  const uint64_t projections =
      has_own && cosine.hop_projection() == pb::HOP_PROJECTION_OWN_PROJECTION ? hops : 1;
  const uint64_t centroids =
      has_own && cosine.hop_projection() == pb::HOP_PROJECTION_OWN_CENTROIDS ? hops : 1;
  RouterCost layer{.params = projections * (d * size + (cosine.proj_bias() ? size : 0)) +
                             centroids * e * size + e * size + (cosine.tau_learned() ? 1 : 0) +
                             (cosine.magnitude() ? 1 : 0),
                   .flops = projections * 2 * d * size + hops * 2 * e * size};
  const std::vector<uint64_t> top_k = HopTopK(moe);
  for (size_t hop = 0; hop + 1 < top_k.size(); ++hop) layer.flops += 2 * top_k[hop] * size;
  return {.params = sizes.moe_layers * layer.params, .flops = sizes.moe_layers * layer.flops};
}

RouterCost OfRmoe(const pb::RmoeRouter& rmoe, const Sizes& sizes) {
  const uint64_t h = rmoe.state_size(), layers = sizes.moe_layers;
  const uint64_t cells = rmoe.gru_shared() ? 1 : layers;
  return {.params = layers * (sizes.d * h + h * sizes.experts) + cells * (6 * h * h + 6 * h),
          .flops = layers * 2 * (sizes.d * h + h * sizes.experts + 6 * h * h)};
}

RouterCost OfHyperRouter(const pb::HyperRouter& hyper, const Sizes& sizes) {
  const uint64_t d = sizes.d, h = hyper.hyper_size();
  const uint64_t network = d * h + h + (h + 1) * sizes.experts * (d + 1);
  const uint64_t networks = hyper.shared_hypernet() ? 1 : sizes.moe_layers;
  return {.params = sizes.moe_layers * d + networks * network,
          .flops = sizes.moe_layers * 2 * d * sizes.experts};
}

// A matrix [E, d] and so many vectors of E in every layer.
RouterCost Linear(const Sizes& sizes, uint64_t matrices, uint64_t biases) {
  const uint64_t matrix = sizes.d * sizes.experts;
  return {.params = sizes.moe_layers * (matrices * matrix + biases * sizes.experts),
          .flops = sizes.moe_layers * 2 * matrix};
}

}  // namespace

RouterCost AccountRouters(const pb::ModelSpec& model, uint64_t length) {
  const pb::MoeSpec& moe = model.moe();
  const pb::RouterSpec& router = moe.router();
  const Sizes sizes{
      .d = model.has_decoder() ? model.decoder().d_model() : model.transformer_xl().d_model(),
      .layers = model.has_decoder() ? model.decoder().layers() : model.transformer_xl().layers(),
      .experts = moe.experts(),
      .moe_layers = static_cast<uint64_t>(moe.layers_size())};
  switch (router.kind_case()) {
    case pb::RouterSpec::kDense:
    case pb::RouterSpec::kHash:
    case pb::RouterSpec::KIND_NOT_SET:
      return {};
    case pb::RouterSpec::kRandomFixed: {
      if (router.random_fixed().mode() != pb::RANDOM_FIXED_MODE_FROZEN_ROUTER) return {};
      const bool is_linear = router.random_fixed().score() == pb::RANDOM_FIXED_SCORE_LINEAR;
      return Linear(sizes, 1, is_linear ? 1 : 0);
    }
    case pb::RouterSpec::kSmoe:
    case pb::RouterSpec::kSmoeDropout:
    case pb::RouterSpec::kSwitch:
    case pb::RouterSpec::kGshard:
      return Linear(sizes, 1, 1);
    case pb::RouterSpec::kNoisyTopk:
      return Linear(sizes, router.noise().kind() == pb::NOISE_KIND_GAUSSIAN_LEARNED ? 2 : 1, 0);
    case pb::RouterSpec::kExpertChoice:
    case pb::RouterSpec::kBase:
    case pb::RouterSpec::kSinkhorn:
    case pb::RouterSpec::kBiasBalanced:
    case pb::RouterSpec::kDeepseek:
    case pb::RouterSpec::kMixtral:
    case pb::RouterSpec::kOlmoe:
    case pb::RouterSpec::kQwen3:
      return Linear(sizes, 1, 0);
    case pb::RouterSpec::kHyperRouter:
      return OfHyperRouter(router.hyper_router(), sizes);
    case pb::RouterSpec::kXmoe: {
      const uint64_t p = router.xmoe().proj_dim();
      const uint64_t weights = sizes.d * p + p * sizes.experts;
      const uint64_t learned =
          router.xmoe().temperature() == pb::XMOE_TEMPERATURE_LEARNED_EXP_CLAMP ? 1 : 0;
      return {.params = sizes.moe_layers * (weights + learned),
              .flops = sizes.moe_layers * 2 * weights};
    }
    case pb::RouterSpec::kRmoe:
      return OfRmoe(router.rmoe(), sizes);
    case pb::RouterSpec::kCosine:
      return OfCosine(moe, sizes);
    case pb::RouterSpec::kMcf:
      return OfMcf(moe, sizes, length);
  }
  return {};
}

uint64_t ExpertsPerToken(const pb::ModelSpec& model) {
  const pb::MoeSpec& moe = model.moe();
  if (!moe.router().has_cosine()) return moe.top_k();
  uint64_t sum = 0;
  for (const uint64_t k : HopTopK(moe)) sum += k;
  return sum;
}

}  // namespace switchyard::spec
