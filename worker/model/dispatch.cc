#include "worker/model/dispatch.h"

#include <atomic>

#include "worker/model/dispatch_testing.h"

namespace switchyard::model {
namespace {

std::atomic<bool> is_aten_forced{false};

}  // namespace

bool UsesKernels(const at::Tensor& x) {
  return x.device().is_cpu() && !is_aten_forced.load(std::memory_order_relaxed);
}

at::ScalarType WideType(at::ScalarType type) { return type == at::kBFloat16 ? at::kFloat : type; }

void ForceAtenPath(bool is_forced) { is_aten_forced = is_forced; }

}  // namespace switchyard::model
