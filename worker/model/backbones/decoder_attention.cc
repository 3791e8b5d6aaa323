#include "worker/model/backbones/decoder_attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// DeepSeek's latent norms have it whatever the model's other norms use.
constexpr double kLatentEps = 1e-6;

struct Projection {
  at::Tensor weight, bias;
};

// In the weights' type, also where `x` came out of products in a narrower one.
at::Tensor Normed(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm(x.to(weight.scalar_type()), weight, eps).to(x.scalar_type());
}

// Heads of queries in groups that share a key and a value.
class GroupedAttention final : public DecoderAttention {
 public:
  GroupedAttention(const pb::DecoderSpec& spec, const std::string& prefix, Products products,
                   ParameterStore& store)
      : products_(products),
        heads_(spec.heads()),
        kv_heads_(spec.kv_heads() > 0 ? spec.kv_heads() : spec.heads()),
        head_dim_(spec.head_dim() > 0 ? spec.head_dim()
                                      : spec.d_model() / std::max(1U, spec.heads())),
        clip_(spec.qkv_clip()),
        eps_(spec.has_norm_eps() ? spec.norm_eps() : 1e-5),
        is_per_head_(spec.qk_norm() == pb::QK_NORM_PER_HEAD) {
    TORCH_CHECK(heads_ > 0 && heads_ % kv_heads_ == 0 && head_dim_ > 0, "model.decoder: heads ",
                heads_, ", kv_heads ", kv_heads_, ", head_dim ", head_dim_);
    const Init init{.std = spec.has_init_std() ? spec.init_std() : 0.02};
    const int64_t d = spec.d_model(), inner = heads_ * head_dim_, inner_kv = kv_heads_ * head_dim_;
    const auto project = [&](const char* name, int64_t out, int64_t in) {
      const std::string full = prefix + name + "_proj.";
      return Projection{store.Add(full + "weight", {out, in}, init),
                        spec.attn_bias() ? store.Add(full + "bias", {out}, {}) : at::Tensor()};
    };
    q_ = project("q", inner, d);
    k_ = project("k", inner_kv, d);
    v_ = project("v", inner_kv, d);
    o_ = project("o", d, inner);
    if (is_per_head_ || spec.qk_norm() == pb::QK_NORM_FULL_WIDTH) {
      q_norm_ =
          store.Add(prefix + "q_norm.weight", {is_per_head_ ? head_dim_ : inner}, {.mean = 1});
      k_norm_ =
          store.Add(prefix + "k_norm.weight", {is_per_head_ ? head_dim_ : inner_kv}, {.mean = 1});
    }
  }

  at::Tensor Forward(const at::Tensor& x, const Rotary* rotary) const override {
    const int64_t B = x.size(0), T = x.size(1);
    // One product for all three: wide ones are faster.
    const at::Tensor all =
        Linear(x, at::cat({q_.weight, k_.weight, v_.weight}),
               q_.bias.defined() ? at::cat({q_.bias, k_.bias, v_.bias}) : at::Tensor(), products_);
    const int64_t inner = heads_ * head_dim_, inner_kv = kv_heads_ * head_dim_;
    at::Tensor q = Split(all.narrow(2, 0, inner), q_norm_, heads_),
               k = Split(all.narrow(2, inner, inner_kv), k_norm_, kv_heads_),
               v = Split(all.narrow(2, inner + inner_kv, inner_kv), at::Tensor(), kv_heads_);
    if (rotary != nullptr) {
      q = (*rotary)(q);
      k = (*rotary)(k);
    }
    if (kv_heads_ != heads_) {
      k = k.repeat_interleave(heads_ / kv_heads_, 1);
      v = v.repeat_interleave(heads_ / kv_heads_, 1);
    }
    const at::Tensor mixed =
        CausalAttention(q, k, v, 1.0 / std::sqrt(static_cast<double>(head_dim_)));
    return Linear(mixed.transpose(1, 2).reshape({B, T, heads_ * head_dim_}), o_.weight, o_.bias,
                  products_)
        .to(x.scalar_type());
  }

