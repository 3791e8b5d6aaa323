#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/model/backbones/backbone.h"

namespace switchyard::model {

// What both backbones do around their layers: the list of tensors, the softmax, the losses.
class BackboneBase : public LanguageModel {
 public:
  ForwardResult Forward(const at::Tensor& tokens, const at::Tensor& targets,
                        const ForwardContext& context, Memory* memory,
                        uint32_t memory_len) override;
  at::Tensor Logits(const at::Tensor& tokens, const ForwardContext& context, Memory* memory,
                    uint32_t memory_len) override;
  void EndUpdate(bool is_applied) override {
    for (const auto& part : feed_forward_) part->EndUpdate(is_applied);
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const override {
    return parts_.store.parameters();
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedBuffers() const override {
    return parts_.store.buffers();
  }

 protected:
  explicit BackboneBase(BackboneParts parts) : parts_(std::move(parts)) {}

  // Last hidden states [B, T, D] before the head.
  virtual at::Tensor Hidden(Pass& pass, Memory* memory, uint32_t memory_len) = 0;

  // The layer's output [B, T, D] for x [B, T, D]. Where the model recomputes and `pass` trains, the
  // layer runs a second time in the backward pass, on a pass of its own with the same state of the
  // routers; it reads nothing else that changes until then.
  using LayerFunction = std::function<at::Tensor(const at::Tensor& x, Pass& pass)>;
  at::Tensor RunLayer(const at::Tensor& x, Pass& pass, const LayerFunction& layer) const;

  // Per token of hidden [N, D], 0 where the target is negative; [N].
  virtual at::Tensor NegativeLogLikelihood(const at::Tensor& hidden, const at::Tensor& targets);
  // [B, T, V] of hidden [B, T, D].
  virtual at::Tensor HeadLogits(const at::Tensor& hidden);

  BackboneParts parts_;
  std::vector<std::unique_ptr<FeedForward>> feed_forward_;
  std::unique_ptr<BalanceLosses> losses_;
  at::Tensor head_weight_;  // [V, D]
  at::Tensor head_bias_;    // [V] or undefined
};

}  // namespace switchyard::model
