#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "common/base/rng.h"

namespace switchyard::v1 {
class RunSpec;
}

namespace switchyard::model {

// Where a forward pass stands; decides dropout, noise and schedules. Nothing in it depends on how a
// batch is split into micro-batches.
struct ForwardContext {
  bool is_training = false;
  uint64_t step = 0;            // updates done so far
  uint64_t first_sequence = 0;  // index, within the update's batch, of row 0
  RandomKey dropout;            // stream of this run's dropout
  bool wants_routing = false;   // keep router outputs for telemetry
  // Evaluation with so many experts per token instead of the router's number; 0: the router's.
  uint32_t top_k = 0;
  // A training pass repeated to rebuild activations: nothing is counted a second time.
  bool is_recomputed = false;
};

// What one MoE layer's router said, detached; N = B * T, row b * T + t.
struct LayerRouting {
  uint32_t layer = 0;     // index in the backbone
  at::Tensor expert_ids;  // [N, K] int64, -1 = not routed
  at::Tensor weights;     // [N, K] float32
  at::Tensor logits;      // [N, E] float32; undefined for routers without scores (hash)
  at::Tensor valid;       // [N] bool
  uint32_t experts = 0;
  bool has_open_slots = false;  // -1 of a valid token may be an unused slot instead of a drop
  int64_t dropped = 0;          // assignments that a capacity gave up
  // Further values of the layer by series name without `routing/`, [].
  std::vector<std::pair<std::string, at::Tensor>> extras;
};

// A balance or z loss as it entered the total, already times its coefficient.
struct LossTerm {
  std::string id;
  at::Tensor value;  // [] float32, part of the graph in training
};

struct ForwardResult {
  at::Tensor nll;  // [B, T] float32 nats per target; 0 where the target is -1; part of the graph
  std::vector<LossTerm> aux;
  std::vector<LayerRouting> routing;  // MoE layers in rising order, when wanted
};

// Hidden states carried between segments (transformer_xl); empty for the decoder. Detached.
// layers + 1 tensors [B, M, D], then what routers keep between segments, [B, ...].
using Memory = std::vector<at::Tensor>;

// A language model as its spec describes it. Training thread only.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  // tokens, targets: [B, T] int64 (target -1: not scored). `memory` (may be null) is read and
  // replaced by the state after this segment, cut to `memory_len` positions.
  // Throws c10::Error on wrong shapes or ids outside the vocabulary.
  virtual ForwardResult Forward(const at::Tensor& tokens, const at::Tensor& targets,
                                const ForwardContext& context, Memory* memory,
                                uint32_t memory_len) = 0;

  // After the optimizer's step of an update (`is_applied` false: the step was skipped): moves what
  // controllers move, by the counts of the update's passes.
  virtual void EndUpdate(bool is_applied) { static_cast<void>(is_applied); }

  // For tests and import: logits [B, T, V] float32 of the same pass.
  virtual at::Tensor Logits(const at::Tensor& tokens, const ForwardContext& context, Memory* memory,
                            uint32_t memory_len) = 0;

  // Trainable and frozen tensors by full name; the names are the checkpoint format.
  virtual std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const = 0;
  // Saved, without gradient: hash tables, biases that a controller moves.
  virtual std::vector<std::pair<std::string, at::Tensor>> NamedBuffers() const = 0;
};

// Facts about the data that a model needs.
struct DataFacts {
  uint32_t vocab_size = 0;
  std::vector<uint64_t> token_frequency;  // [vocab_size] in the training split; may be empty
};

// Builds the model of `run` (defaults filled in) with initial values from streams (seed, "init",
// full parameter name), so that tensors of equal name and shape start equal under every router.
// Throws c10::Error when the spec and the facts disagree.
std::unique_ptr<LanguageModel> MakeModel(const v1::RunSpec& run, const DataFacts& facts);

}  // namespace switchyard::model
