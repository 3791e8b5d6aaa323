#include <cstddef>
#include <cstdint>

#include "worker/model/kernels/kernels.h"

namespace switchyard::model {
namespace isa_avx2 {
#include "worker/model/kernels/kernels_impl.inc"
}  // namespace isa_avx2

Kernels MakeAvx2Kernels() { return isa_avx2::Make("avx2"); }

}  // namespace switchyard::model
