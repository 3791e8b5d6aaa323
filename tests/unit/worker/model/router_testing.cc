#include "tests/unit/worker/model/router_testing.h"

#include <ATen/ATen.h>
#include <google/protobuf/text_format.h>

#include "common/base/check.h"
#include "common/spec/router_defaults.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::model {

TokenFacts FactsOf(const at::Tensor& token_ids) {
  const int64_t B = token_ids.size(0), T = token_ids.size(1);
  const at::Tensor flat = token_ids.contiguous().view({-1});
  return {.sequences = B,
          .tokens_per_sequence = T,
          .token_ids = flat.clamp_min(0),
          .positions = at::arange(T).repeat({B}),
          .sequence_ids = at::arange(B).repeat_interleave(T),
          .valid = flat.ge(0),
          .all_valid = flat.ge(0).all().item<bool>()};
}

RouterUnderTest::RouterUnderTest(const std::string& moe_text, int64_t d_model, bool is_double,
                                 uint32_t layer) {
  v1::MoeSpec moe;
  SWITCHYARD_CHECK(google::protobuf::TextFormat::ParseFromString(moe_text, &moe)) << moe_text;
  spec::FillRouterDefaults(/*steps=*/100, &moe);
  for (uint64_t i = 0; i < kVocab; ++i) frequency.push_back(1000 / (i + 1));
  sizes = {.d_model = d_model,
           .experts = moe.experts(),
           .top_k = moe.top_k(),
           .layer = layer,
           .ordinal = 1,
           .moe_layers = 2};
  properties = spec::PropertiesOf(moe);
  router = MakeRouter(moe, sizes,
                      {.store = store,
                       .prefix = "gate.",
                       .gate_prefix = "",
                       .init_std = 0.5,
                       .seed = 9,
                       .vocab_size = kVocab,
                       .token_frequency = frequency});
  if (!is_double) return;
  for (const auto& [name, tensor] : store.parameters()) {
    const bool is_trained = tensor.requires_grad();
    tensor.set_data(tensor.detach().to(at::kDouble));
    tensor.set_requires_grad(is_trained);
  }
}

at::Tensor RouterUnderTest::Get(const std::string& name) const {
  for (const auto* list : {&store.parameters(), &store.buffers()}) {
    for (const auto& [key, tensor] : *list) {
      if (key == name) return tensor;
    }
  }
  SWITCHYARD_CHECK(false) << "no tensor " << name;
  return {};
}

void RouterUnderTest::Widen(double factor) {
  for (const auto& [name, tensor] : store.parameters()) {
    if (name != "temperature") tensor.detach().mul_(factor);
  }
}

Routing RouterUnderTest::Route(const at::Tensor& hidden, const TokenFacts& facts, bool is_training,
                               uint64_t step, uint32_t top_k) const {
  RouterState state;
  state.history.push_back(
      {.ordinal = 0,
       .hidden = hidden.view({facts.sequences, facts.tokens_per_sequence, sizes.d_model}).flip(2)});
  const auto mix = [](const at::Tensor& x, const at::Tensor&, const at::Tensor& weights) {
    return x * weights.sum(1, /*keepdim=*/true).to(x.scalar_type());
  };
  return router->Route({.hidden = hidden,
                        .tokens = facts,
                        .layer = sizes.layer,
                        .is_training = is_training,
                        .random = RandomKey::For(4, "router_noise").With(sizes.layer).With(step),
                        .step = step,
                        .top_k = top_k,
                        .counts = is_training,
                        .state = &state,
                        .mix = mix});
}

Routing RouterUnderTest::Route(const at::Tensor& hidden, bool is_training, uint64_t step) const {
  const TokenFacts facts = FactsOf(at::zeros({1, hidden.size(0)}, at::kLong));
  return Route(hidden, facts, is_training, step);
}

}  // namespace switchyard::model
