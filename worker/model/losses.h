#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/model.h"
#include "worker/model/parameters.h"

namespace switchyard::v1 {
class MoeSpec;
}

namespace switchyard::model {

// Definitions of models.md 5.1; at perfectly even routing their values before the coefficient are
// 1 (switch, gshard_top1, megatron_*, megablocks, deepseek_*), K (hf_mixtral, flaxformer), 1 / K
// (naive_balance), 0 (cv2; sra with orthogonal anchors), and for z_loss the mean of logsumexp^2.
enum class LossDefinition {
  kSwitch,
  kGshardTop1,
  kHfMixtral,
  kMegatronAux,
  kMegatronSeq,
  kMegatronGlobal,
  kMegablocks,
  kDeepseekSeq,
  kDeepseekBatch,
  kNaiveBalance,
  kCv2,
  kSra,
  kFlaxformer,
  kZLoss,
};
enum class LossScope { kMicro, kSequence, kGlobal };
enum class LayerReduce { kSum, kMean, kPooled };

struct LossConfig {
  std::string id;
  LossDefinition definition = LossDefinition::kMegatronAux;
  double coef = 0;
  LossScope scope = LossScope::kMicro;
  LayerReduce reduce = LayerReduce::kSum;
};

// What one MoE layer offers to the losses; N = B * T rows.
struct LayerScores {
  at::Tensor logits;      // [N, E], part of the graph
  at::Tensor expert_ids;  // [N, K], -1 = not routed
  at::Tensor weights;     // [N, K], for cv2
  at::Tensor probs;       // [N, E] where they are not softmax(logits), else undefined
  at::Tensor soft_load;   // [N, E], for cv2
  at::Tensor anchors;     // [E, d], for sra
};

// The losses of `moe` with their defaults. Throws c10::Error for an unknown id, a scope that the
// definition excludes, or a definition that the number of experts per token excludes.
std::vector<LossConfig> LossesOf(const v1::MoeSpec& moe, int64_t top_k);

// Sum over layers, mean over layers, or one value of all layers' tokens together, before the
// coefficient; one function for every definition and scope. `valid` [N] bool: only those tokens
// count. `sequences` is B. `previous_counts` (global scope): per layer [E + 1] float64, the last
// element the number of tokens; a layer whose token count there is 0 uses its own counts.
// [] in the logits' type; 0 when no token is valid.
at::Tensor BalanceLoss(const LossConfig& config, const std::vector<LayerScores>& layers,
                       const at::Tensor& valid, int64_t sequences,
                       const std::vector<at::Tensor>& previous_counts);

// All losses of a model and what they remember: the expert counts of the update before
// (models.md 5.3), as buffers.
class BalanceLosses {
 public:
  // Buffers are registered when a loss has global scope: `balance_counts` [2, layers, E + 1]
  // float64 (previous update, current one) and `balance_step` [1] int64.
  BalanceLosses(std::vector<LossConfig> configs, int64_t layers, int64_t experts,
                ParameterStore& store);

  // One term per loss, times its coefficient. In training the counts of `context.step` are added
  // up.
  std::vector<LossTerm> Compute(const std::vector<LayerScores>& layers, const at::Tensor& valid,
                                int64_t sequences, const ForwardContext& context);
  bool empty() const { return configs_.empty(); }

 private:
  void Count(const std::vector<LayerScores>& layers, uint64_t step);

  std::vector<LossConfig> configs_;
  at::Tensor counts_;
  at::Tensor step_;
};

}  // namespace switchyard::model