 private:
  // [B, T, heads * head_dim] as [B, heads, T, head_dim].
  at::Tensor Split(at::Tensor y, const at::Tensor& norm, int64_t heads) const {
    if (norm.defined() && !is_per_head_) y = Normed(y, norm, eps_);
    y = y.unflatten(2, {heads, head_dim_});
    if (norm.defined() && is_per_head_) y = Normed(y, norm, eps_);
    if (clip_ > 0) y = y.clamp(-clip_, clip_);
    return y.transpose(1, 2);
  }

  const Products products_;
  const int64_t heads_, kv_heads_, head_dim_;
  const double clip_, eps_;
  const bool is_per_head_;
  Projection q_, k_, v_, o_;
  at::Tensor q_norm_, k_norm_;
};

// Keys and values from one latent vector per token (DeepSeek-V2, arXiv 2405.04434, section 2.1).
class LatentAttention final : public DecoderAttention {
 public:
  LatentAttention(const pb::DecoderSpec& spec, const std::string& prefix, Products products,
                  ParameterStore& store)
      : products_(products),
        heads_(spec.heads()),
        nope_(spec.mla().nope_dim()),
        rope_(spec.mla().rope_dim()),
        value_(spec.mla().value_dim()),
        kv_rank_(spec.mla().kv_rank()) {
    TORCH_CHECK(heads_ > 0 && nope_ > 0 && rope_ > 0 && value_ > 0 && kv_rank_ > 0,
                "model.decoder.mla: heads ", heads_, ", nope_dim ", nope_, ", rope_dim ", rope_,
                ", value_dim ", value_, ", kv_rank ", kv_rank_);
    const Init init{.std = spec.has_init_std() ? spec.init_std() : 0.02};
    const int64_t d = spec.d_model(), q = heads_ * (nope_ + rope_);
    const auto add = [&](const char* name, int64_t out, int64_t in) {
      return store.Add(prefix + name + ".weight", {out, in}, init);
    };
    if (const int64_t rank = spec.mla().q_rank(); rank > 0) {
      q_down_ = add("q_a_proj", rank, d);
      q_norm_ = store.Add(prefix + "q_a_layernorm.weight", {rank}, {.mean = 1});
      q_up_ = add("q_b_proj", q, rank);
    } else {
      q_up_ = add("q_proj", q, d);
    }
    kv_down_ = add("kv_a_proj_with_mqa", kv_rank_ + rope_, d);
    kv_norm_ = store.Add(prefix + "kv_a_layernorm.weight", {kv_rank_}, {.mean = 1});
    kv_up_ = add("kv_b_proj", heads_ * (nope_ + value_), kv_rank_);
    o_ = add("o_proj", d, heads_ * value_);
  }

  at::Tensor Forward(const at::Tensor& x, const Rotary* rotary) const override {
    TORCH_CHECK(rotary != nullptr, "model.decoder.mla needs rotary positions");
    const int64_t B = x.size(0), T = x.size(1);
    const auto split = [&](const at::Tensor& y, int64_t width) {
      return y.view({B, T, heads_, width}).transpose(1, 2);
    };
    at::Tensor q = x;
    if (q_down_.defined()) q = Normed(Project(x, q_down_), q_norm_, kLatentEps);
    q = split(Project(q, q_up_), nope_ + rope_);
    const at::Tensor q_turned = (*rotary)(q.narrow(3, nope_, rope_));

    const at::Tensor down = Project(x, kv_down_);  // [B, T, kv_rank + rope]
    const at::Tensor k_turned = (*rotary)(down.narrow(2, kv_rank_, rope_).unsqueeze(1));
    const at::Tensor latent =
        Normed(down.narrow(2, 0, kv_rank_).contiguous(), kv_norm_, kLatentEps);
    const at::Tensor kv = split(Project(latent, kv_up_), nope_ + value_);

    q = at::cat({q.narrow(3, 0, nope_), q_turned}, 3);
    const at::Tensor k =
        at::cat({kv.narrow(3, 0, nope_), k_turned.expand({B, heads_, T, rope_})}, 3);
    const double scale = rotary->score_factor() / std::sqrt(static_cast<double>(nope_ + rope_));
    const at::Tensor mixed = CausalAttention(q, k, kv.narrow(3, nope_, value_), scale);
    return Project(mixed.transpose(1, 2).reshape({B, T, heads_ * value_}), o_).to(x.scalar_type());
  }

 private:
  at::Tensor Project(const at::Tensor& x, const at::Tensor& weight) const {
    return Linear(x, weight, at::Tensor(), products_);
  }

