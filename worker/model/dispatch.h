#pragma once

#include <ATen/core/Tensor.h>

namespace switchyard::model {

// Whether the row kernels work on `x`: they read and write host memory. Where they do not, the same
// values come from ATen operations on x's device, in the same types and with the same rounding to
// bfloat16. Thread-safe.
bool UsesKernels(const at::Tensor& x);

// The type that a matrix of `type` is computed in: float for bfloat16, else its own.
at::ScalarType WideType(at::ScalarType type);

}  // namespace switchyard::model
