#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "common/base/rng.h"

// Differentiable operations shared by the backbones, on any device (dispatch.h); the tensors of one
// call lie on one device. Contiguous results; double works like float throughout (tests). All throw
// c10::Error on wrong shapes.
namespace switchyard::model {

// Type that matrix products run in.
enum class Products {
  // That of the parameters.
  kParameter,
  // Operands rounded to bfloat16; results bfloat16.
  kBfloat16,
};

// Masks that are a function of (key, index of the sequence in the update's batch, position), so
// that the split into micro-batches does not change them.
struct DropoutStream {
  double rate = 0;  // 0: off
  RandomKey key;    // already narrowed to purpose, layer and step
  uint64_t first_sequence = 0;

  bool active() const { return rate > 0; }
};

// 1 / (1 - rate), with the rate as the masks realise it (in 65536ths).
double DropoutScale(double rate);
// [sequences, rows, width] uint8 on the CPU, 1 = keep. Element (b, r, i) depends on (stream, b, r,
// i, and width rounded up to 8).
at::Tensor DropoutMask(const DropoutStream& stream, int64_t sequences, int64_t rows, int64_t width);
// The masks of single rows: row_ids[j] is a row of sequence sequence_ids[j]; [n, width] on the
// CPU.
at::Tensor DropoutMaskRows(const DropoutStream& stream, const int64_t* sequence_ids,
                           const int64_t* row_ids, int64_t n, int64_t width);
// x [B, T, D] with the mask of [B, T, D]; x itself when inactive.
at::Tensor Dropout(const at::Tensor& x, const DropoutStream& stream);

// x W^T + b with x [..., in], weight [out, in]; `bias` may be undefined.
at::Tensor Linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  Products products);

// x * rsqrt(mean(x^2) + eps) * weight over the last dimension.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// Rotary positions: x [B, H, T, d] with d even, cos and sin [T, d / 2] in x's wide type.
at::Tensor Rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin);

// -log softmax(h W^T + b)[target] per row, 0 where the target is negative: hidden [N, D], weight
// [V, D], bias [V] or undefined, targets [N] int64. Logits exist for at most `chunk_elements`
// values at one time; 0 is the default limit. A target >= V throws.
at::Tensor CrossEntropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& targets, Products products, int64_t chunk_elements = 0);

// softmax(q k^T scale) v, each row over itself and the rows before it: q and k [B, H, T, D], v
// [B, H, T, V], in any strides; [B, H, T, V]. Memory is linear in T: scores exist for some rows of
// some heads at a time, and again in the backward pass.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           double scale);

struct RelativeAttentionInput {
  at::Tensor q;  // [B, T, h, dh]
  at::Tensor k;  // [B, S, h, dh], the S - T memory positions first
  at::Tensor v;  // [B, S, h, dh]
  at::Tensor r;  // [S, h, dh], distance S - 1 first
  at::Tensor u;  // [h, dh], added to q for content
  at::Tensor w;  // [h, dh], added to q for position
  // 0: every earlier key. Else row i sees columns max(0, i + m - window + 1) ... i + m, where m is
  // the number of memory positions present.
  int64_t window = 0;
  DropoutStream dropout;  // on the attention weights
};

// Causal attention with relative positions (Dai et al., "Transformer-XL", 2019, section 3.3):
// scores
// ((q + u) k + shift((q + w) r)) / sqrt(dh); [B, T, h * dh].
at::Tensor RelativeAttention(const RelativeAttentionInput& input);

}  // namespace switchyard::model
