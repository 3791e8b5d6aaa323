#include <cstddef>
#include <cstdint>

#include "worker/model/kernels/kernels.h"

namespace switchyard::model {
namespace isa_avx512 {
#include "worker/model/kernels/kernels_impl.inc"
}  // namespace isa_avx512

Kernels MakeAvx512Kernels() { return isa_avx512::Make("avx512"); }

}  // namespace switchyard::model
