#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/model/feed_forward.h"
#include "worker/model/losses.h"
#include "worker/model/model.h"
#include "worker/model/ops.h"
#include "worker/model/parameters.h"
#include "worker/model/routers/history.h"

namespace switchyard::v1 {
class DecoderSpec;
class TransformerXlSpec;
}  // namespace switchyard::v1

namespace switchyard::model {

// What the factory prepares for a backbone.
struct BackboneParts {
  ParameterStore store;
  int64_t vocab_size = 0;
  Products products = Products::kParameter;
  bool recomputes = false;  // activations of layers are made again in the backward pass
  HistoryPolicy history;    // what the layers leave for later routers
  // Builds the feed-forward part of a layer in `store`; called once per layer, in order.
  std::function<std::unique_ptr<FeedForward>(ParameterStore& store, uint32_t layer)> feed_forward;
  // Builds the losses, which own buffers in `store`; called after the layers.
  std::function<std::unique_ptr<BalanceLosses>(ParameterStore& store)> losses;
};

// Transformer-XL (models.md 2.2, 2.3) with one tied softmax over the whole vocabulary. Tensor
// names: models.md 7.5.
std::unique_ptr<LanguageModel> MakeTransformerXl(const v1::TransformerXlSpec& spec,
                                                 BackboneParts parts);

// Pre-norm causal decoder (models.md 2.7). Tensor names follow Hugging Face's Mixtral family,
// experts in the stacked form. `context`: rows of learned positions.
std::unique_ptr<LanguageModel> MakeDecoder(const v1::DecoderSpec& spec, int64_t context,
                                           BackboneParts parts);

}  // namespace switchyard::model
