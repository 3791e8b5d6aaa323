#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/ops.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// A gated recurrent unit (torch.nn.GRUCell's equations and order of gates: r, z, n).
struct Cell {
  at::Tensor weight_ih, weight_hh;  // [3 h, h]
  at::Tensor bias_ih, bias_hh;      // [3 h]

  // u, state [N, h] -> [N, h], in the cell's type.
  at::Tensor Next(const at::Tensor& u, const at::Tensor& state, Products products) const {
    const auto type = weight_ih.scalar_type();
    const auto in = Linear(u, weight_ih, bias_ih, products).to(type).chunk(3, 1);
    const auto old = Linear(state, weight_hh, bias_hh, products).to(type).chunk(3, 1);
    const at::Tensor r = (in[0] + old[0]).sigmoid();
    const at::Tensor z = (in[1] + old[1]).sigmoid();
    const at::Tensor n = (in[2] + r * old[2]).tanh();
    return (1.0 - z) * n + z * state;
  }
};

Cell MakeCell(const std::string& prefix, int64_t size, ParameterStore& store) {
  const Init init{.uniform = 1.0 / std::sqrt(static_cast<double>(size))};
  const auto tensor = [&](const char* name, const std::vector<int64_t>& shape) {
    return store.AddShared(prefix + name, shape, init);
  };
  return {.weight_ih = tensor("weight_ih", {3 * size, size}),
          .weight_hh = tensor("weight_hh", {3 * size, size}),
          .bias_ih = tensor("bias_ih", {3 * size}),
          .bias_hh = tensor("bias_hh", {3 * size})};
}

class RmoeRouter final : public ScoreRouter {
 public:
  RmoeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : ScoreRouter(moe, sizes),
        products_(ContextProducts(moe, context)),
        state_size_(moe.router().rmoe().state_size()),
        adds_projection_(moe.router().rmoe().residual_gate()) {
    TORCH_CHECK(state_size_ > 0, "model.moe.router.rmoe.state_size: 0, must be at least 1");
    const Init init{.std = context.init_std};
    projection_ =
        context.store.Add(context.gate_prefix + "w1.weight", {state_size_, sizes.d_model}, init);
    weight_ = context.store.Add(context.prefix + "weight", {sizes.experts, state_size_}, init);
    cell_ =
        MakeCell(moe.router().rmoe().gru_shared() ? "router_gru." : context.gate_prefix + "gru.",
                 state_size_, context.store);
  }

 private:
  at::Tensor Scores(const at::Tensor& hidden, const RouterInput& input) override {
    TORCH_CHECK(input.state != nullptr, "rmoe needs the state that runs through the layers");
    const at::Tensor u = Linear(hidden, projection_, at::Tensor(), products_).to(type());
    at::Tensor& state = input.state->recurrent;
    if (!state.defined()) state = at::zeros({hidden.size(0), state_size_}, hidden.options());
    state = cell_.Next(u, state, products_);
    return at::linear(adds_projection_ ? state + u : state, weight_);
  }
  at::ScalarType type() const override { return weight_.scalar_type(); }

  const Products products_;
  const int64_t state_size_;
  const bool adds_projection_;
  at::Tensor projection_;  // [h, D]
  at::Tensor weight_;      // [E, h]
  Cell cell_;
};

}  // namespace

std::unique_ptr<Router> MakeRmoeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context) {
  return std::make_unique<RmoeRouter>(moe, sizes, context);
}

}  // namespace switchyard::model
