#include "worker/model/backbones/backbone_base.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "worker/model/recompute.h"

namespace switchyard::model {

ForwardResult BackboneBase::Forward(const at::Tensor& tokens, const at::Tensor& targets,
                                    const ForwardContext& context, Memory* memory,
                                    uint32_t memory_len) {
  TORCH_CHECK(targets.sizes() == tokens.sizes(), "targets ", targets.sizes(), " for tokens ",
              tokens.sizes());
  Pass pass = BeginPass(tokens, context, parts_.vocab_size);
  const at::Tensor hidden = Hidden(pass, memory, memory_len);
  ForwardResult result;
  result.nll = NegativeLogLikelihood(hidden.reshape({-1, hidden.size(2)}), targets.reshape({-1}))
                   .view(tokens.sizes());
  if (!pass.scores.empty() && !losses_->empty()) {
    result.aux = losses_->Compute(pass.scores, pass.tokens.valid, pass.tokens.sequences, context);
  }
  result.routing = std::move(pass.routing);
  return result;
}

at::Tensor BackboneBase::Logits(const at::Tensor& tokens, const ForwardContext& context,
                                Memory* memory, uint32_t memory_len) {
  Pass pass = BeginPass(tokens, context, parts_.vocab_size);
  const at::Tensor hidden = Hidden(pass, memory, memory_len);
  return HeadLogits(hidden);
}

at::Tensor BackboneBase::RunLayer(const at::Tensor& x, Pass& pass,
                                  const LayerFunction& layer) const {
  if (!parts_.recomputes || !pass.context.is_training || !c10::GradMode::is_enabled()) {
    return layer(x, pass);
  }
  ForwardContext context = pass.context;
  context.is_recomputed = true;
  context.wants_routing = false;
  at::Tensor out;
  Recompute([&] { out = layer(x, pass); },
            [layer, x, context, tokens = pass.tokens, state = pass.router_state] {
              Pass again{.context = context, .tokens = tokens, .router_state = state};
              layer(x, again);
            });
  return out;
}

at::Tensor BackboneBase::NegativeLogLikelihood(const at::Tensor& hidden,
                                               const at::Tensor& targets) {
  return CrossEntropy(hidden, head_weight_, head_bias_, targets, parts_.products);
}

at::Tensor BackboneBase::HeadLogits(const at::Tensor& hidden) {
  return Linear(hidden, head_weight_, head_bias_, parts_.products).to(head_weight_.scalar_type());
}

}  // namespace switchyard::model
