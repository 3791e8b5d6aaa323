#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace switchyard::model {

// How near a token looks for its neighbours, and how it weighs them (models.md 4.3, A1 to A6).
struct LocalContextOptions {
  int64_t radius = 16;     // r
  int64_t neighbours = 8;  // k_loc
  bool sees_future = false;
  bool includes_self = false;
  enum class Scale { kInverseSqrt, kNone, kCosine } scale = Scale::kInverseSqrt;
  enum class Weight { kSoftmax, kMean } weight = Weight::kSoftmax;
};

// Per token the weighted sum of its most similar neighbours within the radius: similarity <x_i,
// x_j> (scaled), the k_loc highest of the valid ones (ties: the nearer, then the past one), softmax
// or mean over those; zeros where there is none. x [B, P + T, D] with P rows of the past, which
// only are neighbours; `valid` [B, P + T] bool, undefined: all. [B, T, D]. Products of blocks of
// `radius` rows: no tensor of [T, T] exists.
at::Tensor LocalContext(const at::Tensor& x, const at::Tensor& valid, int64_t length,
                        const LocalContextOptions& options);

}  // namespace switchyard::model
