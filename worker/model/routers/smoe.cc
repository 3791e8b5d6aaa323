#include <ATen/ATen.h>

#include "worker/model/routers/router.h"

namespace switchyard::model {
namespace {

class SmoeRouter final : public Router {
 public:
  SmoeRouter(const RouterSizes& sizes, GateWeights norm, const RouterContext& context)
      : sizes_(sizes),
        norm_(norm),
        weight_(context.store.Add(context.prefix + "weight", {sizes.experts, sizes.d_model},
                                  {.std = context.init_std})),
        bias_(context.store.Add(context.prefix + "bias", {sizes.experts}, {})) {}

  Routing Route(const RouterInput& input) override {
    TORCH_CHECK(input.hidden.dim() == 2 && input.hidden.size(1) == sizes_.d_model, "hidden is ",
                input.hidden.sizes(), ", expected [N, ", sizes_.d_model, "]");
    // In the parameters' type: half precision overflows, and rounds different scores to one value.
    const at::Tensor logits = at::linear(input.hidden.to(weight_.scalar_type()), weight_, bias_);
    const at::Tensor picked = SelectTopK(logits, sizes_.top_k);
    const at::Tensor weights = GateWeightsOf(logits, picked, norm_);
    if (input.tokens.all_valid) return {picked, weights, logits};
    const at::Tensor padding = input.tokens.valid.logical_not().unsqueeze(-1);
    return {picked.masked_fill(padding, -1), weights.masked_fill(padding, 0.0), logits};
  }
  bool has_scores() const override { return true; }

 private:
  const RouterSizes sizes_;
  const GateWeights norm_;
  at::Tensor weight_;
  at::Tensor bias_;
};

}  // namespace

std::unique_ptr<Router> MakeSmoeRouter(const RouterSizes& sizes, GateWeights norm,
                                       const RouterContext& context) {
  return std::make_unique<SmoeRouter>(sizes, norm, context);
}

}  // namespace switchyard::model
