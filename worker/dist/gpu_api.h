#pragma once

#include <chrono>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

// What libswitchyard_gpu.so offers to the program that loads it. Both come from one build; the
// version guards against a stale file.
namespace switchyard::dist {

inline constexpr int kGpuApiVersion = 1;

struct GpuApi {
  int version = 0;
  // Usable devices; 0 with the reason in `why`.
  int (*device_count)(std::string* why) = nullptr;
  // NCCL group of rank `rank` of `size` on device `device`. Throws c10::Error.
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const c10::intrusive_ptr<c10d::Store>& store,
                                                 int rank, int size, int device,
                                                 std::chrono::milliseconds timeout) = nullptr;
  // out[i] = scale[i] * hidden[index[i]]; hidden [N, D] float32, index [M] int64, scale [M]
  // float32, all contiguous on one device; an index of -1 gives zeros. Throws c10::Error on
  // anything else.
  at::Tensor (*gather_scale)(const at::Tensor& hidden, const at::Tensor& index,
                             const at::Tensor& scale) = nullptr;
};

// The loaded parts; null unless HasGpu().
const GpuApi* LoadedGpuApi();

inline constexpr const char* kGpuApiSymbol = "switchyard_gpu_api";

}  // namespace switchyard::dist
