#include "worker/dist/gpu_api.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "worker/dist/gpu/gather_scale.h"

namespace switchyard::dist {
namespace {

int DeviceCount(std::string* why) {
  int count = 0;
  // Asked of the runtime first: it gives the reason that torch's count swallows.
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess) {
    *why = cudaGetErrorString(code);
    return 0;
  }
  const int usable = c10::cuda::device_count();
  if (usable == 0) *why = "torch can use none of its devices";
  return usable;
}

c10::intrusive_ptr<c10d::Backend> MakeNccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, int device,
                                           std::chrono::milliseconds timeout) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

at::Tensor GatherScale(const at::Tensor& hidden, const at::Tensor& index, const at::Tensor& scale) {
  TORCH_CHECK(hidden.is_cuda() && hidden.dim() == 2 && hidden.scalar_type() == at::kFloat &&
                  hidden.is_contiguous(),
              "hidden is ", hidden.sizes(), " ", hidden.scalar_type(), " on ", hidden.device(),
              ", expected contiguous float [N, D] on a GPU");
  TORCH_CHECK(index.device() == hidden.device() && index.dim() == 1 &&
                  index.scalar_type() == at::kLong && index.is_contiguous(),
              "index is ", index.sizes(), ", expected contiguous int64 [M] beside hidden");
  TORCH_CHECK(scale.device() == hidden.device() && scale.sizes() == index.sizes() &&
                  scale.scalar_type() == at::kFloat && scale.is_contiguous(),
              "scale is ", scale.sizes(), ", expected contiguous float ", index.sizes(),
              " beside hidden");
  const c10::cuda::CUDAGuard guard(hidden.device());
  at::Tensor out = at::empty({index.size(0), hidden.size(1)}, hidden.options());
  const cudaError_t code =
      LaunchGatherScale(hidden.const_data_ptr<float>(), index.const_data_ptr<int64_t>(),
                        scale.const_data_ptr<float>(), out.mutable_data_ptr<float>(), index.size(0),
                        hidden.size(1), c10::cuda::getCurrentCUDAStream());
  TORCH_CHECK(code == cudaSuccess, "gather_scale: ", cudaGetErrorString(code));
  return out;
}

constexpr GpuApi kApi{.version = kGpuApiVersion,
                      .device_count = DeviceCount,
                      .make_nccl = MakeNccl,
                      .gather_scale = GatherScale};

}  // namespace
}  // namespace switchyard::dist

// Found by name (kGpuApiSymbol) after dlopen.
extern "C" const switchyard::dist::GpuApi* switchyard_gpu_api() { return &switchyard::dist::kApi; }
