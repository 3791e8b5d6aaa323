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
  at::Tensor AddNoise(const at::Tensor& logits, const RouterInput& input) const;

  const RouterSizes sizes_;
  const GateWeights norm_;
  const double scale_;
  int noise_kind_ = 0;
  double noise_eps_ = 0, noise_std_ = 0;
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
