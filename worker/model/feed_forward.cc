#include "worker/model/feed_forward.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/capacity.h"

namespace switchyard::model {
namespace {

class PlainFeedForward final : public FeedForward {
 public:
  PlainFeedForward(const FeedForwardOptions& options, const FeedForwardNames& names,
                   ParameterStore& store)
      : options_(options) {
    const Init init{.std = options.init_std};
    const int64_t d = options.d_model, f = options.width;
    w_in_ = store.Add(names.w_in, {f, d}, init);
    if (options.kind == FeedForwardKind::kRelu) b_in_ = store.Add(names.b_in, {f}, {});
    if (options.kind == FeedForwardKind::kSwiglu) w_up_ = store.Add(names.w_up, {f, d}, init);
    w_out_ = store.Add(names.w_out, {d, f}, init);
    if (options.kind == FeedForwardKind::kRelu) b_out_ = store.Add(names.b_out, {d}, {});
  }

  at::Tensor Forward(const at::Tensor& x, Pass& pass) override {
    at::Tensor h = Linear(x, w_in_, b_in_, options_.products);
    switch (options_.kind) {
      case FeedForwardKind::kRelu:
        h = at::relu(h);
        break;
      case FeedForwardKind::kSwiglu:
        h = at::silu(h) * Linear(x, w_up_, at::Tensor(), options_.products);
        break;
      case FeedForwardKind::kGelu:
        h = at::gelu(h);
        break;
      case FeedForwardKind::kSilu:
      case FeedForwardKind::kStatic:
        TORCH_CHECK(false, "only experts are of this kind");
    }
    if (options_.kind == FeedForwardKind::kRelu) {
      const TokenFacts& tokens = pass.tokens;
      h = Dropout(h.view({tokens.sequences, tokens.tokens_per_sequence, -1}),
                  pass.DropoutFor(options_.dropout_purpose, options_.layer, options_.dropout))
              .view(h.sizes());
    }
    return Linear(h, w_out_, b_out_, options_.products).to(x.scalar_type());
  }
  bool drops_output() const override { return true; }

 private:
  const FeedForwardOptions options_;
  at::Tensor w_in_, b_in_, w_up_, w_out_, b_out_;
};

class MoeFeedForward final : public FeedForward {
 public:
  MoeFeedForward(const FeedForwardOptions& options, const MoeOptions& moe,
                 std::unique_ptr<Router> router, const FeedForwardNames& names,
                 ParameterStore& store)
      : options_(options), moe_(moe), router_(std::move(router)) {
    if (moe.capacity != nullptr) capacity_ = *moe.capacity;
    if (moe.shared_experts > 0) {
      FeedForwardOptions shared = options;
      shared.width = options.width * moe.shared_experts;
      shared.dropout_purpose = "shared_hidden";
      shared_ = MakePlainFeedForward(shared, moe.shared_names, store);
    }
    const Init init{.std = options.init_std};
    const int64_t e = moe.experts, d = options.d_model, f = options.width;
    const int64_t in = options.kind == FeedForwardKind::kSwiglu ? 2 * f : f;
    experts_.kind = options.kind;
    if (options.kind == FeedForwardKind::kStatic) {
      vectors_ = store.Add(names.w_out, {e, d}, init);
      return;
    }
    experts_.w_in = store.Add(names.w_in, {e, in, d}, init);
    if (has_biases()) experts_.b_in = store.Add(names.b_in, {e, f}, {});
    experts_.w_out = store.Add(names.w_out, {e, d, f}, init);
    if (has_biases()) experts_.b_out = store.Add(names.b_out, {e, d}, {});
  }

