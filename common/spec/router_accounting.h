#pragma once

#include <cstdint>

namespace switchyard::v1 {
class MoeSpec;
}

namespace switchyard::spec {

// Tensors and products of one layer's router by models.md 2.10.
struct RouterSize {
  uint64_t params = 0;         // of each MoE layer
  uint64_t params_shared = 0;  // once for all layers
  uint64_t flops = 0;          // forward, per token and layer
};

// `moe` with defaults filled in, not dense. Buffers (tables, balancing biases) are not parameters.
RouterSize SizeOfRouter(const v1::MoeSpec& moe, uint64_t d_model);

}  // namespace switchyard::spec
