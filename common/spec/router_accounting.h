#pragma once

#include <cstdint>

namespace switchyard::v1 {
class ModelSpec;
}

namespace switchyard::spec {

// What the routers of a model's MoE layers hold and cost, all layers together.
struct RouterCost {
  uint64_t params = 0;  // frozen ones included, buffers not
  uint64_t flops = 0;   // forward, per token, by models.md 2.10
};

// `model` with defaults filled in and experts behind a router that is not dense. `length`: tokens
// of a segment; the routers' attention counts whole squares, masked or not. All kinds but `mcf`
// count alike in every layer.
RouterCost AccountRouters(const v1::ModelSpec& model, uint64_t length);

// Experts that one token goes through in a layer: top_k, times the hops of `cosine`.
uint64_t ExpertsPerToken(const v1::ModelSpec& model);

}  // namespace switchyard::spec
