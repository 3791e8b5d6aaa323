#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/backbones/backbone_base.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

struct Norm {
  pb::NormKind kind = pb::NORM_KIND_RMSNORM;
  double eps = 1e-5;
  at::Tensor weight, bias;

  at::Tensor operator()(const at::Tensor& x) const {
    if (kind == pb::NORM_KIND_RMSNORM) return RmsNorm(x, weight, eps);
    return at::layer_norm(x, {x.size(-1)}, weight, bias, eps);
  }
};

struct Projection {
  at::Tensor weight, bias;
};

struct Layer {
  Norm attention_norm, feed_forward_norm;
  Projection q, k, v, o;
};

class Decoder final : public BackboneBase {
 public:
  Decoder(const pb::DecoderSpec& spec, int64_t context, BackboneParts parts)
      : BackboneBase(std::move(parts)),
        d_(spec.d_model()),
        heads_(spec.heads()),
        kv_heads_(spec.kv_heads() > 0 ? spec.kv_heads() : spec.heads()),
        head_dim_(spec.head_dim() > 0 ? spec.head_dim()
                                      : spec.d_model() / std::max(1U, spec.heads())),
        theta_(spec.has_rope_theta() ? spec.rope_theta() : 10000.0),
        dropout_(spec.dropout()) {
    uses_rope_ = spec.position() == pb::POSITION_KIND_ROPE ||
                 spec.position() == pb::POSITION_KIND_UNSPECIFIED;
    TORCH_CHECK(spec.layers() > 0 && d_ > 0 && heads_ > 0 && heads_ % kv_heads_ == 0 &&
                    head_dim_ > 0 && (!uses_rope_ || head_dim_ % 2 == 0),
                "model.decoder: layers ", spec.layers(), ", d_model ", d_, ", heads ", heads_,
                ", kv_heads ", kv_heads_, ", head_dim ", head_dim_);
    ParameterStore& store = parts_.store;
    const Init init{.std = spec.has_init_std() ? spec.init_std() : 0.02};
    embedding_ = store.Add("model.embed_tokens.weight", {parts_.vocab_size, d_}, init);
    if (spec.position() == pb::POSITION_KIND_LEARNED) {
      TORCH_CHECK(context > 0, "model.decoder.context: learned positions need a length");
      learned_positions_ = store.Add("model.embed_positions.weight", {context, d_}, init);
    }
    for (uint32_t i = 0; i < spec.layers(); ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      const auto project = [&](const char* name, int64_t out, int64_t in) {
        const std::string full = prefix + "self_attn." + name + "_proj.";
        return Projection{store.Add(full + "weight", {out, in}, init),
                          spec.attn_bias() ? store.Add(full + "bias", {out}, {}) : at::Tensor()};
      };
      Layer layer;
      layer.attention_norm = MakeNorm(spec, prefix + "input_layernorm.");
      layer.q = project("q", heads_ * head_dim_, d_);
      layer.k = project("k", kv_heads_ * head_dim_, d_);
      layer.v = project("v", kv_heads_ * head_dim_, d_);
      layer.o = project("o", d_, heads_ * head_dim_);
      layer.feed_forward_norm = MakeNorm(spec, prefix + "post_attention_layernorm.");
      feed_forward_.push_back(parts_.feed_forward(store, i));
      layers_.push_back(layer);
    }
    final_norm_ = MakeNorm(spec, "model.norm.");
    head_weight_ =
        spec.tied() ? embedding_ : store.Add("lm_head.weight", {parts_.vocab_size, d_}, init);
    losses_ = parts_.losses(store);
  }

 private:
  Norm MakeNorm(const pb::DecoderSpec& spec, const std::string& name) {
    Norm norm{
        .kind = spec.norm() == pb::NORM_KIND_UNSPECIFIED ? pb::NORM_KIND_RMSNORM : spec.norm(),
        .eps = spec.has_norm_eps() ? spec.norm_eps() : 1e-5};
    norm.weight = parts_.store.Add(name + "weight", {d_}, {.mean = 1});
    if (norm.kind == pb::NORM_KIND_LAYERNORM) {
      norm.bias = parts_.store.Add(name + "bias", {d_}, {});
    }
    return norm;
  }

