#include "common/spec/accounting.h"

#include <algorithm>

#include "common/spec/router_accounting.h"
#include "switchyard/v1/spec.pb.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// Sizes of one kind of feed-forward part or expert.
struct FeedForward {
  uint64_t params = 0;
  uint64_t flops = 0;  // per token
};

FeedForward TwoMatrices(uint64_t d_model, uint64_t width, bool has_bias) {
  return {.params = 2 * d_model * width + (has_bias ? width + d_model : 0),
          .flops = 4 * d_model * width};
}

FeedForward ThreeMatrices(uint64_t d_model, uint64_t width) {
  return {.params = 3 * d_model * width, .flops = 6 * d_model * width};
}

FeedForward OfExpert(pb::ExpertKind kind, uint64_t d_model, uint64_t width) {
  // A static expert is one vector, added to the output.
  if (kind == pb::EXPERT_KIND_STATIC) return {.params = d_model, .flops = 2 * d_model};
  if (kind == pb::EXPERT_KIND_RANK1) return TwoMatrices(d_model, width, false);
  if (kind == pb::EXPERT_KIND_SWIGLU) return ThreeMatrices(d_model, width);
  return TwoMatrices(d_model, width, kind != pb::EXPERT_KIND_GELU);
}

FeedForward OfMlp(pb::MlpKind kind, uint64_t d_model, uint64_t width) {
  switch (kind) {
    case pb::MLP_KIND_GELU:
      return TwoMatrices(d_model, width, false);
    case pb::MLP_KIND_RELU:
      return TwoMatrices(d_model, width, true);
    default:
      return ThreeMatrices(d_model, width);
  }
}

// What every layer has besides its feed-forward part, and what the model has once.
struct Backbone {
  uint64_t layers = 0;
  uint64_t d_model = 0;
  uint64_t d_inner = 0;
  uint64_t layer_params = 0;
  uint64_t layer_flops = 0;
  uint64_t once_params = 0;
  uint64_t embedding_params = 0;
  uint64_t head_flops = 0;
};

struct Softmax {
  uint64_t params = 0;
  uint64_t flops = 0;
};

// Embedding and softmax of one tied matrix, or of a head and clusters of falling width, every one
// counted, as if each token's target were in all of them.
Softmax OfSoftmax(const pb::TransformerXlSpec& spec, uint64_t vocab) {
  const uint64_t d = spec.d_model();
  if (vocab == 0) return {};
  if (spec.softmax_cutoffs().empty()) return {.params = vocab * d + vocab, .flops = 2 * d * vocab};
  const auto clusters = static_cast<uint64_t>(spec.softmax_cutoffs_size());
  const uint64_t div_val = std::max<uint64_t>(1, spec.div_val());
  Softmax sum{.params = vocab + clusters * (d + 1), .flops = 2 * d * clusters};
  uint64_t width = d, begin = 0;
  for (uint64_t i = 0; i <= clusters; ++i) {
    const uint64_t end = i < clusters ? spec.softmax_cutoffs(static_cast<int>(i)) : vocab;
    const uint64_t size = end > begin ? end - begin : 0;
    sum.params += size * width;
    sum.flops += 2 * size * width;
    if (div_val > 1) {
      sum.params += d * width;
      sum.flops += 2 * d * width;
    }
    begin = end;
    width /= div_val;
  }
  if (div_val > 1) sum.params += d * d;  // the output head's own projection
  return sum;
}

Backbone OfTransformerXl(const pb::TransformerXlSpec& spec, const pb::TrainSpec& train,
                         uint64_t vocab) {
  const uint64_t d = spec.d_model();
  const uint64_t inner = uint64_t{spec.heads()} * spec.d_head();
  const uint64_t keys = uint64_t{train.memory_len()} + train.target_len();
  const Softmax softmax = OfSoftmax(spec, vocab);
  return {.layers = spec.layers(),
          .d_model = d,
          .d_inner = spec.d_inner(),
          // qkv 3, positions 1, output 1; two LayerNorms.
          .layer_params = 5 * d * inner + 4 * d,
          // qkv and output of the new rows; content scores, position scores, values.
          .layer_flops = 8 * d * inner + 6 * keys * inner,
          .once_params = 2 * inner,  // u, v
          .embedding_params = softmax.params,
          .head_flops = softmax.flops};
}

// One layer's attention.
struct Attention {
  uint64_t params = 0;
  uint64_t matrices = 0;  // elements of its matrices
  uint64_t width = 0;     // of scores and of values together, over all heads
};

Attention OfHeads(const pb::DecoderSpec& spec) {
  const uint64_t d = spec.d_model();
  const uint64_t inner = uint64_t{spec.heads()} * spec.head_dim();
  const uint64_t inner_kv = uint64_t{spec.kv_heads()} * spec.head_dim();
  const uint64_t matrices = 2 * d * inner + 2 * d * inner_kv;
  const uint64_t biases = spec.attn_bias() ? inner + 2 * inner_kv + d : 0;
  const uint64_t norms = spec.qk_norm() == pb::QK_NORM_FULL_WIDTH ? inner + inner_kv
                         : spec.qk_norm() == pb::QK_NORM_PER_HEAD ? 2 * spec.head_dim()
                                                                  : 0;
  return {.params = matrices + biases + norms, .matrices = matrices, .width = 2 * inner};
}

