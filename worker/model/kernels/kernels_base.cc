#include <cstddef>
#include <cstdint>

#include "worker/model/kernels/kernels.h"

namespace switchyard::model {
namespace isa_base {
#include "worker/model/kernels/kernels_impl.inc"
}  // namespace isa_base

Kernels MakeBaseKernels() { return isa_base::Make("base"); }

}  // namespace switchyard::model
