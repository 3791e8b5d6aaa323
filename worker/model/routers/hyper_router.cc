#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

class HyperRouterKind final : public ScoreRouter {
 public:
  HyperRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : ScoreRouter(moe, sizes), options_(moe.router().hyper_router()) {
    const int64_t width = options_.hyper_size(), d = sizes.d_model;
    const int64_t out = sizes.experts * (d + 1);
    embedding_ = context.store.Add(context.gate_prefix + "embedding", {1, d}, {.std = 1});
    const std::string prefix =
        (options_.shared_hypernet() ? std::string() : context.gate_prefix) + "hypernet.";
    const auto frozen = [&](const char* name, const std::vector<int64_t>& shape, double std) {
      return context.store.AddShared(prefix + name, shape, {.std = std, .is_frozen = true});
    };
    weights_[0] = frozen("0.weight", {width, d}, context.init_std);
    biases_[0] = frozen("0.bias", {width}, 0);
    weights_[1] = frozen("2.weight", {out, width}, context.init_std);
    biases_[1] = frozen("2.bias", {out}, 0);
  }

 private:
  at::ScalarType type() const override { return embedding_.scalar_type(); }

  int64_t ExpertsPerToken(const RouterInput& input) const override {
    return input.is_training ? ExpertsAt(options_.schedule(), sizes().top_k, input.step)
                             : ScoreRouter::ExpertsPerToken(input);
  }

  at::Tensor Scores(const at::Tensor& hidden, const RouterInput&) override {
    const at::Tensor inner = at::relu(at::linear(embedding_, weights_[0], biases_[0]));
    const at::Tensor made =
        at::linear(inner, weights_[1], biases_[1]).view({sizes().experts, sizes().d_model + 1});
    return at::linear(hidden, made.narrow(1, 0, sizes().d_model), made.select(1, sizes().d_model));
  }

  const pb::HyperRouter options_;
  at::Tensor embedding_;   // [1, D]
  at::Tensor weights_[2];  // [H, D], [E (D + 1), H]
  at::Tensor biases_[2];
};

}  // namespace

std::unique_ptr<Router> MakeHyperRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                        const RouterContext& context) {
  return std::make_unique<HyperRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
