#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/rng.h"
#include "worker/model/ops.h"
#include "worker/model/parameters.h"

namespace switchyard::v1 {
class MoeSpec;
}

namespace switchyard::model {

// Where the tokens of a pass stand; N = B * T, row b * T + t.
struct TokenFacts {
  int64_t sequences = 0;            // B
  int64_t tokens_per_sequence = 0;  // T
  at::Tensor token_ids;             // [N] int64, 0 for padding
  at::Tensor positions;             // [N] int64, in the sequence
  at::Tensor sequence_ids;          // [N] int64, in the update's batch
  at::Tensor valid;                 // [N] bool, false for padding
  bool all_valid = false;
};

// What the routers of one pass share, and what a pass hands to the next segment's.
struct RouterState {
  // A hidden state that later MoE layers read: [B, T, D], part of the graph.
  struct Entry {
    uint32_t ordinal = 0;  // of its layer among the sources of history (HistoryPolicy)
    at::Tensor hidden;
  };
  std::vector<Entry> history;  // in layer order; cleared before every pass
  at::Tensor recurrent;        // [N, h] state of a cell that runs through the layers
  // Per MoE layer, detached [B, M, ...]: what the pass before left, and what this one leaves.
  // Travels behind the backbone's own tensors in model::Memory, so that checkpoints hold it.
  std::vector<at::Tensor> past, next;
};

// What a layer tells its router.
struct RouterInput {
  at::Tensor hidden;  // [N, D] what the experts see, float or double
  const TokenFacts& tokens;
  uint32_t layer = 0;
  bool is_training = false;
  RandomKey random;             // for noise; narrowed to layer and step
  uint64_t step = 0;            // updates done so far
  uint64_t first_sequence = 0;  // index, within the update's batch, of row 0
  uint32_t top_k = 0;           // evaluation with so many experts per token; 0: the router's number
  bool counts = false;          // a training pass that controllers count, not a repeated one
  RouterState* state = nullptr;
  // The layer's experts on rows of [N, D], for routers that go through them more than once.
  std::function<at::Tensor(const at::Tensor& x, const at::Tensor& expert_ids,
                           const at::Tensor& weights)>
      mix;
};

// One routing decision. Padding has expert_ids -1 and weights 0.
struct Routing {
  at::Tensor expert_ids;  // [N, K] int64 in [0, E), best first; equal scores: lower id first
  at::Tensor weights;     // [N, K], normalised as the gate norm says; part of the graph
  // [N, E] raw scores after noise and before any selection bias, part of the graph; undefined for
  // scoreless kinds.
  at::Tensor logits;
  // [N, E] what balance losses average where that is not the softmax of `logits`.
  at::Tensor probs;
  // [N, E] smooth share of a token in each expert's load (loss cv2); noisy_topk in training.
  at::Tensor soft_load;
  // [E, d] vectors that stand for the experts (loss sra); kinds that have such.
  at::Tensor anchors;
  // [N, D] the layer's output, by a router that used `mix` itself.
  at::Tensor output;
  // Unused slots (expert_ids -1 of a valid token) are the kind's way, not drops.
  bool has_open_slots = false;
  // Further telemetry of the layer: series name without `routing/`, [] value.
  std::vector<std::pair<std::string, at::Tensor>> extras;
};

// How scores become weights (models.md 3.2).
enum class GateWeights {
  kSoftmaxTopk,
  kSoftmaxFull,
  kSoftmaxFullRenorm,
  kUniform,
  kSigmoid,
  kSigmoidRenorm,
};

// The norm that a spec names; throws c10::Error for an unspecified one.
GateWeights GateWeightsFrom(int proto_gate_norm);
// Whether scores mean logistic functions, one by one, instead of a softmax.
bool IsSigmoid(GateWeights norm);

// Weights of the chosen experts: logits [N, E], ids [N, K] without -1.
at::Tensor GateWeightsOf(const at::Tensor& logits, const at::Tensor& ids, GateWeights norm);

// The k highest of each row, best first; equal scores: lower index first. A NaN never wins over a
// number. logits [N, E] float or double; [N, k] int64.
at::Tensor SelectTopK(const at::Tensor& logits, int64_t k);

// Chooses experts for tokens. One instance per MoE layer; training thread only.
class Router {
 public:
  virtual ~Router() = default;

  // Scores are computed in float32 (float64 for float64 input). Throws c10::Error on a wrong shape.
  virtual Routing Route(const RouterInput& input) = 0;
  // False: no loss can act on this router.
  virtual bool has_scores() const = 0;
  // After the optimizer's step of an update (`is_applied` false: the step was skipped), for
  // controllers that moved with the counts of its passes. Buffers only, without gradient.
  virtual void EndUpdate(bool is_applied) { static_cast<void>(is_applied); }
};

// What a router is built from.
struct RouterSizes {
  int64_t d_model = 0;
  int64_t experts = 0;
  int64_t top_k = 0;
  uint32_t layer = 0;
  uint32_t ordinal = 0;  // among the MoE layers
  uint32_t moe_layers = 1;
  uint32_t layers = 1;  // of the backbone
};
struct RouterContext {
  ParameterStore& store;
  std::string prefix;       // of the names of scores' weight and bias, with the dot at its end
  std::string gate_prefix;  // of the names of its other tensors
  double init_std = 0.02;
  uint64_t seed = 0;
  uint32_t vocab_size = 0;
  const std::vector<uint64_t>& token_frequency;
  Products products = Products::kParameter;  // of the model, for router_dtype: activation
};

// The router of `moe` (not dense; defaults filled in). Throws c10::Error when spec and facts
// disagree.
std::unique_ptr<Router> MakeRouter(const v1::MoeSpec& moe, const RouterSizes& sizes,
                                   const RouterContext& context);

}  // namespace switchyard::model
