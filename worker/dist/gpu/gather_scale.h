#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace switchyard::dist {

// out[i, d] = scale[i] * hidden[index[i], d] for i < rows, d < width; index -1 gives zeros. Device
// pointers, contiguous; runs on `stream`.
cudaError_t LaunchGatherScale(const float* hidden, const int64_t* index, const float* scale,
                              float* out, int64_t rows, int64_t width, cudaStream_t stream);

}  // namespace switchyard::dist