  at::Tensor Hidden(Pass& pass, Memory* memory, uint32_t) override {
    if (memory != nullptr) memory->clear();
    const int64_t B = pass.tokens.sequences, T = pass.tokens.tokens_per_sequence;
    at::Tensor x = at::embedding(embedding_, pass.tokens.token_ids.view({B, T}));
    if (learned_positions_.defined()) {
      TORCH_CHECK(T <= learned_positions_.size(0), "a sequence of ", T,
                  " tokens exceeds the context of ", learned_positions_.size(0));
      x = x + learned_positions_.narrow(0, 0, T);
    }
    x = Dropout(x, pass.DropoutFor("embedding", 0, dropout_));
    if (uses_rope_) PrepareRope(T);
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      const auto number = static_cast<uint32_t>(i);
      const at::Tensor mixed = Attend(layer, layer.attention_norm(x));
      x = x + Dropout(mixed, pass.DropoutFor("attention", number, dropout_));
      FeedForward& part = *feed_forward_[i];
      at::Tensor y = part.Forward(layer.feed_forward_norm(x).view({B * T, d_}), pass);
      y = y.view({B, T, d_});
      if (part.drops_output()) y = Dropout(y, pass.DropoutFor("ffn", number, dropout_));
      x = x + y;
    }
    return final_norm_(x);
  }

  at::Tensor Attend(const Layer& layer, const at::Tensor& x) {
    const int64_t B = x.size(0), T = x.size(1);
    const Products products = parts_.products;
    const auto split = [&](const Projection& p, int64_t heads) {
      return Linear(x, p.weight, p.bias, products).view({B, T, heads, head_dim_}).transpose(1, 2);
    };
    at::Tensor q = split(layer.q, heads_), k = split(layer.k, kv_heads_),
               v = split(layer.v, kv_heads_);
    if (uses_rope_) {
      q = Rope(q, cos_, sin_);
      k = Rope(k, cos_, sin_);
    }
    if (kv_heads_ != heads_) {
      k = k.repeat_interleave(heads_ / kv_heads_, 1);
      v = v.repeat_interleave(heads_ / kv_heads_, 1);
    }
    const at::Tensor mixed =
        at::scaled_dot_product_attention(q, k, v, {}, /*dropout_p=*/0.0, /*is_causal=*/true);
    return Linear(mixed.transpose(1, 2).reshape({B, T, heads_ * head_dim_}), layer.o.weight,
                  layer.o.bias, products)
        .to(x.scalar_type());
  }

  // Angles in float32 (models.md 7.4), float64 for float64 parameters.
  void PrepareRope(int64_t T) {
    const auto type = embedding_.scalar_type();
    const auto device = embedding_.device();
    if (cos_.defined() && cos_.size(0) == T && cos_.scalar_type() == type &&
        cos_.device() == device) {
      return;
    }
    const at::Tensor frequency =
        at::pow(theta_, at::arange(0, head_dim_, 2, at::kDouble) / static_cast<double>(-head_dim_))
            .to(type);
    const at::Tensor angle = at::arange(T).to(type).unsqueeze(1) * frequency.unsqueeze(0);
    cos_ = angle.cos().to(device);
    sin_ = angle.sin().to(device);
  }

  const int64_t d_, heads_, kv_heads_, head_dim_;
  const double theta_, dropout_;
  bool uses_rope_ = false;
  at::Tensor embedding_, learned_positions_;
  std::vector<Layer> layers_;
  Norm final_norm_;
  at::Tensor cos_, sin_;  // of the last length
};

}  // namespace

std::unique_ptr<LanguageModel> MakeDecoder(const pb::DecoderSpec& spec, int64_t context,
                                           BackboneParts parts) {
  return std::make_unique<Decoder>(spec, context, std::move(parts));
}

}  // namespace switchyard::model