  at::Tensor Forward(const at::Tensor& x, Pass& pass) override {
    InnerDropout dropout{.tokens_per_sequence = pass.tokens.tokens_per_sequence};
    if (has_biases()) {
      dropout.stream = pass.DropoutFor("ffn_hidden", options_.layer, options_.dropout);
    }
    const auto mix = [&](const at::Tensor& rows, const at::Tensor& expert_ids,
                         const at::Tensor& weights) {
      const Assignment assignment{expert_ids, weights};
      if (vectors_.defined()) return MixVectors(vectors_, assignment).to(rows.scalar_type());
      return moe_.is_reference
                 ? MixExpertsReference(rows, assignment, experts_, dropout, options_.products)
                 : MixExperts(rows, assignment, experts_, dropout, options_.products);
    };
    const ForwardContext& context = pass.context;
    Routing routing = router_->Route(
        {.hidden = x,
         .tokens = pass.tokens,
         .layer = options_.layer,
         .is_training = context.is_training,
         .random = context.dropout.With("router_noise").With(options_.layer).With(context.step),
         .step = context.step,
         .first_sequence = context.first_sequence,
         .top_k = context.is_training ? 0 : context.top_k,
         .counts = context.is_training && !context.is_recomputed,
         .state = &pass.router_state,
         .mix = mix});
    if (router_->has_scores()) {
      pass.scores.push_back({.logits = routing.logits,
                             .expert_ids = routing.expert_ids,
                             .weights = routing.weights,
                             .probs = routing.probs,
                             .soft_load = routing.soft_load,
                             .anchors = routing.anchors});
    }
    // Losses judge what the router wanted; an expert over its capacity must feel all of it.
    const int64_t dropped = LimitLoad(context, pass.tokens, &routing);
    if (context.wants_routing) {
      pass.routing.push_back(
          {.layer = options_.layer,
           .expert_ids = routing.expert_ids,
           .weights = routing.weights.detach(),
           .logits = routing.logits.defined() ? routing.logits.detach() : at::Tensor(),
           .valid = pass.tokens.valid,
           .experts = static_cast<uint32_t>(moe_.experts),
           .has_open_slots = routing.has_open_slots,
           .dropped = dropped,
           .extras = routing.extras});
    }
    const at::Tensor routed =
        routing.output.defined() ? routing.output : mix(x, routing.expert_ids, routing.weights);
    return shared_ ? routed + shared_->Forward(x, pass) : routed;
  }
  void EndUpdate(bool is_applied) override { router_->EndUpdate(is_applied); }
  bool drops_output() const override { return moe_.drops_output; }

 private:
  // Experts of matrices with biases also drop hidden units.
  bool has_biases() const { return options_.kind == FeedForwardKind::kRelu && !moe_.is_bare; }

  // Number of assignments given up.
  int64_t LimitLoad(const ForwardContext& context, const TokenFacts& tokens,
                    Routing* routing) const {
    const v1::CapacityFactor& factor = capacity_.factor();
    if (!(context.is_training ? factor.has_train() : factor.has_eval())) return 0;
    const CapacityOutcome outcome =
        ApplyCapacity(capacity_, context.is_training, moe_.experts, tokens, routing);
    const double overflow = static_cast<double>(outcome.load_max - outcome.capacity) /
                            static_cast<double>(std::max<int64_t>(1, outcome.capacity));
    routing->extras.emplace_back("capacity_overflow_max", at::scalar_tensor(overflow));
    return outcome.dropped;
  }

  const FeedForwardOptions options_;
  const MoeOptions moe_;
  v1::CapacitySpec capacity_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<FeedForward> shared_;
  Experts experts_;
  at::Tensor vectors_;  // [E, D] of static experts
};

}  // namespace

DropoutStream Pass::DropoutFor(const char* purpose, uint32_t layer, double rate) const {
  if (!context.is_training || rate <= 0) return {};
  return {.rate = rate,
          .key = context.dropout.With(purpose).With(layer).With(context.step),
          .first_sequence = context.first_sequence};
}

Pass BeginPass(const at::Tensor& tokens, const ForwardContext& context, int64_t vocab_size) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, "tokens are ", tokens.sizes(),
              " ", tokens.scalar_type(), ", expected [B, T] int64");
  const at::Tensor flat = tokens.contiguous().view({-1});
  int64_t lowest = 0, highest = 0;
  const at::Tensor on_host = flat.cpu();
  const auto* id = on_host.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    lowest = std::min(lowest, id[i]);
    highest = std::max(highest, id[i]);
  }
  TORCH_CHECK(lowest >= -1 && highest < vocab_size, "token ", lowest < -1 ? lowest : highest,
              " is outside the vocabulary of ", vocab_size);
  const int64_t B = tokens.size(0), T = tokens.size(1);
  Pass pass{.context = context};
  pass.tokens = {
      .sequences = B,
      .tokens_per_sequence = T,
      .token_ids = lowest < 0 ? flat.clamp_min(0) : flat,
      .positions = at::arange(T, flat.options()).repeat({B}),
      .sequence_ids = (at::arange(B, flat.options()) + static_cast<int64_t>(context.first_sequence))
                          .repeat_interleave(T),
      .valid = flat.ge(0),
      .all_valid = lowest >= 0};
  return pass;
}

std::unique_ptr<FeedForward> MakePlainFeedForward(const FeedForwardOptions& options,
                                                  const FeedForwardNames& names,
                                                  ParameterStore& store) {
  return std::make_unique<PlainFeedForward>(options, names, store);
}

std::unique_ptr<FeedForward> MakeMoeFeedForward(const FeedForwardOptions& options,
                                                const MoeOptions& moe,
                                                std::unique_ptr<Router> router,
                                                const FeedForwardNames& names,
                                                ParameterStore& store) {
  return std::make_unique<MoeFeedForward>(options, moe, std::move(router), names, store);
}

}  // namespace switchyard::model
