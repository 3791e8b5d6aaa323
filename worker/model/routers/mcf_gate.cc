#include "worker/model/routers/mcf_gate.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "worker/model/routers/history_attention.h"

namespace switchyard::model {
namespace {

constexpr double kRotaryBase = 10000.0;

using Fusion = McfGateOptions::Fusion;
using LayerEmbedding = McfGateOptions::LayerEmbedding;

}  // namespace

McfGate::McfGate(const McfGateOptions& options, const std::string& prefix,
                 const std::string& score_prefix, ParameterStore& store)
    : options_(options) {
  const int64_t d = options.d_model, p = options.heads * options.d_kv;
  TORCH_CHECK(d > 0 && options.experts > 0 && p > 0, "an mcf gate of d_model ", d, ", ",
              options.experts, " experts, ", options.heads, " heads of ", options.d_kv);
  TORCH_CHECK(options.position != McfGateOptions::Position::kRope || options.d_kv % 2 == 0,
              "model.moe.router.mcf: rotary positions need an even d_kv, it is ", options.d_kv);
  TORCH_CHECK(options.tau > 0, "model.moe.router.mcf.tau: ", options.tau, " is not above 0");
  if (options.uses_global) AddHistoryTensors(prefix, store);
  if (options.learns_tau)
    log_tau_ = store.Add(prefix + "log_tau", {1}, {.mean = std::log(options.tau)});
  weight_ = store.Add(score_prefix + "weight", {options.experts, d}, {.std = options.init_std});
  bias_ = store.Add(score_prefix + "bias", {options.experts}, {});
  if (options.is_first && options.first_layer == McfGateOptions::FirstLayer::kLinearFrozen) {
    weight_.set_requires_grad(false);
    bias_.set_requires_grad(false);
  }
}

void McfGate::AddHistoryTensors(const std::string& prefix, ParameterStore& store) {
  const McfGateOptions& options = options_;
  const int64_t d = options.d_model, p = options.heads * options.d_kv;
  const Init init{.std = options.init_std};
  const auto project = [&](const char* name, int64_t out, int64_t in, bool has_bias) {
    const std::string full = prefix + name;
    return Projection{store.Add(full + ".weight", {out, in}, init),
                      has_bias ? store.Add(full + ".bias", {out}, {}) : at::Tensor()};
  };
  const bool has_bias = options.has_projection_bias;
  w_l_ = project("w_l", p, d, has_bias);
  w_k_ = project("w_k", p, d, has_bias);
  w_v_ = project("w_v", p, d, has_bias);
  w_o_ = project("w_o", d, p, has_bias);
  switch (options.fusion) {
    case Fusion::kCrossAttention:
    case Fusion::kAdd:
      break;
    case Fusion::kConcat:
      mix_ = project("w_f", d, 2 * d, false);
      break;
    case Fusion::kGate:
      mix_ = project("w_g", 1, 2 * d, true);
      break;
    case Fusion::kMultiGate:
      mix_ = project("w_g", d, 2 * d, true);
      break;
    case Fusion::kDoubleAttention:
      w_q_ = project("w_q", p, d, false);
      w_k2_ = project("w_k2", p, p, false);
      w_v2_ = project("w_v2", p, p, false);
      break;
  }
  if (options.layer_embedding != LayerEmbedding::kNone) {
    layer_embedding_ = store.Add(prefix + "layer_emb.weight", {options.embeddings, d}, init);
  }
  if (options.position == McfGateOptions::Position::kSamePositionBias) {
    same_time_bias_ = store.Add(prefix + "same_position_bias", {options.heads}, {});
  }
}

at::Tensor McfGate::Scores(const McfGateInput& input) const {
  TORCH_CHECK(input.x.dim() == 3 && input.x.size(2) == options_.d_model, "mcf gate input ",
              input.x.sizes(), ", expected [B, T, ", options_.d_model, "]");
  const at::Tensor& x = input.x;
  const bool is_linear = options_.is_first && options_.uses_global && input.history.empty() &&
                         options_.first_layer != McfGateOptions::FirstLayer::kLocalOnly;
  at::Tensor z = x;
  if (!is_linear) {
    at::Tensor neighbours = at::zeros_like(x), local = x;
    if (options_.uses_local) {
      at::Tensor all = x, valid = input.valid;
      if (input.past.defined()) {
        all = at::cat({input.past, x}, 1);
        if (valid.defined()) {
          valid = at::cat({at::ones({x.size(0), input.past.size(1)}, valid.options()), valid}, 1);
        }
      }
      neighbours = LocalContext(all, valid, x.size(1), options_.local);
      local = options_.adds_input ? x + neighbours : neighbours;
    }
    z = options_.uses_global && !input.history.empty() ? Fuse(input, neighbours, local) : local;
  }
  z = Dropout(z, input.output_dropout);
  const at::Tensor scores = at::linear(z, weight_, bias_);
  return options_.learns_tau ? scores * log_tau_.neg().exp() : scores / options_.tau;
}

at::Tensor McfGate::Fuse(const McfGateInput& input, const at::Tensor& neighbours,
                         const at::Tensor& local) const {
  at::Tensor z;
  if (options_.fusion == Fusion::kCrossAttention) {
    z = Project(Attend(input, local, w_l_), w_o_);
  } else if (options_.fusion == Fusion::kDoubleAttention) {
    const at::Tensor query = Attend(input, input.x, w_q_);
    const at::Tensor keys = Project(local, w_l_);
    DropoutStream dropout = input.attention_dropout;
    dropout.key = dropout.key.With("second");
    z = Project(Merged(HistoryAttention({.q = Heads(query),
                                         .k = {Heads(Project(keys, w_k2_))},
                                         .v = {Heads(Project(keys, w_v2_))},
                                         .valid = input.valid,
                                         .scale = AttentionScale(),
                                         .age_min = options_.is_causal ? 0 : -kAnyAge,
                                         .age_max = kAnyAge,
                                         .dropout = dropout})),
                w_o_);
  } else {
    const at::Tensor across = Project(Attend(input, input.x, w_l_), w_o_);
    if (options_.fusion == Fusion::kAdd) {
      z = across + neighbours;
    } else {
      const at::Tensor mixed = at::linear(at::cat({across, local}, 2), mix_.weight, mix_.bias);
      if (options_.fusion == Fusion::kConcat) {
        z = mixed;
      } else {
        const at::Tensor share = mixed.sigmoid();
        z = share * across + (1.0 - share) * local;
      }
    }
  }
  if (options_.layer_embedding == LayerEmbedding::kFusedAdd) {
    z = z + layer_embedding_[input.ordinal];
  }
  return options_.adds_local ? z + local : z;
}

at::Tensor McfGate::Attend(const McfGateInput& input, const at::Tensor& query,
                           const Projection& projection) const {
  const int64_t T = query.size(1);
  HistoryAttentionInput attention{.q = Heads(Project(query, projection)),
                                  .valid = input.valid,
                                  .same_time_bias = same_time_bias_,
                                  .scale = AttentionScale(),
                                  .dropout = input.attention_dropout};
  switch (options_.mask) {
    case McfGateOptions::Mask::kTiled:
      break;
    case McfGateOptions::Mask::kSamePosition:
      attention.age_max = 0;
      break;
    case McfGateOptions::Mask::kWindow:
      attention.age_max = options_.local.radius;
      break;
  }
  if (!options_.is_causal) attention.age_min = -attention.age_max;
  const bool rotates = options_.position == McfGateOptions::Position::kRope;
  // Rotations depend on differences only: the oldest row of all stands at 0.
  int64_t longest = 0;
  for (const McfHistoryEntry& entry : input.history) {
    longest = std::max(longest, entry.x.size(1) - T);
  }
  if (rotates) attention.q = Rotated(attention.q, longest);
  for (size_t j = 0; j < input.history.size(); ++j) {
    const McfHistoryEntry& entry = input.history[j];
    at::Tensor source = entry.x;
    if (options_.layer_embedding == LayerEmbedding::kAbsolute) {
      source = source + layer_embedding_[entry.ordinal];
    } else if (options_.layer_embedding == LayerEmbedding::kRelative) {
      // Row 0 is the nearest earlier layer.
      source = source + layer_embedding_[static_cast<int64_t>(input.history.size() - 1 - j)];
    }
    at::Tensor key = Heads(Project(source, w_k_));
    if (rotates) key = Rotated(key, longest - (source.size(1) - T));
    attention.k.push_back(key);
    attention.v.push_back(Heads(Project(source, w_v_)));
  }
  return Merged(HistoryAttention(attention));
}

at::Tensor McfGate::Project(const at::Tensor& x, const Projection& projection) const {
  return Linear(x, projection.weight, projection.bias, options_.context_products)
      .to(projection.weight.scalar_type());
}

at::Tensor McfGate::Heads(const at::Tensor& x) const {
  return x.view({x.size(0), x.size(1), options_.heads, options_.d_kv}).transpose(1, 2);
}

at::Tensor McfGate::Merged(const at::Tensor& x) const {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), options_.heads * options_.d_kv});
}

at::Tensor McfGate::Rotated(const at::Tensor& x, int64_t first) const {
  const int64_t half = options_.d_kv / 2;
  const at::Tensor frequency =
      at::pow(kRotaryBase, at::arange(0, half, at::kDouble) / static_cast<double>(-half));
  const at::Tensor angle =
      at::arange(first, first + x.size(2), at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
  const auto type = x.scalar_type();
  return Rope(x, angle.cos().to(type).to(x.device()), angle.sin().to(type).to(x.device()));
}

double McfGate::AttentionScale() const {
  const int64_t width = options_.scale == McfGateOptions::Scale::kInverseSqrtHead
                            ? options_.d_kv
                            : options_.heads * options_.d_kv;
  return 1.0 / std::sqrt(static_cast<double>(width));
}

}  // namespace switchyard::model
