#include "worker/model/kernels/kernels.h"

namespace switchyard::model {

Kernels MakeBaseKernels();
#if defined(__x86_64__)
Kernels MakeAvx2Kernels();
Kernels MakeAvx512Kernels();
#endif

namespace {

Kernels Choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return MakeAvx512Kernels();
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return MakeAvx2Kernels();
  }
#endif
  return MakeBaseKernels();
}

}  // namespace

const Kernels& ActiveKernels() {
  static const Kernels kernels = Choose();
  return kernels;
}

}  // namespace switchyard::model
