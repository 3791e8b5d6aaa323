#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/routers/router.h"

namespace switchyard::v1 {
class McfRouter;
}

namespace switchyard::model {

// Which hidden states of a pass later routers read (models.md 4.3, A9, A10, A25).
struct HistoryPolicy {
  enum class Source { kNothing, kGateInput, kLayerOutput } source = Source::kNothing;
  enum class Layers { kMoe, kAll, kAllPlusEmbedding } layers = Layers::kMoe;
  // The residual stream, or a layer's output, divided by its root mean square.
  bool is_raw = false;
  std::vector<uint32_t> moe_layers;  // rising

  // Sources of a model with so many layers: the ordinals of entries are below it.
  int64_t CountSources(int64_t layers_of_model) const;
};

// What the mcf routers of a model read.
HistoryPolicy HistoryPolicyOf(const v1::McfRouter& spec, std::vector<uint32_t> moe_layers);

// What one layer of a backbone leaves behind; all [B, T, D].
struct LayerTrace {
  uint32_t layer = 0;
  at::Tensor input;     // of the feed-forward part
  at::Tensor residual;  // the stream that `input` was made from
  at::Tensor output;
};

// Adds to the history of `state` what the policy wants: of the embedding, before the first layer,
// and of a layer, after it.
void RememberEmbedding(const HistoryPolicy& policy, const at::Tensor& embedding,
                       RouterState* state);
void RememberLayer(const HistoryPolicy& policy, const LayerTrace& trace, RouterState* state);

}  // namespace switchyard::model
