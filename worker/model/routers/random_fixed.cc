#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"
#include "worker/model/routers/table.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class FrozenRouter final : public LinearRouter {
 public:
  FrozenRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context,
               bool is_cosine)
      : LinearRouter(moe, sizes, context, /*has_bias=*/!is_cosine,
                     {.std = context.init_std, .is_frozen = true}),
        is_cosine_(is_cosine) {}

 private:
  at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) override {
    if (!is_cosine_) return LinearRouter::Scores(hidden, input);
    const auto unit = [](const at::Tensor& rows) {
      return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-8);
    };
    return at::linear(unit(hidden), unit(weight_));
  }

  const bool is_cosine_;
};

// Fresh uniform scores at every pass, in evaluation too.
class PerCallRouter final : public Router {
 public:
  PerCallRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, uint64_t seed)
      : sizes_(sizes),
        norm_(GateWeightsFrom(moe.router().gate_norm())),
        scale_(RoutedScale(moe)),
        key_(RandomKey::For(seed, "random_route").With(sizes.layer)) {}

  Routing Route(const RouterInput& input) override {
    const auto type = input.hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor scores =
        TokenUniform(key_.With(input.step), input.tokens, sizes_.experts, type);
    Routing routing;
    routing.expert_ids = SelectTopK(scores, sizes_.top_k);
    routing.weights = GateWeightsOf(scores, routing.expert_ids, norm_) * scale_;
    ClearPadding(input.tokens, &routing);
    return routing;
  }
  bool has_scores() const override { return false; }

 private:
  const RouterSizes sizes_;
  const GateWeights norm_;
  const double scale_;
  const RandomKey key_;
};

class PositionRouter final : public Router {
 public:
  PositionRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, uint64_t seed)
      : sizes_(sizes),
        weight_(RoutedScale(moe) / static_cast<double>(sizes.top_k)),
        key_(RandomKey::For(seed, "position_table")) {}

  Routing Route(const RouterInput& input) override {
    const int64_t length = input.tokens.tokens_per_sequence;
    Routing routing;
    routing.expert_ids = RandomTable(sizes_.experts, sizes_.top_k, length, key_)
                             .to(input.tokens.positions.device())
                             .index_select(0, input.tokens.positions);
    routing.weights =
        at::full({input.hidden.size(0), sizes_.top_k}, weight_, input.hidden.options());
    ClearPadding(input.tokens, &routing);
    return routing;
  }
  bool has_scores() const override { return false; }

 private:
  const RouterSizes sizes_;
  const double weight_;
  const RandomKey key_;
};

}  // namespace

std::unique_ptr<Router> MakeRandomFixedRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                              const RouterContext& context) {
  const pb::RandomFixedRouter& options = moe.router().random_fixed();
  switch (options.mode()) {
    case pb::RANDOM_FIXED_MODE_TOKEN_TABLE:
      return MakeTokenTableRouter(
          RandomTable(sizes.experts, sizes.top_k, context.vocab_size,
                      TableKey(sizes, /*is_per_layer=*/false, context.seed, 0)),
          RoutedScale(moe) / static_cast<double>(sizes.top_k), context);
    case pb::RANDOM_FIXED_MODE_PER_CALL:
      return std::make_unique<PerCallRouter>(moe, sizes, context.seed);
    case pb::RANDOM_FIXED_MODE_POSITION_TABLE:
      return std::make_unique<PositionRouter>(moe, sizes, context.seed);
    default:
      return std::make_unique<FrozenRouter>(moe, sizes, context,
                                            options.score() == pb::RANDOM_FIXED_SCORE_COSINE);
  }
}

}  // namespace switchyard::model
