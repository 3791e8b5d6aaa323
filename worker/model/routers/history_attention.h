#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/ops.h"

namespace switchyard::model {

// Stands for "any age": longer than a segment and its past can be.
inline constexpr int64_t kAnyAge = int64_t{1} << 40;

// Attention of a segment's queries over blocks of keys, one block per history layer. Key row s of a
// block with P past rows stands at time s - P, query row i at time i.
struct HistoryAttentionInput {
  at::Tensor q;               // [B, H, T, c]
  std::vector<at::Tensor> k;  // per block [B, H, P + T, c]; the P past rows first
  std::vector<at::Tensor> v;  // as k
  at::Tensor valid;           // [B, T] bool of the segment's keys; undefined: all
  at::Tensor same_time_bias;  // [H], added to the score of the key at the query's own time; or
                              // undefined
  double scale = 1.0;         // of the scores
  // A query sees the keys whose age, query time - key time, lies in this range: [0, kAnyAge] is
  // causal, [-kAnyAge, kAnyAge] sees everything.
  int64_t age_min = 0;
  int64_t age_max = kAnyAge;
  DropoutStream dropout;  // on the attention weights
};

// One softmax over the allowed keys of all blocks together; [B, H, T, c] in q's type. A query
// without an allowed key gives zeros. Works tile by tile with a running maximum and sum, forward
// and backward, so that no tensor of [B, H, T, blocks * T] exists. Throws c10::Error on wrong
// shapes.
at::Tensor HistoryAttention(const HistoryAttentionInput& input);

}  // namespace switchyard::model
