#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/experts.h"
#include "worker/model/losses.h"
#include "worker/model/model.h"
#include "worker/model/ops.h"
#include "worker/model/routers/router.h"

namespace switchyard::v1 {
class CapacitySpec;
}

namespace switchyard::model {

// One pass of one backbone: what its layers share, and what they leave for losses and telemetry.
struct Pass {
  const ForwardContext& context;
  TokenFacts tokens;
  std::vector<LayerScores> scores;    // MoE layers with scores, rising
  std::vector<LayerRouting> routing;  // when wanted
  RouterState router_state;

  // Dropout of `rate` for a purpose and layer at this step; off outside training.
  DropoutStream DropoutFor(const char* purpose, uint32_t layer, double rate) const;
};

// Checks the ids against the vocabulary, and says where the tokens stand. tokens [B, T], -1 =
// padding (only behind a row's real tokens).
Pass BeginPass(const at::Tensor& tokens, const ForwardContext& context, int64_t vocab_size);

// The feed-forward part of a block, plain or of experts. Training thread only.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  // x [N, D] -> [N, D], without residual, norm and outer dropout.
  virtual at::Tensor Forward(const at::Tensor& x, Pass& pass) = 0;
  // Whether the block drops the output.
  virtual bool drops_output() const = 0;
  virtual void EndUpdate(bool is_applied) { static_cast<void>(is_applied); }
};

// Names of the tensors of one feed-forward part; an empty name: the kind has no such tensor.
struct FeedForwardNames {
  std::string w_in, b_in;  // swiglu, plain: the gate's matrix
  std::string w_up;        // swiglu, plain
  std::string w_out, b_out;
};

struct FeedForwardOptions {
  FeedForwardKind kind = FeedForwardKind::kRelu;
  int64_t d_model = 0;
  int64_t width = 0;
  uint32_t layer = 0;
  double dropout = 0;  // of hidden units (relu)
  double init_std = 0.02;
  Products products = Products::kParameter;
  const char* dropout_purpose = "ffn_hidden";
};

std::unique_ptr<FeedForward> MakePlainFeedForward(const FeedForwardOptions& options,
                                                  const FeedForwardNames& names,
                                                  ParameterStore& store);

struct MoeOptions {
  int64_t experts = 0;
  bool is_reference = false;  // dispatch: dense_reference
  bool is_bare = false;       // relu experts without biases and inner dropout
  bool drops_output = false;
  const v1::CapacitySpec* capacity = nullptr;  // copied; null: dropless
  int64_t shared_experts = 0;
  FeedForwardNames shared_names;
};

// Experts behind `router`, and beside them what every token goes through; stacked tensors under
// `names` (w_up unused; static experts: w_out).
std::unique_ptr<FeedForward> MakeMoeFeedForward(const FeedForwardOptions& options,
                                                const MoeOptions& moe,
                                                std::unique_ptr<Router> router,
                                                const FeedForwardNames& names,
                                                ParameterStore& store);

}  // namespace switchyard::model
