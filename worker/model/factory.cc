#include <algorithm>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "common/spec/router_properties.h"
#include "switchyard/v1/spec.pb.h"
#include "worker/model/backbones/backbone.h"
#include "worker/model/model.h"
#include "worker/model/routers/history.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

// Sizes and names that the feed-forward parts of one model share.
struct Blocks {
  bool is_xl = false;
  int64_t d_model = 0;
  int64_t d_inner = 0;
  uint32_t layers = 0;
  double dropout = 0;
  double init_std = 0.02;
  FeedForwardKind kind = FeedForwardKind::kRelu;  // of plain parts, and of experts by default
};

FeedForwardKind KindOf(pb::MlpKind kind) {
  switch (kind) {
    case pb::MLP_KIND_GELU:
      return FeedForwardKind::kGelu;
    case pb::MLP_KIND_RELU:
      return FeedForwardKind::kRelu;
    case pb::MLP_KIND_SWIGLU:
    case pb::MLP_KIND_UNSPECIFIED:
    case pb::MlpKind_INT_MIN_SENTINEL_DO_NOT_USE_:
    case pb::MlpKind_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return FeedForwardKind::kSwiglu;
}

FeedForwardKind KindOf(pb::ExpertKind kind, FeedForwardKind otherwise) {
  switch (kind) {
    case pb::EXPERT_KIND_RELU:
      return FeedForwardKind::kRelu;
    case pb::EXPERT_KIND_SWIGLU:
      return FeedForwardKind::kSwiglu;
    case pb::EXPERT_KIND_GELU:
      return FeedForwardKind::kGelu;
    case pb::EXPERT_KIND_STATIC:
      return FeedForwardKind::kStatic;
    case pb::EXPERT_KIND_RANK1:
    case pb::EXPERT_KIND_UNSPECIFIED:
    case pb::ExpertKind_INT_MIN_SENTINEL_DO_NOT_USE_:
    case pb::ExpertKind_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return otherwise;
}

// Of the units of rank1 experts, which have no biases.
FeedForwardKind KindOf(pb::Activation activation) {
  switch (activation) {
    case pb::ACTIVATION_RELU:
      return FeedForwardKind::kRelu;
    case pb::ACTIVATION_SILU:
      return FeedForwardKind::kSilu;
    case pb::ACTIVATION_GELU:
    case pb::ACTIVATION_UNSPECIFIED:
    case pb::Activation_INT_MIN_SENTINEL_DO_NOT_USE_:
    case pb::Activation_INT_MAX_SENTINEL_DO_NOT_USE_:
      break;
  }
  return FeedForwardKind::kGelu;
}

Blocks BlocksOf(const pb::ModelSpec& spec) {
  if (spec.backbone_case() == pb::ModelSpec::kTransformerXl) {
    const pb::TransformerXlSpec& xl = spec.transformer_xl();
    return {.is_xl = true,
            .d_model = xl.d_model(),
            .d_inner = xl.d_inner(),
            .layers = xl.layers(),
            .dropout = xl.has_dropout() ? xl.dropout() : 0.1,
            .init_std = xl.has_init_std() ? xl.init_std() : 0.02,
            .kind = FeedForwardKind::kRelu};
  }
  const pb::DecoderSpec& decoder = spec.decoder();
  return {.is_xl = false,
          .d_model = decoder.d_model(),
          .d_inner = decoder.d_inner(),
          .layers = decoder.layers(),
          .dropout = decoder.dropout(),
          .init_std = decoder.has_init_std() ? decoder.init_std() : 0.02,
          .kind = KindOf(decoder.mlp())};
}

std::string Prefix(const Blocks& blocks, uint32_t layer) {
  return blocks.is_xl ? "layers." + std::to_string(layer) + ".pos_ff."
                      : "model.layers." + std::to_string(layer) + ".mlp.";
}

FeedForwardNames PartNames(const Blocks& blocks, FeedForwardKind kind, const std::string& prefix) {
  if (kind == FeedForwardKind::kSwiglu) {
    return {.w_in = prefix + "gate_proj.weight",
            .w_up = prefix + "up_proj.weight",
            .w_out = prefix + "down_proj.weight"};
  }
  const std::string in = prefix + (blocks.is_xl ? "CoreNet.0." : "up_proj.");
  const std::string out = prefix + (blocks.is_xl ? "CoreNet.3." : "down_proj.");
  return {
      .w_in = in + "weight", .b_in = in + "bias", .w_out = out + "weight", .b_out = out + "bias"};
}

FeedForwardNames PlainNames(const Blocks& blocks, FeedForwardKind kind, uint32_t layer) {
  return PartNames(blocks, kind, Prefix(blocks, layer));
}

FeedForwardNames ExpertNames(const Blocks& blocks, FeedForwardKind kind, uint32_t layer) {
  const std::string prefix = Prefix(blocks, layer) + "experts.";
  if (kind == FeedForwardKind::kStatic) return {.w_out = prefix + "static.weight"};
  if (kind == FeedForwardKind::kSwiglu) {
    return {.w_in = prefix + "gate_up_proj", .w_out = prefix + "down_proj"};
  }
  if (blocks.is_xl) {
    return {.w_in = prefix + "htoh4.weight",
            .b_in = prefix + "htoh4.bias",
            .w_out = prefix + "h4toh.weight",
            .b_out = prefix + "h4toh.bias"};
  }
  return {.w_in = prefix + "up_proj",
          .b_in = prefix + "up_bias",
          .w_out = prefix + "down_proj",
          .b_out = prefix + "down_bias"};
}

FeedForwardNames Rank1Names(const Blocks& blocks, uint32_t layer) {
  const std::string prefix = Prefix(blocks, layer) + "experts.";
  return {.w_in = prefix + "w_in.weight", .w_out = prefix + "w_out.weight"};
}

bool IsMoeLayer(const pb::MoeSpec& moe, uint32_t layer) {
  return std::find(moe.layers().begin(), moe.layers().end(), layer) != moe.layers().end();
}

}  // namespace

std::unique_ptr<LanguageModel> MakeModel(const pb::RunSpec& run, const DataFacts& facts) {
  const pb::ModelSpec& spec = run.model();
  TORCH_CHECK(spec.backbone_case() != pb::ModelSpec::BACKBONE_NOT_SET,
              "model: needs transformer_xl or decoder");
  TORCH_CHECK(facts.vocab_size > 0, "the data has no vocabulary");
  TORCH_CHECK(spec.vocab() == 0 || spec.vocab() == facts.vocab_size, "model.vocab is ",
              spec.vocab(), ", the data has ", facts.vocab_size);
  const Blocks blocks = BlocksOf(spec);
  const pb::MoeSpec& moe = spec.moe();
  const bool is_dense = !spec.has_moe() || moe.router().kind_case() == pb::RouterSpec::kDense ||
                        moe.router().kind_case() == pb::RouterSpec::KIND_NOT_SET;
  const bool has_scores = !is_dense && spec::PropertiesOf(moe).has_scores;
  for (const uint32_t layer : moe.layers()) {
    TORCH_CHECK(layer < blocks.layers, "model.moe.layers: ", layer, ", the model has ",
                blocks.layers, " layers");
  }
  TORCH_CHECK(has_scores || moe.losses_size() == 0,
              "model.moe.losses: ", is_dense ? "dense" : spec::RouterKindName(moe.router()),
              " has no scores that a loss could act on");
  TORCH_CHECK(is_dense || moe.layers_size() > 0, "model.moe.layers: empty");
  const int64_t top_k = moe.top_k();
  const bool is_rank1 = moe.expert().kind() == pb::EXPERT_KIND_RANK1;
  const FeedForwardKind expert_kind =
      is_rank1 ? KindOf(moe.expert().act()) : KindOf(moe.expert().kind(), blocks.kind);
  const int64_t expert_width =
      moe.expert().width() > 0 ? static_cast<int64_t>(moe.expert().width()) : blocks.d_inner;
  const Products products =
      run.train().precision() == pb::PRECISION_BF16 ? Products::kBfloat16 : Products::kParameter;

  BackboneParts parts{.store = ParameterStore(RandomKey::For(run.seed(), "init")),
                      .vocab_size = facts.vocab_size,
                      .products = products,
                      .recomputes = run.train().recompute()};
  parts.feed_forward = [&](ParameterStore& store, uint32_t layer) {
    FeedForwardOptions options{.kind = blocks.kind,
                               .d_model = blocks.d_model,
                               .width = blocks.d_inner,
                               .layer = layer,
                               .dropout = blocks.dropout,
                               .init_std = blocks.init_std,
                               .products = products};
    if (!IsMoeLayer(moe, layer)) {
      return MakePlainFeedForward(options, PlainNames(blocks, options.kind, layer), store);
    }
    if (is_dense) {
      const uint32_t d_ff = moe.router().dense().d_ff();
      options.width =
          d_ff > 0 ? d_ff : (moe.experts() > 0 ? moe.experts() * expert_width : blocks.d_inner);
      return MakePlainFeedForward(options, PlainNames(blocks, options.kind, layer), store);
    }
    options.kind = expert_kind;
    options.width = expert_width;
    const std::string gate = Prefix(blocks, layer) + "gate.";
    const auto ordinal =
        std::find(moe.layers().begin(), moe.layers().end(), layer) - moe.layers().begin();
    auto router = MakeRouter(moe,
                             {.d_model = blocks.d_model,
                              .experts = moe.experts(),
                              .top_k = top_k,
                              .layer = layer,
                              .ordinal = static_cast<uint32_t>(ordinal),
                              .moe_layers = static_cast<uint32_t>(moe.layers_size()),
                              .layers = blocks.layers},
                             {.store = store,
                              .prefix = blocks.is_xl ? gate + "gate." : gate,
                              .gate_prefix = gate,
                              .init_std = blocks.init_std,
                              .seed = run.seed(),
                              .vocab_size = facts.vocab_size,
                              .token_frequency = facts.token_frequency,
                              .products = products});
    MoeOptions experts{.experts = moe.experts(),
                       .is_reference = moe.dispatch() == pb::DISPATCH_DENSE_REFERENCE,
                       .is_bare = is_rank1,
                       .drops_output = moe.combine_dropout(),
                       .capacity = moe.has_capacity() ? &moe.capacity() : nullptr,
                       .shared_experts = moe.shared_experts()};
    if (experts.shared_experts > 0) {
      experts.shared_names =
          PartNames(blocks, options.kind, Prefix(blocks, layer) + "shared_experts.");
    }
    return MakeMoeFeedForward(
        options, experts, std::move(router),
        is_rank1 ? Rank1Names(blocks, layer) : ExpertNames(blocks, options.kind, layer), store);
  };
  if (moe.router().has_mcf()) {
    parts.history = HistoryPolicyOf(moe.router().mcf(), {moe.layers().begin(), moe.layers().end()});
  }
  parts.losses = [&](ParameterStore& store) {
    return std::make_unique<BalanceLosses>(LossesOf(moe, top_k), moe.layers_size(), moe.experts(),
                                           store);
  };
  if (blocks.is_xl) return MakeTransformerXl(spec.transformer_xl(), std::move(parts));
  const int64_t context =
      spec.decoder().context() > 0
          ? static_cast<int64_t>(spec.decoder().context())
          : std::max<int64_t>(run.train().target_len(), run.eval().target_len());
  return MakeDecoder(spec.decoder(), context, std::move(parts));
}

}  // namespace switchyard::model
