#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "worker/model/kernels/kernels.h"

namespace switchyard::model {

// The kernels for a tensor's element type; throws c10::Error for others than float, double and
// bfloat16.
inline const TypedKernels& KernelsFor(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ActiveKernels().typed[static_cast<int>(Storage::kFloat)];
    case at::kDouble:
      return ActiveKernels().typed[static_cast<int>(Storage::kDouble)];
    case at::kBFloat16:
      return ActiveKernels().typed[static_cast<int>(Storage::kBfloat16)];
    default:
      TORCH_CHECK(false, "no kernels for ", type);
  }
}
inline const TypedKernels& KernelsFor(const at::Tensor& tensor) {
  return KernelsFor(tensor.scalar_type());
}

// Row i of a contiguous matrix as bytes.
class Rows {
 public:
  Rows(const at::Tensor& tensor, int64_t width)
      : base_(static_cast<char*>(const_cast<void*>(tensor.const_data_ptr()))),
        stride_(width * static_cast<int64_t>(tensor.element_size())) {
    TORCH_INTERNAL_ASSERT(tensor.is_contiguous());
  }
  char* operator[](int64_t row) const { return base_ + row * stride_; }

 private:
  char* base_;
  int64_t stride_;
};

}  // namespace switchyard::model
