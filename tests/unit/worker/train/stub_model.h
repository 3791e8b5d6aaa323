#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>
#include <vector>

#include "worker/model/model.h"

namespace switchyard::train {

// A model small enough to compute by hand: logits = table[token] + memory mean * gain, a memory of
// hidden states, dropout from the run's stream, one routed "layer" of two experts.
class StubModel final : public model::LanguageModel {
 public:
  explicit StubModel(int64_t vocab, double dropout = 0) : vocab_(vocab), dropout_(dropout) {
    at::Tensor values = at::empty({vocab, vocab});
    float* out = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < values.numel(); ++i) {
      out[i] = 0.1f * static_cast<float>(RandomNormal({7}, static_cast<uint64_t>(i)));
    }
    table = values.requires_grad_(true);
    gain = at::zeros({vocab}).requires_grad_(true);
    frozen = at::full({3}, 2.0f);
  }

  model::ForwardResult Forward(const at::Tensor& tokens, const at::Tensor& targets,
                               const model::ForwardContext& context, model::Memory* memory,
                               uint32_t memory_len) override {
    ++forwards;
    if (context.is_training) training_tokens += tokens.numel();
    const at::Tensor logits = Scores(tokens, context, memory, memory_len);
    const at::Tensor valid = targets.ge(0);
    const at::Tensor nll =
        -logits.log_softmax(-1).gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1) * valid;
    model::ForwardResult out{.nll = nll};
    if (context.wants_routing) {
      out.routing.push_back({.layer = 1,
                             .expert_ids = tokens.reshape({-1, 1}).remainder(2),
                             .weights = at::ones({tokens.numel(), 1}),
                             .valid = valid.reshape({-1}),
                             .experts = 2});
    }
    return out;
  }

  at::Tensor Logits(const at::Tensor& tokens, const model::ForwardContext& context,
                    model::Memory* memory, uint32_t memory_len) override {
    return Scores(tokens, context, memory, memory_len);
  }

  std::vector<std::pair<std::string, at::Tensor>> NamedParameters() const override {
    return {{"table", table}, {"gain", gain}};
  }
  std::vector<std::pair<std::string, at::Tensor>> NamedBuffers() const override {
    return {{"frozen", frozen}};
  }

  at::Tensor table;   // [V, V] float32
  at::Tensor gain;    // [V] float32
  at::Tensor frozen;  // [3] float32
  int forwards = 0;
  int64_t training_tokens = 0;

 private:
  at::Tensor Scores(const at::Tensor& tokens, const model::ForwardContext& context,
                    model::Memory* memory, uint32_t memory_len) {
    at::Tensor hidden =
        table.index_select(0, tokens.reshape({-1})).view({tokens.size(0), tokens.size(1), vocab_});
    if (context.is_training && dropout_ > 0) {
      at::Tensor mask = at::ones({tokens.size(0), tokens.size(1), 1});
      float* keep = mask.mutable_data_ptr<float>();
      const uint64_t row0 = context.first_sequence;
      for (int64_t i = 0; i < mask.numel(); ++i) {
        const RandomKey key = context.dropout.With(context.step)
                                  .With(row0 + static_cast<uint64_t>(i / tokens.size(1)));
        keep[i] = RandomUniform(key, static_cast<uint64_t>(i % tokens.size(1))) < dropout_ ? 0 : 1;
      }
      hidden = hidden * mask;
    }
    if (memory == nullptr) return hidden;
    at::Tensor logits = hidden;
    if (!memory->empty()) logits = logits + memory->at(0).mean(1, true) * gain;
    const at::Tensor kept =
        memory->empty() ? hidden.detach() : at::cat({memory->at(0), hidden.detach()}, 1);
    const int64_t length = std::min<int64_t>(kept.size(1), memory_len);
    *memory = {kept.narrow(1, kept.size(1) - length, length).contiguous()};
    return logits;
  }

  int64_t vocab_;
  double dropout_;
};

}  // namespace switchyard::train
