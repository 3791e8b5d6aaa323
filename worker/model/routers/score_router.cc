#include "worker/model/routers/score_router.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

template <typename Draw>
at::Tensor PerToken(RandomKey key, const TokenFacts& tokens, int64_t width, at::ScalarType type,
                    Draw draw) {
  TORCH_CHECK(tokens.sequence_ids.defined() && tokens.positions.defined(),
              "router noise needs sequences and positions");
  const at::Tensor sequences = tokens.sequence_ids.cpu().contiguous();
  const at::Tensor positions = tokens.positions.cpu().contiguous();
  const int64_t rows = sequences.numel();
  at::Tensor out = at::empty({rows, width}, at::kDouble);
  const auto* sequence = sequences.const_data_ptr<int64_t>();
  const auto* position = positions.const_data_ptr<int64_t>();
  auto* value = out.data_ptr<double>();
  for (int64_t n = 0; n < rows; ++n) {
    const RandomKey own =
        key.With(static_cast<uint64_t>(sequence[n])).With(static_cast<uint64_t>(position[n]));
    for (int64_t c = 0; c < width; ++c) {
      value[n * width + c] = draw(own, static_cast<uint64_t>(c));
    }
  }
  return out.to(tokens.sequence_ids.device(), type);
}

}  // namespace

int64_t ExpertsAt(const pb::KSchedule& schedule, int64_t top_k, uint64_t step) {
  const int64_t low = schedule.k_min(), high = schedule.k_max();
  const double range = static_cast<double>(high - low);
  const double part =
      schedule.steps() == 0
          ? 1.0
          : std::min(1.0, static_cast<double>(step) / static_cast<double>(schedule.steps()));
  double k = static_cast<double>(low);
  switch (schedule.mode()) {
    case pb::K_SCHEDULE_MODE_LINEAR_INCREASE:
      k += range * part;
      break;
    case pb::K_SCHEDULE_MODE_COSINE:
      k += range * (1 - std::cos(M_PI * part)) / 2;
      break;
    case pb::K_SCHEDULE_MODE_EXPONENTIAL:
      k *= std::pow(static_cast<double>(high) / k, part);
      break;
    case pb::K_SCHEDULE_MODE_MULTI_STEP:
      for (const uint64_t milestone : schedule.milestones()) {
        if (step >= milestone && k < static_cast<double>(high)) k *= 2;
      }
      break;
    default:
      return top_k;
  }
  // Half to even, as the default rounding mode has it.
  return std::clamp(static_cast<int64_t>(std::nearbyint(k)), low, high);
}

at::Tensor TokenUniform(RandomKey key, const TokenFacts& tokens, int64_t width,
                        at::ScalarType type) {
  return PerToken(key, tokens, width, type, RandomUniform);
}

at::Tensor TokenNormal(RandomKey key, const TokenFacts& tokens, int64_t width,
                       at::ScalarType type) {
  return PerToken(key, tokens, width, type, RandomNormal);
}

double RoutedScale(const pb::MoeSpec& moe) {
  return moe.has_routed_scaling_factor() ? moe.routed_scaling_factor() : 1.0;
}

ScoreNoise::ScoreNoise(const pb::MoeSpec& moe)
    : kind_(moe.router().noise().kind()),
      eps_(moe.router().noise().eps()),
      std_(moe.router().noise().std()) {}

at::Tensor ScoreNoise::OnHidden(const at::Tensor& hidden, const RouterInput& input) const {
  if (!input.is_training || kind_ != pb::NOISE_KIND_INPUT_JITTER) return hidden;
  return hidden *
         (1 - eps_ +
          2 * eps_ *
              TokenUniform(input.random, input.tokens, hidden.size(1), hidden.scalar_type()));
}

at::Tensor ScoreNoise::OnScores(const at::Tensor& scores, const RouterInput& input,
                                RandomKey key) const {
  if (!input.is_training) return scores;
  const int64_t experts = scores.size(1);
  switch (kind_) {
    case pb::NOISE_KIND_ADDITIVE_UNIFORM:
      return scores +
             (1 - eps_ + 2 * eps_ * TokenUniform(key, input.tokens, experts, scores.scalar_type()));
    case pb::NOISE_KIND_GAUSSIAN_FIXED:
      return scores + std_ * TokenNormal(key, input.tokens, experts, scores.scalar_type());
    default:
      return scores;
  }
}

