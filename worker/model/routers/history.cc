#include "worker/model/routers/history.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace switchyard::model {
namespace {

constexpr double kNormEps = 1e-5;

void Push(const HistoryPolicy& policy, int64_t ordinal, const at::Tensor& hidden,
          RouterState* state) {
  at::Tensor entry = hidden;
  if (policy.is_raw) {
    entry = hidden * (hidden.square().mean(-1, /*keepdim=*/true) + kNormEps).rsqrt();
  }
  state->history.push_back({.ordinal = static_cast<uint32_t>(ordinal), .hidden = entry});
}

}  // namespace

int64_t HistoryPolicy::CountSources(int64_t layers_of_model) const {
  switch (layers) {
    case Layers::kMoe:
      return static_cast<int64_t>(moe_layers.size());
    case Layers::kAll:
      return layers_of_model;
    case Layers::kAllPlusEmbedding:
      return layers_of_model + 1;
  }
  return 0;
}

void RememberEmbedding(const HistoryPolicy& policy, const at::Tensor& embedding,
                       RouterState* state) {
  if (policy.source == HistoryPolicy::Source::kNothing ||
      policy.layers != HistoryPolicy::Layers::kAllPlusEmbedding) {
    return;
  }
  Push(policy, 0, embedding, state);
}

void RememberLayer(const HistoryPolicy& policy, const LayerTrace& trace, RouterState* state) {
  if (policy.source == HistoryPolicy::Source::kNothing) return;
  int64_t ordinal = trace.layer;
  if (policy.layers == HistoryPolicy::Layers::kMoe) {
    const auto at = std::find(policy.moe_layers.begin(), policy.moe_layers.end(), trace.layer);
    if (at == policy.moe_layers.end()) return;
    ordinal = at - policy.moe_layers.begin();
  } else if (policy.layers == HistoryPolicy::Layers::kAllPlusEmbedding) {
    ++ordinal;
  }
  if (policy.source == HistoryPolicy::Source::kLayerOutput) {
    Push(policy, ordinal, trace.output, state);
  } else {
    Push(policy, ordinal, policy.is_raw ? trace.residual : trace.input, state);
  }
}

}  // namespace switchyard::model
