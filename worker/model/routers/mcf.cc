#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/history.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/mcf_gate.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

constexpr int64_t kDefaultHistory = 3;

McfGateOptions::Fusion FusionOf(pb::Fusion fusion) {
  using Fusion = McfGateOptions::Fusion;
  switch (fusion) {
    case pb::FUSION_ADD:
      return Fusion::kAdd;
    case pb::FUSION_DOUBLE_ATTN:
      return Fusion::kDoubleAttention;
    case pb::FUSION_CONCAT:
      return Fusion::kConcat;
    case pb::FUSION_GATE:
      return Fusion::kGate;
    case pb::FUSION_MULTI_GATE:
      return Fusion::kMultiGate;
    default:
      return Fusion::kCrossAttention;
  }
}

McfGateOptions::LayerEmbedding LayerEmbeddingOf(pb::LayerEmbedding kind) {
  using LayerEmbedding = McfGateOptions::LayerEmbedding;
  switch (kind) {
    case pb::LAYER_EMBEDDING_NONE:
      return LayerEmbedding::kNone;
    case pb::LAYER_EMBEDDING_RELATIVE:
      return LayerEmbedding::kRelative;
    case pb::LAYER_EMBEDDING_FUSED_ADD:
      return LayerEmbedding::kFusedAdd;
    default:
      return LayerEmbedding::kAbsolute;
  }
}

LocalContextOptions LocalOf(const pb::McfRouter& spec) {
  LocalContextOptions local;
  if (spec.has_r()) local.radius = spec.r();
  if (spec.has_k_loc()) local.neighbours = spec.k_loc();
  local.sees_future = spec.local_dir() == pb::LOCAL_DIRECTION_BOTH;
  local.includes_self = spec.local_include_self();
  if (spec.local_scale() == pb::LOCAL_SCALE_NONE) {
    local.scale = LocalContextOptions::Scale::kNone;
  } else if (spec.local_scale() == pb::LOCAL_SCALE_COSINE) {
    local.scale = LocalContextOptions::Scale::kCosine;
  }
  if (spec.local_weight() == pb::LOCAL_WEIGHT_MEAN) {
    local.weight = LocalContextOptions::Weight::kMean;
  }
  return local;
}

int64_t HistoryLength(const pb::McfRouter& spec) {
  if (spec.has_use_global() && !spec.use_global()) return 0;
  return spec.has_k_hist() ? spec.k_hist() : kDefaultHistory;
}

McfGateOptions OptionsOf(const pb::McfRouter& spec, const RouterSizes& sizes, Products products,
                         double init_std) {
  const HistoryPolicy policy = HistoryPolicyOf(spec, {});
  const int64_t sources = policy.layers == HistoryPolicy::Layers::kMoe
                              ? sizes.moe_layers
                              : policy.CountSources(sizes.layers);
  McfGateOptions options{.d_model = sizes.d_model,
                         .experts = sizes.experts,
                         .heads = spec.has_heads() ? spec.heads() : 8,
                         .d_kv = spec.has_d_kv() ? spec.d_kv() : 64,
                         .has_projection_bias = spec.proj_bias(),
                         .uses_local = !spec.has_use_local() || spec.use_local(),
                         .adds_input = !spec.has_local_residual() || spec.local_residual(),
                         .local = LocalOf(spec),
                         .uses_global = HistoryLength(spec) > 0,
                         .adds_local = spec.z_residual(),
                         .is_causal = !spec.has_global_causal() || spec.global_causal(),
                         .fusion = FusionOf(spec.fusion()),
                         .layer_embedding = LayerEmbeddingOf(spec.layer_emb()),
                         .is_first = sizes.ordinal == 0,
                         .tau = spec.has_tau() ? spec.tau() : 1.0,
                         .learns_tau = spec.tau_learned(),
                         .init_std = init_std,
                         .context_products = products};
  switch (options.layer_embedding) {
    case McfGateOptions::LayerEmbedding::kAbsolute:
      options.embeddings = sources;
      break;
    case McfGateOptions::LayerEmbedding::kRelative:
      options.embeddings = std::min(std::max<int64_t>(HistoryLength(spec), 1), sources);
      break;
    case McfGateOptions::LayerEmbedding::kFusedAdd:
      options.embeddings = sizes.moe_layers;
      break;
    case McfGateOptions::LayerEmbedding::kNone:
      break;
  }
  if (spec.global_mask() == pb::GLOBAL_MASK_SAME_POSITION) {
    options.mask = McfGateOptions::Mask::kSamePosition;
  } else if (spec.global_mask() == pb::GLOBAL_MASK_WINDOW) {
    options.mask = McfGateOptions::Mask::kWindow;
  }
  if (spec.position() == pb::ROUTER_POSITION_ROPE) {
    options.position = McfGateOptions::Position::kRope;
  } else if (spec.position() == pb::ROUTER_POSITION_SAME_POSITION_BIAS) {
    options.position = McfGateOptions::Position::kSamePositionBias;
  }
  if (spec.attn_scale() == pb::ATTENTION_SCALE_INV_SQRT_P) {
    options.scale = McfGateOptions::Scale::kInverseSqrtAll;
  }
  if (spec.first_layer() == pb::FIRST_LAYER_LINEAR_X) {
    options.first_layer = McfGateOptions::FirstLayer::kLinear;
  } else if (spec.first_layer() == pb::FIRST_LAYER_LINEAR_X_FROZEN) {
    options.first_layer = McfGateOptions::FirstLayer::kLinearFrozen;
  }
  return options;
}

