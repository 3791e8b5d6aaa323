#include <cmath>

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/routers/kinds.h"
#include "worker/model/routers/score_router.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

constexpr double kNormEps = 1e-4;
constexpr double kEmbeddingNorm = 1.5;
constexpr double kEmbeddingGain = 0.32;

at::Tensor Unit(const at::Tensor& rows) {
  return rows / rows.norm(2, {1}, /*keepdim=*/true).clamp_min(kNormEps);
}

class XmoeRouterKind final : public ScoreRouter {
 public:
  XmoeRouterKind(const pb::MoeSpec& moe, const RouterSizes& sizes, const RouterContext& context)
      : ScoreRouter(moe, sizes), options_(moe.router().xmoe()) {
    const int64_t p = options_.proj_dim();
    projection_ = context.store.Add(context.gate_prefix + "projection", {p, sizes.d_model},
                                    {.std = context.init_std});
    embeddings_ = context.store.Add(context.gate_prefix + "expert_embeddings", {sizes.experts, p},
                                    {.orthogonal = kEmbeddingGain});
    if (options_.temperature() == pb::XMOE_TEMPERATURE_LEARNED_EXP_CLAMP) {
      temperature_ = context.store.Add(context.gate_prefix + "temperature", {1},
                                       {.mean = -std::log(options_.tau())});
    }
  }

  void EndUpdate(bool) override { needs_scaling_ = true; }

 private:
  at::ScalarType type() const override { return projection_.scalar_type(); }

  at::Tensor Scores(const at::Tensor& hidden, const RouterInput&) override {
    if (options_.emb_renorm() == pb::EMBEDDING_RENORM_INPLACE_1P5 && needs_scaling_) {
      ScaleEmbeddings();
      needs_scaling_ = false;
    }
    at::Tensor z = at::linear(hidden, projection_);
    if (options_.cos_normalize_input()) z = Unit(z);
    const at::Tensor cosines = at::linear(z, Unit(embeddings_));
    return temperature_.defined() ? cosines * temperature_.clamp_max(std::log(100.0)).exp()
                                  : cosines / options_.tau();
  }

  void Finish(const RouterInput&, Routing* routing) override { routing->anchors = embeddings_; }

  // Rows that are there already keep their bits: a resumed run scales again what it has saved.
  void ScaleEmbeddings() {
    const c10::NoGradGuard no_grad;
    const at::Tensor rows = embeddings_.variable_data();
    const double rounding = rows.scalar_type() == at::kDouble ? 1e-14 : 1e-6;
    const at::Tensor is_off =
        (rows.norm(2, {1}, /*keepdim=*/true) - kEmbeddingNorm).abs() > rounding * kEmbeddingNorm;
    rows.copy_(at::where(is_off, Unit(rows) * kEmbeddingNorm, rows));
  }

  const pb::XmoeRouter options_;
  at::Tensor projection_;      // [P, D]
  at::Tensor embeddings_;      // [E, P]
  at::Tensor temperature_;     // [1] or undefined
  bool needs_scaling_ = true;  // since the last update
};

}  // namespace

std::unique_ptr<Router> MakeXmoeRouter(const pb::MoeSpec& moe, const RouterSizes& sizes,
                                       const RouterContext& context) {
  return std::make_unique<XmoeRouterKind>(moe, sizes, context);
}

}  // namespace switchyard::model