  const Products products_;
  const int64_t heads_, nope_, rope_, value_, kv_rank_;
  at::Tensor q_down_, q_norm_, q_up_, kv_down_, kv_norm_, kv_up_, o_;
};

}  // namespace

Rotary::Rotary(const pb::DecoderSpec& spec)
    : theta_(spec.has_rope_theta() ? spec.rope_theta() : 10000.0),
      is_interleaved_(spec.has_rope_interleaved() ? spec.rope_interleaved() : spec.has_mla()) {
  if (spec.has_mla()) {
    width_ = spec.mla().rope_dim();
  } else {
    width_ = spec.head_dim() > 0 ? spec.head_dim() : spec.d_model() / std::max(1U, spec.heads());
  }
  TORCH_CHECK(width_ > 0 && width_ % 2 == 0, "model.decoder: rotary positions over ", width_,
              " elements");
  if (!spec.has_yarn()) return;
  const pb::YarnSpec& yarn = spec.yarn();
  is_yarn_ = true;
  is_truncated_ = !yarn.has_truncate() || yarn.truncate();
  factor_ = yarn.factor();
  original_context_ = yarn.original_context();
  if (yarn.has_beta_fast()) beta_fast_ = yarn.beta_fast();
  if (yarn.has_beta_slow()) beta_slow_ = yarn.beta_slow();
  const auto m = [&](double a) { return factor_ <= 1 ? 1.0 : 0.1 * a * std::log(factor_) + 1.0; };
  if (yarn.has_attention_factor()) {
    table_factor_ = yarn.attention_factor();
  } else if (yarn.mscale() != 0 && yarn.mscale_all_dim() != 0) {
    table_factor_ = m(yarn.mscale()) / m(yarn.mscale_all_dim());
  } else {
    table_factor_ = m(1);
  }
  if (spec.has_mla() && yarn.mscale_all_dim() != 0 &&
      (!yarn.has_score_factor() || yarn.score_factor())) {
    score_factor_ = m(yarn.mscale_all_dim()) * m(yarn.mscale_all_dim());
  }
}

at::Tensor Rotary::Frequencies() const {
  const at::Tensor plain =
      at::pow(theta_, at::arange(0, width_, 2, at::kDouble) / static_cast<double>(-width_));
  if (!is_yarn_) return plain;
  // The dimension that makes `rotations` turns over the original context.
  const auto dimension = [&](double rotations) {
    return static_cast<double>(width_) *
           std::log(original_context_ / (2 * std::numbers::pi * rotations)) /
           (2 * std::log(theta_));
  };
  double low = dimension(beta_fast_), high = dimension(beta_slow_);
  if (is_truncated_) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(width_ - 1));
  if (low == high) high += 0.001;
  const at::Tensor slowed =
      ((at::arange(width_ / 2, at::kDouble) - low) / (high - low)).clamp(0, 1);
  return plain * (slowed / factor_ + 1 - slowed);
}

void Rotary::Prepare(int64_t positions, const at::Tensor& like) {
  const auto type = like.scalar_type();
  const auto device = like.device();
  if (cos_.defined() && cos_.size(0) == positions && cos_.scalar_type() == type &&
      cos_.device() == device) {
    return;
  }
  const at::Tensor angle =
      at::arange(positions).to(type).unsqueeze(1) * Frequencies().to(type).unsqueeze(0);
  cos_ = (angle.cos() * table_factor_).to(device);
  sin_ = (angle.sin() * table_factor_).to(device);
}

at::Tensor Rotary::operator()(const at::Tensor& x) const {
  if (!is_interleaved_) return Rope(x, cos_, sin_);
  const at::Tensor halves = x.unflatten(-1, {width_ / 2, 2}).transpose(-1, -2).flatten(-2);
  return Rope(halves, cos_, sin_);
}

std::unique_ptr<DecoderAttention> MakeDecoderAttention(const pb::DecoderSpec& spec,
                                                       const std::string& prefix, Products products,
                                                       ParameterStore& store) {
  if (spec.has_mla()) {
    return std::make_unique<LatentAttention>(spec, prefix, products, store);
  }
  return std::make_unique<GroupedAttention>(spec, prefix, products, store);
}

}  // namespace switchyard::model