class McfRouter final : public ScoreRouter {
 public:
  McfRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : ScoreRouter(moe, sizes),
        history_length_(HistoryLength(moe.router().mcf())),
        memory_len_(moe.router().mcf().router_mem_len()),
        attention_dropout_(moe.router().mcf().attn_dropout()),
        output_dropout_(moe.router().mcf().out_dropout()),
        detaches_history_(moe.router().mcf().detach_history()),
        gate_(OptionsOf(moe.router().mcf(), sizes, ContextProducts(moe, context), context.init_std),
              context.gate_prefix, context.prefix, context.store) {
    const pb::McfRouter& spec = moe.router().mcf();
    TORCH_CHECK(memory_len_ == 0 || (spec.history() != pb::HISTORY_SOURCE_LAYER_OUTPUT &&
                                     spec.history_layers() <= pb::HISTORY_LAYERS_MOE &&
                                     spec.history_norm() != pb::HISTORY_NORM_RAW_RMSNORM),
                "model.moe.router.mcf.router_mem_len: ", memory_len_,
                " needs the history of gate inputs of moe layers, normalised");
  }

 private:
  at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) override {
    const int64_t B = input.tokens.sequences, T = input.tokens.tokens_per_sequence;
    TORCH_CHECK(input.state != nullptr, "mcf needs the states of earlier layers");
    RouterState& state = *input.state;
    McfGateInput gate{.x = hidden.view({B, T, sizes().d_model}),
                      .past = PastOf(state, sizes().ordinal),
                      .ordinal = sizes().ordinal};
    if (!input.tokens.all_valid) gate.valid = input.tokens.valid.view({B, T});
    const auto entries = static_cast<int64_t>(state.history.size());
    for (int64_t j = std::max<int64_t>(0, entries - history_length_); j < entries; ++j) {
      const RouterState::Entry& entry = state.history[static_cast<size_t>(j)];
      at::Tensor x = entry.hidden.to(type());
      if (detaches_history_) x = x.detach();
      const at::Tensor past = PastOf(state, entry.ordinal);
      if (past.defined()) x = at::cat({past, x}, 1);
      gate.history.push_back({.x = x, .ordinal = entry.ordinal});
    }
    if (input.is_training) {
      const auto stream = [&](const char* purpose, double rate) {
        return DropoutStream{.rate = rate,
                             .key = input.random.With(purpose),
                             .first_sequence = input.first_sequence};
      };
      gate.attention_dropout = stream("attention", attention_dropout_);
      gate.output_dropout = stream("output", output_dropout_);
    }
    const at::Tensor scores = gate_.Scores(gate).view({B * T, sizes().experts});
    if (memory_len_ > 0) Remember(gate, state);
    return scores;
  }
  at::ScalarType type() const override { return gate_.type(); }

  at::Tensor PastOf(const RouterState& state, uint32_t ordinal) const {
    if (memory_len_ == 0 || state.past.empty()) return {};
    TORCH_CHECK(state.past.size() == sizes().moe_layers, "router memory of ", state.past.size(),
                " layers, expected ", sizes().moe_layers);
    return state.past[ordinal].to(type());
  }

  void Remember(const McfGateInput& gate, RouterState& state) const {
    state.next.resize(sizes().moe_layers);
    const at::Tensor now = gate.x.detach();
    const at::Tensor all = gate.past.defined() ? at::cat({gate.past, now}, 1) : now;
    const int64_t keep = std::min(memory_len_, all.size(1));
    // A copy: a view would keep the whole segment alive.
    state.next[sizes().ordinal] = all.narrow(1, all.size(1) - keep, keep).clone();
  }

  const int64_t history_length_, memory_len_;
  const double attention_dropout_, output_dropout_;
  const bool detaches_history_;
  const McfGate gate_;
};

}  // namespace

HistoryPolicy HistoryPolicyOf(const pb::McfRouter& spec, std::vector<uint32_t> moe_layers) {
  HistoryPolicy policy{.moe_layers = std::move(moe_layers)};
  if (HistoryLength(spec) == 0) return policy;
  policy.source = spec.history() == pb::HISTORY_SOURCE_LAYER_OUTPUT
                      ? HistoryPolicy::Source::kLayerOutput
                      : HistoryPolicy::Source::kGateInput;
  if (spec.history_layers() == pb::HISTORY_LAYERS_ALL) {
    policy.layers = HistoryPolicy::Layers::kAll;
  } else if (spec.history_layers() == pb::HISTORY_LAYERS_ALL_PLUS_EMBEDDING) {
    policy.layers = HistoryPolicy::Layers::kAllPlusEmbedding;
  }
  policy.is_raw = spec.history_norm() == pb::HISTORY_NORM_RAW_RMSNORM;
  return policy;
}

std::unique_ptr<Router> MakeMcfRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                      const RouterContext& context) {
  return std::make_unique<McfRouter>(moe, sizes, context);
}

}  // namespace switchyard::model
