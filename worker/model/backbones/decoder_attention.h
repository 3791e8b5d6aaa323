#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/ops.h"
#include "worker/model/parameters.h"

namespace switchyard::v1 {
class DecoderSpec;
}

namespace switchyard::model {

// Cosines and sines of a decoder's rotary positions (models.md 7.4), plain or scaled by YaRN; one
// for all layers. Training thread only.
class Rotary {
 public:
  explicit Rotary(const v1::DecoderSpec& spec);

  // Makes the table for T positions in the type and on the device of `like`; angles in float32,
  // float64 for float64.
  void Prepare(int64_t positions, const at::Tensor& like);
  // x [B, H, T, width] turned by its positions. Interleaved pairs come out as halves: an order that
  // queries and keys share, so that their products do not depend on it.
  at::Tensor operator()(const at::Tensor& x) const;

  // Radians per position, [width / 2] float64.
  at::Tensor Frequencies() const;
  // What cosines and sines are multiplied by, and in latent attention the scores.
  double table_factor() const { return table_factor_; }
  double score_factor() const { return score_factor_; }

 private:
  int64_t width_ = 0;
  double theta_ = 10000;
  bool is_interleaved_ = false;
  bool is_yarn_ = false;
  bool is_truncated_ = true;
  double factor_ = 1, original_context_ = 0, beta_fast_ = 32, beta_slow_ = 1;
  double table_factor_ = 1, score_factor_ = 1;
  at::Tensor cos_, sin_;  // of the last length
};

// Causal self-attention of one decoder layer. Training thread only.
class DecoderAttention {
 public:
  virtual ~DecoderAttention() = default;
  // x [B, T, D] normed -> [B, T, D] in x's type. `rotary` is null without rotary positions.
  virtual at::Tensor Forward(const at::Tensor& x, const Rotary* rotary) const = 0;
};

// Grouped-query or, where the spec has `mla`, latent attention. Adds its tensors to `store` under
// `prefix` (with its dot), named as Hugging Face names them.
std::unique_ptr<DecoderAttention> MakeDecoderAttention(const v1::DecoderSpec& spec,
                                                       const std::string& prefix, Products products,
                                                       ParameterStore& store);

}  // namespace switchyard::model