at::Tensor LimitToGroups(const at::Tensor& scores, const pb::GroupLimit& limit) {
  const int64_t rows = scores.size(0), experts = scores.size(1), groups = limit.groups();
  const int64_t size = experts / groups;
  const at::Tensor grouped = scores.detach().view({rows, groups, size});
  const at::Tensor best = limit.score() == pb::GROUP_SCORE_MAX
                              ? grouped.amax(2)
                              : std::get<0>(grouped.topk(2, /*dim=*/2)).sum(2);
  const at::Tensor kept = SelectTopK(best, limit.topk_groups());
  const at::Tensor out = at::ones({rows, groups}, scores.options().dtype(at::kBool))
                             .scatter(1, kept, false)
                             .repeat_interleave(size, 1);
  return scores.detach().masked_fill(out, limit.hf_v4_fill() ? 0.0 : -INFINITY);
}

void ClearPadding(const TokenFacts& tokens, Routing* routing) {
  if (tokens.all_valid) return;
  const at::Tensor padding = tokens.valid.logical_not().unsqueeze(-1);
  routing->expert_ids = routing->expert_ids.masked_fill(padding, -1);
  routing->weights = routing->weights.masked_fill(padding, 0.0);
}

Products ContextProducts(const pb::MoeSpec& moe, const RouterContext& context) {
  return moe.router().router_dtype() == pb::ROUTER_DTYPE_ACTIVATION ? context.products
                                                                    : Products::kParameter;
}

ScoreRouter::ScoreRouter(const pb::MoeSpec& moe, const RouterSizes& sizes)
    : sizes_(sizes),
      norm_(GateWeightsFrom(moe.router().gate_norm())),
      scale_(RoutedScale(moe)),
      noise_(moe) {}

int64_t ScoreRouter::ExpertsPerToken(const RouterInput& input) const {
  return input.top_k > 0 ? std::min<int64_t>(input.top_k, sizes_.experts) : sizes_.top_k;
}

at::Tensor ScoreRouter::Choose(const at::Tensor& logits, const RouterInput&, int64_t k) {
  return SelectTopK(logits, k);
}

void ScoreRouter::Finish(const RouterInput&, Routing*) {}

Routing ScoreRouter::Route(const RouterInput& input) {
  TORCH_CHECK(input.hidden.dim() == 2 && input.hidden.size(1) == sizes_.d_model, "hidden is ",
              input.hidden.sizes(), ", expected [N, ", sizes_.d_model, "]");
  // In the parameters' type: half precision overflows, and rounds different scores to one value.
  const at::Tensor hidden = noise_.OnHidden(input.hidden.to(type()), input);
  Routing routing;
  routing.logits = noise_.OnScores(Scores(hidden, input), input, input.random);
  routing.expert_ids = Choose(routing.logits, input, ExpertsPerToken(input));
  routing.weights = GateWeightsOf(routing.logits, routing.expert_ids, norm_);
  if (scale_ != 1.0) routing.weights = routing.weights * scale_;
  if (IsSigmoid(norm_)) {
    const at::Tensor scores = at::sigmoid(routing.logits);
    routing.probs = scores / (scores.sum(1, /*keepdim=*/true) + 1e-20);
  }
  Finish(input, &routing);
  ClearPadding(input.tokens, &routing);
  return routing;
}

LinearRouter::LinearRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                           const RouterContext& context, bool has_bias, Init init)
    : ScoreRouter(moe, sizes),
      weight_(context.store.Add(context.prefix + "weight", {sizes.experts, sizes.d_model}, init)) {
  if (!has_bias) return;
  bias_ =
      context.store.Add(context.prefix + "bias", {sizes.experts}, {.is_frozen = init.is_frozen});
}

LinearRouter::LinearRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                           const RouterContext& context, bool has_bias)
    : LinearRouter(moe, sizes, context, has_bias, {.std = context.init_std}) {}

at::Tensor LinearRouter::Scores(const at::Tensor& hidden, const RouterInput&) {
  return at::linear(hidden, weight_, bias_);
}

}  // namespace switchyard::model
