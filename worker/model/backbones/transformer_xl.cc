#include <algorithm>
#include <cmath>
#include <string>

#include <ATen/ATen.h>

#include "switchyard/v1/spec.pb.h"
#include "worker/model/backbones/adaptive_softmax.h"
#include "worker/model/backbones/backbone_base.h"

namespace pb = ::switchyard::v1;

namespace switchyard::model {
namespace {

constexpr double kNormEps = 1e-5;

struct Norm {
  at::Tensor weight, bias;

  at::Tensor operator()(const at::Tensor& x) const {
    return at::layer_norm(x, {x.size(-1)}, weight, bias, kNormEps);
  }
};

struct Layer {
  at::Tensor qkv;  // [3 h dh, d]
  at::Tensor r;    // [h dh, d]
  at::Tensor o;    // [d, h dh]
  Norm attention_norm, feed_forward_norm;
};

class TransformerXl final : public BackboneBase {
 public:
  TransformerXl(const pb::TransformerXlSpec& spec, BackboneParts parts)
      : BackboneBase(std::move(parts)),
        d_(spec.d_model()),
        heads_(spec.heads()),
        d_head_(spec.d_head()),
        clamp_len_(spec.clamp_len()),
        dropout_(spec.has_dropout() ? spec.dropout() : 0.1),
        attention_dropout_(spec.attn_dropout()),
        is_pre_norm_(spec.pre_norm()),
        is_same_length_(spec.same_length()) {
    TORCH_CHECK(spec.layers() > 0 && d_ > 0 && d_ % 2 == 0 && heads_ > 0 && d_head_ > 0,
                "model.transformer_xl: layers ", spec.layers(), ", d_model ", d_, ", heads ",
                heads_, ", d_head ", d_head_);
    ParameterStore& store = parts_.store;
    const double std = spec.has_init_std() ? spec.init_std() : 0.02;
    const Init init{.std = std};
    TORCH_CHECK(spec.softmax_cutoffs_size() > 0 || spec.div_val() <= 1,
                "model.transformer_xl.div_val: ", spec.div_val(), " needs softmax_cutoffs");
    if (spec.softmax_cutoffs_size() > 0) {
      adaptive_ = std::make_unique<AdaptiveSoftmax>(
          AdaptiveSoftmaxOptions{
              .vocab_size = parts_.vocab_size,
              .d_model = d_,
              .cutoffs = {spec.softmax_cutoffs().begin(), spec.softmax_cutoffs().end()},
              .div_val = std::max<int64_t>(1, spec.div_val()),
              .init_std = std,
              .projection_std = std / 2},
          store);
    } else {
      head_weight_ = store.Add("word_emb.emb_layers.0.weight", {parts_.vocab_size, d_}, init);
    }
    for (uint32_t i = 0; i < spec.layers(); ++i) {
      const std::string prefix = "layers." + std::to_string(i) + ".";
      const auto norm = [&](const std::string& part) {
        const std::string name = prefix + part + ".layer_norm.";
        return Norm{store.Add(name + "weight", {d_}, {.mean = 1, .std = std}),
                    store.Add(name + "bias", {d_}, {})};
      };
      Layer layer;
      layer.qkv = store.Add(prefix + "dec_attn.qkv_net.weight", {3 * heads_ * d_head_, d_}, init);
      layer.r = store.Add(prefix + "dec_attn.r_net.weight", {heads_ * d_head_, d_}, init);
      layer.o = store.Add(prefix + "dec_attn.o_net.weight", {d_, heads_ * d_head_}, init);
      layer.attention_norm = norm("dec_attn");
      feed_forward_.push_back(parts_.feed_forward(store, i));
      layer.feed_forward_norm = norm("pos_ff");
      layers_.push_back(layer);
    }
    u_ = store.Add("r_w_bias", {heads_, d_head_}, init);
    v_ = store.Add("r_r_bias", {heads_, d_head_}, init);
    if (!adaptive_) head_bias_ = store.Add("crit.out_layers.0.bias", {parts_.vocab_size}, {});
    losses_ = parts_.losses(store);
  }

