#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/backbones/backbone_base.h"
#include "worker/model/backbones/decoder_attention.h"

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

struct Layer {
  Norm attention_norm, feed_forward_norm;
  std::unique_ptr<DecoderAttention> attention;
};

class Decoder final : public BackboneBase {
 public:
  Decoder(const pb::DecoderSpec& spec, int64_t context, BackboneParts parts)
      : BackboneBase(std::move(parts)), d_(spec.d_model()), dropout_(spec.dropout()) {
    TORCH_CHECK(spec.layers() > 0 && d_ > 0, "model.decoder: layers ", spec.layers(), ", d_model ",
                d_);
    if (spec.position() == pb::POSITION_KIND_ROPE ||
        spec.position() == pb::POSITION_KIND_UNSPECIFIED) {
      rotary_.emplace(spec);
    }
    ParameterStore& store = parts_.store;
    const Init init{.std = spec.has_init_std() ? spec.init_std() : 0.02};
    embedding_ = store.Add("model.embed_tokens.weight", {parts_.vocab_size, d_}, init);
    if (spec.position() == pb::POSITION_KIND_LEARNED) {
      TORCH_CHECK(context > 0, "model.decoder.context: learned positions need a length");
      learned_positions_ = store.Add("model.embed_positions.weight", {context, d_}, init);
    }
    for (uint32_t i = 0; i < spec.layers(); ++i) {
      const std::string prefix = "model.layers." + std::to_string(i) + ".";
      Layer layer;
      layer.attention_norm = MakeNorm(spec, prefix + "input_layernorm.");
      layer.attention = MakeDecoderAttention(spec, prefix + "self_attn.", parts_.products, store);
      layer.feed_forward_norm = MakeNorm(spec, prefix + "post_attention_layernorm.");
      feed_forward_.push_back(parts_.feed_forward(store, i));
      layers_.push_back(std::move(layer));
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
    if (rotary_) rotary_->Prepare(T, embedding_);
    RememberEmbedding(parts_.history, x, &pass.router_state);
    for (size_t i = 0; i < layers_.size(); ++i) {
      x = RunLayer(x, pass, [this, i, rotary = rotary_](const at::Tensor& in, Pass& own) {
        return Block(in, i, rotary ? &*rotary : nullptr, own);
      });
    }
    return final_norm_(x);
  }

  at::Tensor Block(const at::Tensor& in, size_t index, const Rotary* rotary, Pass& pass) {
    const Layer& layer = layers_[index];
    const auto number = static_cast<uint32_t>(index);
    const int64_t B = in.size(0), T = in.size(1);
    const at::Tensor mixed = layer.attention->Forward(layer.attention_norm(in), rotary);
    const at::Tensor x = in + Dropout(mixed, pass.DropoutFor("attention", number, dropout_));
    FeedForward& part = *feed_forward_[index];
    const at::Tensor normed = layer.feed_forward_norm(x);
    at::Tensor y = part.Forward(normed.view({B * T, d_}), pass).view({B, T, d_});
    if (part.drops_output()) y = Dropout(y, pass.DropoutFor("ffn", number, dropout_));
    const at::Tensor out = x + y;
    RememberLayer(parts_.history, {.layer = number, .input = normed, .residual = x, .output = out},
                  &pass.router_state);
    return out;
  }

  const int64_t d_;
  const double dropout_;
  std::optional<Rotary> rotary_;
  at::Tensor embedding_, learned_positions_;
  std::vector<Layer> layers_;
  Norm final_norm_;
};

}  // namespace

std::unique_ptr<LanguageModel> MakeDecoder(const pb::DecoderSpec& spec, int64_t context,
                                           BackboneParts parts) {
  return std::make_unique<Decoder>(spec, context, std::move(parts));
}

}  // namespace switchyard::model
