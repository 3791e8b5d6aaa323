#include "worker/dist/gpu/gather_scale.h"

namespace switchyard::dist {
namespace {

// One row a block at a time: neighbouring threads touch neighbouring columns.
__global__ void GatherScale(const float* __restrict__ hidden, const int64_t* __restrict__ index,
                            const float* __restrict__ scale, float* __restrict__ out, int64_t rows,
                            int64_t width) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t from = index[row];
    const float factor = scale[row];
    for (int64_t column = threadIdx.x; column < width; column += blockDim.x) {
      out[row * width + column] = from < 0 ? 0.0f : factor * hidden[from * width + column];
    }
  }
}

}  // namespace

cudaError_t LaunchGatherScale(const float* hidden, const int64_t* index, const float* scale,
                              float* out, int64_t rows, int64_t width, cudaStream_t stream) {
  if (rows == 0 || width == 0) return cudaSuccess;
  constexpr int64_t kMaxBlocks = 65535;
  const auto blocks = static_cast<unsigned>(rows < kMaxBlocks ? rows : kMaxBlocks);
  GatherScale<<<blocks, 256, 0, stream>>>(hidden, index, scale, out, rows, width);
  return cudaGetLastError();
}

}  // namespace switchyard::dist
