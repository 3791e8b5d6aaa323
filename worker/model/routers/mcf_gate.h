#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/ops.h"
#include "worker/model/parameters.h"
#include "worker/model/routers/local_context.h"

namespace switchyard::model {

// One reading of MCF-MoE's gate: the choices of models.md 4.3 that concern one gate.
struct McfGateOptions {
  int64_t d_model = 0;
  int64_t experts = 0;
  int64_t heads = 8;
  int64_t d_kv = 64;  // width of a head
  bool has_projection_bias = false;
  bool uses_local = true;
  bool adds_input = true;  // local_residual: L = x + neighbours
  LocalContextOptions local;
  bool uses_global = true;
  bool adds_local = false;  // z_residual
  enum class Mask { kTiled, kSamePosition, kWindow } mask = Mask::kTiled;
  bool is_causal = true;
  enum class Fusion {
    kCrossAttention,
    kAdd,
    kConcat,
    kGate,
    kMultiGate,
    kDoubleAttention
  } fusion = Fusion::kCrossAttention;
  enum class LayerEmbedding {
    kAbsolute,
    kNone,
    kRelative,
    kFusedAdd
  } layer_embedding = LayerEmbedding::kAbsolute;
  int64_t embeddings = 0;  // rows of the table
  enum class Position { kNone, kRope, kSamePositionBias } position = Position::kNone;
  enum class Scale { kInverseSqrtHead, kInverseSqrtAll } scale = Scale::kInverseSqrtHead;
  enum class FirstLayer { kLocalOnly, kLinear, kLinearFrozen } first_layer = FirstLayer::kLocalOnly;
  bool is_first = false;  // no history ever reaches this gate
  double tau = 1.0;
  bool learns_tau = false;
  double init_std = 0.02;
  Products context_products = Products::kParameter;  // of projections and attention
};

// What an earlier layer left.
struct McfHistoryEntry {
  at::Tensor x;         // [B, P + T, D], P rows of the past first
  int64_t ordinal = 0;  // of the layer among the sources of history
};

// What one pass gives the gate.
struct McfGateInput {
  at::Tensor x;                          // [B, T, D]: what the experts get
  at::Tensor past;                       // [B, P, D] of this layer's earlier segments, or undefined
  at::Tensor valid;                      // [B, T] bool; undefined: all
  std::vector<McfHistoryEntry> history;  // oldest layer first
  int64_t ordinal = 0;                   // of this gate among the MoE layers
  DropoutStream attention_dropout, output_dropout;
};

// Scores of one MoE layer from a local and a cross-layer context (MCF-MoE, as models.md 4.4 reads
// it): L = x + weighted nearby tokens; z = attention of L over earlier layers' tokens, projected
// back to D; scores = z W_E^T + b. Training thread only.
class McfGate {
 public:
  // Tensors: GATE_PREFIX + {w_l, w_k, w_v, w_o}.weight, layer_emb.weight, SCORE_PREFIX + {weight,
  // bias}, and what the options add.
  McfGate(const McfGateOptions& options, const std::string& gate_prefix,
          const std::string& score_prefix, ParameterStore& store);

  // [B, T, E], computed in the parameters' type; part of the graph. Throws c10::Error on wrong
  // shapes.
  at::Tensor Scores(const McfGateInput& input) const;
  at::ScalarType type() const { return weight_.scalar_type(); }

 private:
  struct Projection {
    at::Tensor weight, bias;
  };

  void AddHistoryTensors(const std::string& prefix, ParameterStore& store);
  at::Tensor Fuse(const McfGateInput& input, const at::Tensor& neighbours,
                  const at::Tensor& local) const;
  // Attention of `query` [B, T, D] over the history, before W_O: [B, T, p].
  at::Tensor Attend(const McfGateInput& input, const at::Tensor& query,
                    const Projection& projection) const;
  at::Tensor Project(const at::Tensor& x, const Projection& projection) const;
  at::Tensor Heads(const at::Tensor& x) const;   // [B, S, p] -> [B, H, S, c]
  at::Tensor Merged(const at::Tensor& x) const;  // back
  at::Tensor Rotated(const at::Tensor& x, int64_t first) const;
  double AttentionScale() const;

  const McfGateOptions options_;
  Projection w_l_, w_k_, w_v_, w_o_, w_q_, w_k2_, w_v2_, mix_;
  at::Tensor layer_embedding_;  // [embeddings, D]
  at::Tensor same_time_bias_;   // [H]
  at::Tensor log_tau_;          // [1]
  at::Tensor weight_, bias_;    // [E, D], [E]
};

}  // namespace switchyard::model