Attention OfMla(const pb::DecoderSpec& spec) {
  const pb::MlaSpec& mla = spec.mla();
  const uint64_t d = spec.d_model(), heads = spec.heads();
  const uint64_t q = heads * (uint64_t{mla.nope_dim()} + mla.rope_dim());
  const uint64_t values = heads * mla.value_dim();
  const uint64_t queries = mla.q_rank() > 0 ? mla.q_rank() * (d + q) : d * q;
  const uint64_t matrices = queries + d * (uint64_t{mla.kv_rank()} + mla.rope_dim()) +
                            mla.kv_rank() * (heads * mla.nope_dim() + values) + values * d;
  return {
      .params = matrices + mla.q_rank() + mla.kv_rank(), .matrices = matrices, .width = q + values};
}

Backbone OfDecoder(const pb::DecoderSpec& spec, const pb::TrainSpec& train, uint64_t vocab) {
  const uint64_t d = spec.d_model();
  const Attention attention = spec.has_mla() ? OfMla(spec) : OfHeads(spec);
  const uint64_t norm = spec.norm() == pb::NORM_KIND_LAYERNORM ? 2 * d : d;
  const uint64_t positions = spec.position() == pb::POSITION_KIND_LEARNED ? spec.context() * d : 0;
  return {
      .layers = spec.layers(),
      .d_model = d,
      .d_inner = spec.d_inner(),
      .layer_params = attention.params + 2 * norm,
      .layer_flops = 2 * attention.matrices + 2 * uint64_t{train.target_len()} * attention.width,
      .once_params = norm,
      .embedding_params = (spec.tied() ? 1 : 2) * vocab * d + positions,
      .head_flops = 2 * d * vocab};
}

}  // namespace

pb::Tokens TokensOf(const pb::RunSpec& run) {
  switch (run.data().kind_case()) {
    case pb::DataSpec::kFiles:
      return run.data().files().tokens();
    case pb::DataSpec::kEnwik8:
      return run.data().enwik8().tokens();
    case pb::DataSpec::kWikitext:
      return run.data().wikitext().tokens();
    case pb::DataSpec::KIND_NOT_SET:
      return pb::TOKENS_UNSPECIFIED;
  }
  return pb::TOKENS_UNSPECIFIED;
}

uint64_t VocabFromData(const pb::RunSpec& run) {
  return TokensOf(run) == pb::TOKENS_BYTES256 ? 256 : 0;
}

Accounting Account(const pb::RunSpec& run, uint64_t vocab) {
  const pb::ModelSpec& model = run.model();
  if (vocab == 0) vocab = VocabFromData(run);
  if (vocab == 0) vocab = model.vocab();
  const bool is_decoder = model.has_decoder();
  const Backbone backbone = is_decoder
                                ? OfDecoder(model.decoder(), run.train(), vocab)
                                : OfTransformerXl(model.transformer_xl(), run.train(), vocab);
  const uint64_t d = backbone.d_model;
  const auto plain = [&](uint64_t width) {
    return is_decoder ? OfMlp(model.decoder().mlp(), d, width) : TwoMatrices(d, width, true);
  };

  const pb::MoeSpec& moe = model.moe();
  const auto moe_layers = static_cast<uint64_t>(moe.layers_size());
  const uint64_t plain_layers = backbone.layers - moe_layers;
  const FeedForward own = plain(backbone.d_inner);

  Accounting sum;
  sum.vocab_known = vocab != 0;
  sum.params_embedding = backbone.embedding_params;
  sum.params_total = backbone.embedding_params + backbone.once_params +
                     backbone.layers * backbone.layer_params + plain_layers * own.params;
  sum.flops_per_token_active =
      backbone.head_flops + backbone.layers * backbone.layer_flops + plain_layers * own.flops;
  uint64_t idle_params = 0;
  if (moe.router().has_dense()) {
    const FeedForward wide = plain(moe.router().dense().d_ff());
    sum.params_total += moe_layers * wide.params;
    sum.flops_per_token_active += moe_layers * wide.flops;
  } else if (model.has_moe()) {
    const uint64_t experts = moe.experts();
    const FeedForward expert = OfExpert(moe.expert().kind(), d, moe.expert().width());
    const RouterCost router = AccountRouters(model, run.train().target_len());
    const uint64_t per_token = ExpertsPerToken(model);
    FeedForward shared;
    if (moe.shared_experts() > 0) {
      shared =
          OfExpert(moe.expert().kind(), d, uint64_t{moe.shared_experts()} * moe.expert().width());
    }
    sum.params_router = router.params;
    sum.params_expert = moe_layers * (experts * expert.params + shared.params);
    sum.params_total += sum.params_router + sum.params_expert;
    sum.flops_per_token_active +=
        moe_layers * (per_token * expert.flops + shared.flops) + router.flops;
    idle_params = moe_layers * (experts - std::min(experts, per_token)) * expert.params;
  }
  sum.params_active = sum.params_total - idle_params;
  return sum;
}

}  // namespace switchyard::spec
