#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// Vectors shorter than this have cosine 0 with everything.
constexpr double kSmallestLength = 1e-8;
constexpr double kLargestTau = 100.0;
constexpr double kDisplacementStd = 0.02;

at::Tensor Unit(const at::Tensor& x) {
  return x / at::linalg_vector_norm(x, 2, at::IntArrayRef{1}, /*keepdim=*/true)
                 .clamp_min(kSmallestLength);
}

class CosineRouter final : public Router {
 public:
  CosineRouter(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : CosineRouter(moe.router().cosine(), GateWeightsFrom(moe.router().gate_norm()), sizes,
                     context) {}

  CosineRouter(const pb::CosineRouter& spec, GateWeights norm, const RouterSizes& sizes,
               const RouterContext& context)
      : sizes_(sizes),
        norm_(norm),
        tau_(spec.tau()),
        halt_eps_(spec.halt_eps()),
        halts_by_residual_(spec.halt_norm() == pb::HALT_NORM_RESIDUAL),
        updates_hidden_(spec.later_hidden() == pb::HOP_HIDDEN_UPDATED) {
    const int64_t hops = spec.hops();
    TORCH_CHECK(hops > 0, "model.moe.router.cosine.hops: 0, must be at least 1");
    TORCH_CHECK(spec.hop_top_k_size() == 0 || spec.hop_top_k_size() == hops,
                "model.moe.router.cosine.hop_top_k: ", spec.hop_top_k_size(), " numbers for ", hops,
                " hops");
    for (int64_t hop = 0; hop < hops; ++hop) {
      const int64_t k =
          spec.hop_top_k_size() > 0 ? spec.hop_top_k(static_cast<int>(hop)) : sizes.top_k;
      TORCH_CHECK(k > 0 && k <= sizes.experts, "model.moe.router.cosine.hop_top_k: ", k, " of ",
                  sizes.experts, " experts");
      hop_top_k_.push_back(k);
    }
    TORCH_CHECK(tau_ > 0, "model.moe.router.cosine.tau: ", tau_, " is not above 0");
    const int64_t size = spec.d_score();
    TORCH_CHECK(size > 0, "model.moe.router.cosine.d_score: 0, must be at least 1");
    const bool is_random = spec.init() == pb::CENTROID_INIT_UNIT_NORM_RANDOM;
    const auto matrix = [&](const std::string& name, int64_t rows, int64_t columns) {
      const at::Tensor tensor =
          context.store.Add(context.gate_prefix + name, {rows, columns},
                            is_random ? Init{.std = 1.0} : Init{.orthogonal = 1.0});
      if (is_random) tensor.detach().copy_(Unit(tensor.detach()));
      return tensor;
    };
    for (int64_t hop = 0; hop < hops; ++hop) {
      const std::string own = hop == 0 ? "" : std::to_string(hop) + ".";
      if (hop == 0 || spec.hop_projection() == pb::HOP_PROJECTION_OWN_PROJECTION) {
        projection_.push_back(matrix("w_c." + own + "weight", size, sizes.d_model));
        projection_bias_.push_back(
            spec.proj_bias()
                ? context.store.Add(context.gate_prefix + "w_c." + own + "bias", {size}, {})
                : at::Tensor());
      }
      if (hop == 0 || spec.hop_projection() == pb::HOP_PROJECTION_OWN_CENTROIDS) {
        centroids_.push_back(matrix("centroids." + own + "weight", sizes.experts, size));
      }
    }
    displacement_ = context.store.Add(context.gate_prefix + "displacement.weight",
                                      {sizes.experts, size}, {.std = kDisplacementStd});
    if (spec.tau_learned()) {
      log_tau_ = context.store.Add(context.gate_prefix + "log_tau", {1}, {.mean = std::log(tau_)});
    }
    if (spec.magnitude()) {
      magnitude_ = context.store.Add(context.gate_prefix + "magnitude", {1}, {.mean = 1.0});
    }
  }

  Routing Route(const RouterInput& input) override {
    TORCH_CHECK(input.hidden.dim() == 2 && input.hidden.size(1) == sizes_.d_model, "hidden is ",
                input.hidden.sizes(), ", expected [N, ", sizes_.d_model, "]");
    TORCH_CHECK(input.mix, "cosine needs the layer's experts");
    const auto type = displacement_.scalar_type();
    const at::Tensor& h = input.hidden;
    const size_t hops = hop_top_k_.size();
    at::Tensor going = input.tokens.valid;  // [N]: tokens that have not stopped
    at::Tensor hidden = h, moved, output, first_logits, probs;
    at::Tensor base;  // W_c h of the hop
    std::vector<at::Tensor> ids, weights;
    at::Tensor hop_count = at::zeros({h.size(0)}, h.options());
    for (size_t hop = 0; hop < hops; ++hop) {
      if (hop < projection_.size()) {
        base = at::linear(hidden.to(type), projection_[hop], projection_bias_[hop]);
      }
      const at::Tensor z = moved.defined() ? base + moved : base;  // [N, d_score]
      const at::Tensor& centroids = centroids_[std::min(hop, centroids_.size() - 1)];
      const at::Tensor logits = at::mm(Unit(z), Unit(centroids).t()) * Tau();
      const int64_t k =
          input.top_k > 0 ? std::min<int64_t>(input.top_k, sizes_.experts) : hop_top_k_[hop];
      const at::Tensor picked = SelectTopK(logits, k);
      const at::Tensor stopped = going.logical_not().unsqueeze(1);
      const at::Tensor share = GateWeightsOf(logits, picked, norm_).masked_fill(stopped, 0.0);
      ids.push_back(picked.masked_fill(stopped, -1));
      weights.push_back(share);
      const at::Tensor p = at::softmax(logits, 1);
      probs = probs.defined() ? probs + p : p;
      if (hop == 0) first_logits = logits;
      const at::Tensor step = input.mix(hidden, ids.back(), share.to(h.scalar_type()));
      output = output.defined() ? output + step : step;
      hop_count = hop_count + going.to(hop_count.scalar_type());
      if (hop + 1 == hops) break;
      const at::Tensor shift =
          (share.unsqueeze(2) * displacement_.index_select(0, picked.flatten())
                                    .view({picked.size(0), k, displacement_.size(1)}))
              .sum(1);
      moved = moved.defined() ? moved + shift : shift;
      if (!input.is_training && halt_eps_ > 0) {
        const at::Tensor whole = halts_by_residual_ ? h : output;
        going = going.logical_and(Length(step).ge(Length(whole) * halt_eps_));
      }
      if (updates_hidden_) hidden = h + output;
    }
    if (magnitude_.defined()) output = output * magnitude_.to(output.scalar_type());

    Routing routing;
    routing.expert_ids = at::cat(ids, 1);
    routing.weights = at::cat(weights, 1);
    routing.logits = first_logits;
    if (hops > 1) routing.probs = probs / static_cast<double>(hops);
    routing.anchors = centroids_[0];
    routing.output = output;
    routing.has_open_slots = halt_eps_ > 0;
    if (halt_eps_ > 0) {
      const at::Tensor count = input.tokens.valid.sum().clamp_min(1);
      routing.extras.emplace_back("hops", hop_count.sum().detach() / count);
    }
    return routing;
  }
  bool has_scores() const override { return true; }

 private:
  static at::Tensor Length(const at::Tensor& x) {
    return at::linalg_vector_norm(x.detach(), 2, at::IntArrayRef{1});
  }
  at::Tensor Tau() const {
    return log_tau_.defined() ? log_tau_.clamp_max(std::log(kLargestTau)).exp()
                              : at::full({1}, tau_, displacement_.options().requires_grad(false));
  }

  const RouterSizes sizes_;
  const GateWeights norm_;
  const double tau_, halt_eps_;
  const bool halts_by_residual_, updates_hidden_;
  std::vector<int64_t> hop_top_k_;
  std::vector<at::Tensor> projection_, projection_bias_;  // [d_score, D], [d_score]; one or per hop
  std::vector<at::Tensor> centroids_;                     // [E, d_score]; one or per hop
  at::Tensor displacement_;                               // [E, d_score]
  at::Tensor log_tau_, magnitude_;                        // [1]
};

}  // namespace

std::unique_ptr<Router> MakeCosineRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                         const RouterContext& context) {
  return std::make_unique<CosineRouter>(moe, sizes, context);
}

}  // namespace switchyard::model
