#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "worker/model/routers/router.h"

namespace switchyard::v1 {
class GroupLimit;
class KSchedule;
}  // namespace switchyard::v1

namespace switchyard::model {

// Experts per token after `step` updates (models.md 3.5); `top_k` where the schedule is constant.
int64_t ExpertsAt(const v1::KSchedule& schedule, int64_t top_k, uint64_t step);

// One random number in [0, 1) for each of `width` columns of every token, a function of (key,
// sequence, position, column) alone, so that no split of the batch changes it. [N, width] in
// `type`, on the tokens' device.
at::Tensor TokenUniform(RandomKey key, const TokenFacts& tokens, int64_t width,
                        at::ScalarType type);
// The same from the standard normal distribution.
at::Tensor TokenNormal(RandomKey key, const TokenFacts& tokens, int64_t width, at::ScalarType type);

// What the weights of the chosen experts are multiplied by (routed_scaling_factor).
double RoutedScale(const v1::MoeSpec& moe);

// The noise of a router's scores in training, whatever the kind; none in evaluation. The learned
// noise of noisy_topk is that kind's own.
class ScoreNoise {
 public:
  explicit ScoreNoise(const v1::MoeSpec& moe);

  // The router's copy of its input [N, D].
  at::Tensor OnHidden(const at::Tensor& hidden, const RouterInput& input) const;
  // Scores [N, E]; `key` is their own where a layer scores more than once.
  at::Tensor OnScores(const at::Tensor& scores, const RouterInput& input, RandomKey key) const;

 private:
  int kind_ = 0;
  double eps_ = 0, std_ = 0;
};

// Scores [N, E] with those of experts outside the best groups at minus infinity (0 under the fill
// of Hugging Face 4). Equal groups: the lower one stays.
at::Tensor LimitToGroups(const at::Tensor& scores, const v1::GroupLimit& limit);

// Type of the products that precede the scores (router_dtype).
Products ContextProducts(const v1::MoeSpec& moe, const RouterContext& context);

// ids -1 and weights 0 where a token is padding.
void ClearPadding(const TokenFacts& tokens, Routing* routing);

// A router that scores every expert for every token and takes the best: what its kinds share.
class ScoreRouter : public Router {
 public:
  Routing Route(const RouterInput& input) override;
  bool has_scores() const override { return true; }

 protected:
  ScoreRouter(const v1::MoeSpec& moe, const RouterSizes& sizes);

  // [N, E], part of the graph; `hidden` [N, D] in the parameters' type, jittered where noise says.
  virtual at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) = 0;
  // Type of the parameters, which scores are computed in.
  virtual at::ScalarType type() const = 0;
  virtual int64_t ExpertsPerToken(const RouterInput& input) const;
  // [N, K] without regard to padding.
  virtual at::Tensor Choose(const at::Tensor& logits, const RouterInput& input, int64_t k);
  // Before padding is cleared.
  virtual void Finish(const RouterInput& input, Routing* routing);

  const RouterSizes& sizes() const { return sizes_; }

 private:
  const RouterSizes sizes_;
  const GateWeights norm_;
  const double scale_;
  const ScoreNoise noise_;
};

// x W^T + b.
class LinearRouter : public ScoreRouter {
 public:
  LinearRouter(const v1::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context,
               bool has_bias, Init init);
  // With initial values N(0, context.init_std^2).
  LinearRouter(const v1::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context,
               bool has_bias);

 protected:
  at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) override;
  at::ScalarType type() const override { return weight_.scalar_type(); }

  at::Tensor weight_;  // [E, D]
  at::Tensor bias_;    // [E] or undefined
};

}  // namespace switchyard::model