 private:
  at::Tensor NegativeLogLikelihood(const at::Tensor& hidden, const at::Tensor& targets) override {
    return adaptive_ ? adaptive_->NegativeLogLikelihood(hidden, targets, parts_.products)
                     : BackboneBase::NegativeLogLikelihood(hidden, targets);
  }

  at::Tensor HeadLogits(const at::Tensor& hidden) override {
    if (!adaptive_) return BackboneBase::HeadLogits(hidden);
    const at::Tensor logs =
        adaptive_->LogProbabilities(hidden.reshape({-1, hidden.size(2)}), parts_.products);
    return logs.view({hidden.size(0), hidden.size(1), -1});
  }

  at::Tensor Hidden(Pass& pass, Memory* memory, uint32_t memory_len) override {
    const int64_t B = pass.tokens.sequences, T = pass.tokens.tokens_per_sequence;
    const int64_t M = CheckMemory(memory, B);
    const at::Tensor ids = pass.tokens.token_ids.view({B, T});
    at::Tensor x = (adaptive_ ? adaptive_->Embed(ids) : at::embedding(head_weight_, ids)) *
                   std::sqrt(static_cast<double>(d_));
    x = Dropout(x, pass.DropoutFor("embedding", 0, dropout_));
    RememberEmbedding(parts_.history, x, &pass.router_state);
    // One mask for all sequences: it must not depend on which of them are in this micro-batch.
    DropoutStream position_stream = pass.DropoutFor("positions", 0, dropout_);
    position_stream.first_sequence = 0;
    const at::Tensor positions = Dropout(Positions(M + T), position_stream);

    const size_t own = layers_.size() + 1;
    if (M > 0)
      pass.router_state.past.assign(memory->begin() + static_cast<ptrdiff_t>(own), memory->end());
    const bool keeps_memory = memory != nullptr && memory_len > 0;
    Memory states;
    if (keeps_memory) states.push_back(x.detach());
    for (size_t i = 0; i < layers_.size(); ++i) {
      const at::Tensor past = M > 0 ? (*memory)[i] : at::Tensor();
      x = RunLayer(x, pass,
                   [this, i, past, positions, memory_len](const at::Tensor& in, Pass& own) {
                     return Block(in, past, positions, memory_len, i, own);
                   });
      if (keeps_memory) states.push_back(x.detach());
    }
    if (memory != nullptr) {
      *memory = NextMemory(*memory, std::move(states), memory_len, M);
      if (keeps_memory) {
        const std::vector<at::Tensor>& next = pass.router_state.next;
        memory->insert(memory->end(), next.begin(), next.end());
      }
    }
    return Dropout(x, pass.DropoutFor("output", 0, dropout_));
  }

  at::Tensor Block(const at::Tensor& x, const at::Tensor& past, const at::Tensor& positions,
                   uint32_t memory_len, size_t index, Pass& pass) {
    const Layer& layer = layers_[index];
    const auto number = static_cast<uint32_t>(index);
    const int64_t B = x.size(0), T = x.size(1), inner = heads_ * d_head_;
    at::Tensor all = past.defined() ? at::cat({past, x}, 1) : x;
    if (is_pre_norm_) all = layer.attention_norm(all);
    const int64_t S = all.size(1);
    const Products products = parts_.products;
    const at::Tensor none;
    at::Tensor q, kv;
    if (S == T) {
      const at::Tensor qkv = Linear(all, layer.qkv, none, products);
      q = qkv.narrow(2, 0, inner);
      kv = qkv.narrow(2, inner, 2 * inner);
    } else {
      const auto weights = layer.qkv.split_with_sizes({inner, 2 * inner});
      q = Linear(all.narrow(1, S - T, T), weights[0], none, products);
      kv = Linear(all, weights[1], none, products);
    }
    RelativeAttentionInput input{
        .q = q.view({B, T, heads_, d_head_}),
        .k = kv.narrow(2, 0, inner).view({B, S, heads_, d_head_}),
        .v = kv.narrow(2, inner, inner).view({B, S, heads_, d_head_}),
        .r = Linear(positions.squeeze(0), layer.r, none, products).view({S, heads_, d_head_}),
        .u = u_,
        .w = v_,
        .window = is_same_length_ ? std::max<int64_t>(1, memory_len) : 0,
        .dropout = pass.DropoutFor("attention_weights", number, attention_dropout_)};
    const at::Tensor mixed =
        Linear(RelativeAttention(input), layer.o, none, products).to(x.scalar_type());
    at::Tensor h = x + Dropout(mixed, pass.DropoutFor("attention", number, dropout_));
    if (!is_pre_norm_) h = layer.attention_norm(h);

    FeedForward& part = *feed_forward_[index];
    const at::Tensor in = is_pre_norm_ ? layer.feed_forward_norm(h) : h;
    at::Tensor y = part.Forward(in.view({B * T, d_}), pass).view({B, T, d_});
    if (part.drops_output()) y = Dropout(y, pass.DropoutFor("ffn", number, dropout_));
    const at::Tensor out = is_pre_norm_ ? h + y : layer.feed_forward_norm(h + y);
    RememberLayer(parts_.history, {.layer = number, .input = in, .residual = h, .output = out},
                  &pass.router_state);
    return out;
  }

