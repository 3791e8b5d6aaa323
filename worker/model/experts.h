#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "worker/model/ops.h"
#include "worker/model/parameters.h"

namespace switchyard::model {

enum class FeedForwardKind {
  kRelu,    // two matrices with biases, dropout inside
  kSwiglu,  // down(silu(gate(x)) * up(x)), no biases
  kGelu,    // two matrices without biases
  kSilu,    // two matrices without biases
  kStatic,  // one vector (MixVectors)
};

// All experts of one layer, stacked.
struct Experts {
  FeedForwardKind kind = FeedForwardKind::kRelu;
  at::Tensor w_in;   // [E, F, D]; swiglu: [E, 2 F, D], gate rows first
  at::Tensor b_in;   // [E, F] or undefined
  at::Tensor w_out;  // [E, D, F]
  at::Tensor b_out;  // [E, D] or undefined
};

// Which expert gets which token: N tokens with K slots.
struct Assignment {
  at::Tensor expert_ids;  // [N, K] int64, -1 = not routed; an expert at most once per token
  at::Tensor weights;     // [N, K]
};

// Dropout of the hidden units (relu experts). Row of slot k of position t in its sequence: t K + k.
struct InnerDropout {
  DropoutStream stream;
  int64_t tokens_per_sequence = 1;
};

// y_n = sum_k weights[n, k] F_{ids[n, k]}(x_n) in the type of `x` [N, D]; zero for a token without
// an expert. One pass over the assignments sorted by expert (stable), each expert's product on a
// contiguous slice; the sum over slots runs in slot order, so that the result is the same bits for
// any number of threads. On other devices the same sums by that device's operations, with one copy
// of the ids to the host. Gradients for x, weights and all expert tensors; an expert without tokens
// gets zeros.
at::Tensor MixExperts(const at::Tensor& x, const Assignment& assignment, const Experts& experts,
                      const InnerDropout& dropout, Products products);

// y_n = sum_k weights[n, k] vectors[ids[n, k]] with vectors [E, D]: experts that do not look at the
// token. [N, D] in the type of `vectors`.
at::Tensor MixVectors(const at::Tensor& vectors, const Assignment& assignment);

// The same as MixExperts by every expert on every token, masked, in plain differentiable
// operations: slow, and the oracle of the tests.
at::Tensor MixExpertsReference(const at::Tensor& x, const Assignment& assignment,
                               const Experts& experts, const InnerDropout& dropout,
                               Products products);

}  // namespace switchyard::model