  int64_t CheckMemory(const Memory* memory, int64_t batch) const {
    if (memory == nullptr || memory->empty()) return 0;
    // Behind the layers' states: what routers keep, which is their own business.
    TORCH_CHECK(memory->size() > layers_.size(), "memory of ", memory->size(),
                " tensors, expected at least ", layers_.size() + 1);
    const at::Tensor& first = memory->front();
    TORCH_CHECK(first.dim() == 3 && first.size(0) == batch && first.size(2) == d_, "memory is ",
                first.sizes(), ", expected [", batch, ", M, ", d_, "]");
    return first.size(1);
  }

  static Memory NextMemory(const Memory& old, Memory states, uint32_t memory_len, int64_t M) {
    for (size_t i = 0; i < states.size(); ++i) {
      const int64_t T = states[i].size(1);
      const int64_t keep = std::min<int64_t>(memory_len, M + T);
      if (keep <= T) {
        // A copy: a view would keep the whole segment alive.
        states[i] = states[i].narrow(1, T - keep, keep).contiguous();
      } else {
        states[i] = at::cat({old[i].narrow(1, M + T - keep, keep - T), states[i]}, 1);
      }
    }
    return states;
  }

  // [1, S, d]: sines, then cosines, of positions S - 1 ... 0, none beyond clamp_len.
  at::Tensor Positions(int64_t S) {
    const auto type = u_.scalar_type();
    const auto device = u_.device();
    if (positions_.defined() && positions_.size(1) == S && positions_.scalar_type() == type &&
        positions_.device() == device) {
      return positions_;
    }
    at::Tensor distance = at::arange(S - 1, -1, -1, at::kDouble);
    if (clamp_len_ > 0) distance = distance.clamp_max(clamp_len_);
    const at::Tensor frequency =
        at::pow(10000.0, at::arange(0, d_, 2, at::kDouble) / static_cast<double>(-d_));
    const at::Tensor angle = distance.unsqueeze(1) * frequency.unsqueeze(0);
    positions_ = at::cat({angle.sin(), angle.cos()}, 1).unsqueeze(0).to(type).to(device);
    return positions_;
  }

  const int64_t d_, heads_, d_head_, clamp_len_;
  const double dropout_, attention_dropout_;
  const bool is_pre_norm_, is_same_length_;
  std::unique_ptr<AdaptiveSoftmax> adaptive_;  // null: one full softmax
  std::vector<Layer> layers_;
  at::Tensor u_, v_;
  at::Tensor positions_;  // of the last length
};

}  // namespace

std::unique_ptr<LanguageModel> MakeTransformerXl(const pb::TransformerXlSpec& spec,
                                                 BackboneParts parts) {
  return std::make_unique<TransformerXl>(spec, std::move(parts));
}

}  // namespace switchyard::model
