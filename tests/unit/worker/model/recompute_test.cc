// Recomputed activations: less memory and the same bits, for every kind of router in both
// backbones.
#include "worker/model/recompute.h"

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "tests/router_cases.h"
#include "tests/unit/worker/model/testing.h"

namespace switchyard::model {
namespace {

using testing::HasSubstr;

constexpr uint32_t kVocab = 13;

at::Tensor Tokens(int64_t rows, int64_t len, uint64_t seed) {
  return RandomTokens(rows, len, seed, kVocab);
}

// A backbone, a router and what stands around them.
struct Variant {
  std::string name;
  bool is_xl;
  RouterCase router;
  MoeText moe;
  std::string backbone = "";
  std::string train = "";
};
void PrintTo(const Variant& variant, std::ostream* os) { *os << variant.name; }

std::string RunText(const Variant& variant, bool recomputes) {
  MoeText moe = variant.moe;
  moe.layers = "[0, 1, 3]";
  moe.more += Losses(variant.router);
  if (variant.router.has_scores && !variant.router.balances_batch) {
    moe.more += "losses { id: 'deepseek_batch' coef: 0.1 scope: LOSS_SCOPE_GLOBAL } ";
  }
  return StrCat("seed: 3 model { ",
                variant.is_xl
                    ? "transformer_xl { layers: 4 d_model: 16 heads: 2 d_head: 6 d_inner: 20 "
                      "dropout: 0.2 attn_dropout: 0.1 init_std: 0.3 "
                    : "decoder { layers: 4 d_model: 16 heads: 4 d_inner: 20 dropout: 0.2 "
                      "init_std: 0.3 ",
                variant.backbone, " } ", Moe(variant.router, moe), " } train { steps: 10 ",
                variant.train, recomputes ? " recompute: true" : "", " }");
}

using Named = std::vector<std::pair<std::string, at::Tensor>>;

// Three updates of two micro-batches each: everything that a run reports, carries on and learns.
Named Train(const std::string& text, bool has_memory) {
  const auto model = ModelOf(text, kVocab);
  Named seen;
  const auto note = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) seen.emplace_back(name, tensor.detach().clone());
  };
  Memory memory[2];
  for (uint64_t step = 0; step < 3; ++step) {
    for (uint64_t part = 0; part < 2; ++part) {
      const ForwardContext context{.is_training = true,
                                   .step = step,
                                   .first_sequence = 2 * part,
                                   .dropout = RandomKey::For(3, "dropout"),
                                   .wants_routing = true};
      at::Tensor tokens = Tokens(2, 7, 10 * step + part), targets = Tokens(2, 7, 50 + step);
      if (part == 1) {  // padding, which memory excludes
        if (!has_memory) tokens[1].narrow(0, 5, 2).fill_(-1);
        targets[1].narrow(0, 5, 2).fill_(-1);
      }
      const ForwardResult result = model->Forward(
          tokens, targets, context, has_memory ? &memory[part] : nullptr, has_memory ? 5 : 0);
      const std::string at = StrCat("step ", step, " part ", part, " ");
      note(at + "nll", result.nll);
      at::Tensor loss = result.nll.sum() / 28;
      for (const LossTerm& term : result.aux) {
        note(at + term.id, term.value);
        loss = loss + term.value / 2;
      }
      for (const LayerRouting& layer : result.routing) {
        const std::string of = StrCat(at, "layer ", layer.layer, " ");
        note(of + "ids", layer.expert_ids);
        note(of + "weights", layer.weights);
        note(of + "logits", layer.logits);
        note(of + "dropped", at::scalar_tensor(layer.dropped));
        for (const auto& [name, value] : layer.extras) note(of + name, value);
      }
      loss.backward();
      for (size_t i = 0; i < memory[part].size(); ++i) {
        note(StrCat(at, "memory ", i), memory[part][i]);
      }
    }
    for (const auto& [name, tensor] : model->NamedParameters()) {
      note(StrCat("step ", step, " gradient of ", name), tensor.grad());
      if (!tensor.grad().defined()) continue;
      tensor.detach().sub_(tensor.grad() * 0.05);
      tensor.mutable_grad() = at::Tensor();
    }
    model->EndUpdate(true);
    for (const auto& [name, tensor] : model->NamedBuffers()) {
      note(StrCat("step ", step, " ", name), tensor);
    }
  }
  for (const auto& [name, tensor] : model->NamedParameters()) note(name, tensor);
  return seen;
}

class Recomputed : public testing::TestWithParam<Variant> {};

// MR10 and MCF-10: losses, gradients, routing, counters, buffers, memory and parameters over three
// updates are the same bits with activations made again and with activations kept.
TEST_P(Recomputed, GivesTheBitsOfKeptActivations) {
  const bool has_memory = GetParam().is_xl;
  const Named kept = Train(RunText(GetParam(), false), has_memory);
  const Named again = Train(RunText(GetParam(), true), has_memory);
  ASSERT_EQ(kept.size(), again.size());
  EXPECT_GT(kept.size(), 100U);
  for (size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(kept[i].first, again[i].first);
    EXPECT_TRUE(at::equal(kept[i].second, again[i].second)) << kept[i].first;
    EXPECT_TRUE(kept[i].second.isfinite().all().item<bool>()) << kept[i].first;
  }
}

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  for (const RouterCase& router : kRouterCases) {
    for (const bool is_xl : {true, false}) {
      variants.push_back({StrCat(router.kind, is_xl ? "_xl" : "_decoder"), is_xl, router, {}});
    }
  }
  const auto add = [&](const char* name, bool is_xl, RouterCase router, MoeText moe = {},
                       const char* backbone = "", const char* train = "") {
    variants.push_back({name, is_xl, router, std::move(moe), backbone, train});
  };
  const RouterCase smoe{.kind = "smoe"};
  const auto mcf = [](const char* options) {
    return RouterCase{.kind = "mcf", .options = options};
  };
  add("mcf_outputs", true,
      mcf("heads: 2 d_kv: 8 history: HISTORY_SOURCE_LAYER_OUTPUT attn_dropout: 0.2 "
          "history_layers: HISTORY_LAYERS_ALL_PLUS_EMBEDDING k_hist: 5"));
  add("mcf_raw", false, mcf("heads: 2 d_kv: 8 history_norm: HISTORY_NORM_RAW_RMSNORM"));
  add("mcf_memory", true, mcf("heads: 2 d_kv: 8 router_mem_len: 6 out_dropout: 0.2"));
  add("mcf_detached", false, mcf("heads: 2 d_kv: 8 detach_history: true tau_learned: true"));
  add("mcf_double", true, mcf("heads: 2 d_kv: 8 fusion: FUSION_DOUBLE_ATTN attn_dropout: 0.2"));
  add("mcf_rope", false, mcf("heads: 2 d_kv: 8 position: ROUTER_POSITION_ROPE z_residual: true"));
  add("rmoe_own_cells", true,
      {.kind = "rmoe", .options = "state_size: 6 gru_shared: false residual_gate: true"});
  add("cosine_static", false,
      {.kind = "cosine", .options = "d_score: 8 hops: 3 later_hidden: HOP_HIDDEN_UPDATED"},
      {.more = "expert { kind: EXPERT_KIND_STATIC } "});
  add("cosine_own_projections", true,
      {.kind = "cosine",
       .options = "d_score: 8 hops: 2 hop_projection: HOP_PROJECTION_OWN_PROJECTION "
                  "tau_learned: true magnitude: true",
       .balance = "sra"},
      {.more = "expert { kind: EXPERT_KIND_RANK1 width: 3 } "});
  add("xmoe_sra", false,
      {.kind = "xmoe",
       .options = "proj_dim: 8 temperature: XMOE_TEMPERATURE_LEARNED_EXP_CLAMP tau: 0.5",
       .balance = "sra"});
  add("smoe_jitter", true, smoe, {.router = "noise { kind: NOISE_KIND_INPUT_JITTER eps: 0.3 }"});
  add("smoe_gaussian", false, smoe, {.router = "noise { kind: NOISE_KIND_GAUSSIAN_FIXED }"});
  add("smoe_capacity", true, smoe, {.more = "capacity { factor { train: 0.7 } } "});
  add("smoe_reference", false, smoe, {.more = "dispatch: DISPATCH_DENSE_REFERENCE "});
  add("smoe_half", true, smoe, {}, "", "precision: PRECISION_BF16");
  add("smoe_half_decoder", false, smoe, {}, "", "precision: PRECISION_BF16");
  add("smoe_pre_norm", true, smoe, {}, "pre_norm: true");
  add("smoe_adaptive", true, smoe, {}, "softmax_cutoffs: [4, 8] div_val: 2");
  add("smoe_combine_dropout", false, smoe, {.more = "combine_dropout: true "});
  add("smoe_gelu_learned", false, smoe, {.more = "expert { kind: EXPERT_KIND_GELU } "},
      "norm: NORM_KIND_LAYERNORM position: POSITION_KIND_LEARNED context: 7 tied: true "
      "qk_norm: QK_NORM_PER_HEAD kv_heads: 2");
  add("shared_mla", false, {.kind = "deepseek", .balance = "deepseek_seq"},
      {.more = "shared_experts: 2 "},
      "mla { kv_rank: 8 q_rank: 6 nope_dim: 4 rope_dim: 4 "
      "value_dim: 6 }");
  add("hash_multi", true,
      {.kind = "hash", .options = "multi: 2", .balance = "", .has_scores = false});
  add("per_call", false,
      {.kind = "random_fixed",
       .options = "mode: RANDOM_FIXED_MODE_PER_CALL",
       .balance = "",
       .has_scores = false});
  add("expert_choice_sequence", true,
      {.kind = "expert_choice",
       .options = "group: EXPERT_CHOICE_GROUP_SEQUENCE",
       .balance = "",
       .balances_batch = true});
  add("smoe_dropout_schedule", false,
      {.kind = "smoe_dropout",
       .options = "logit_dropout: 0.3 schedule { mode: K_SCHEDULE_MODE_LINEAR_INCREASE k_min: 1 "
                  "k_max: 4 steps: 3 }"});
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Models, Recomputed, testing::ValuesIn(Variants()),
                         [](const auto& info) { return info.param.name; });

// Bytes of the CPU's tensors that are alive, and the most that ever were.
class LiveBytes final : public c10::Allocator {
 public:
  LiveBytes() : inner_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 200); }
  ~LiveBytes() override { c10::SetCPUAllocator(inner_, 200); }
  c10::DataPtr allocate(size_t n) override {
    auto* block = new Block{inner_->allocate(n), n};
    const int64_t live = live_ += static_cast<int64_t>(n);
    for (int64_t peak = peak_; live > peak && !peak_.compare_exchange_weak(peak, live);) {
    }
    return {block->data.get(), block, &Free, block->data.device()};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }
  static int64_t live() { return live_; }
  static int64_t peak() { return peak_; }
  static void ForgetPeak() { peak_ = live_.load(); }

 private:
  struct Block {
    c10::DataPtr data;
    size_t bytes;
  };
  static void Free(void* block) {
    const std::unique_ptr<Block> gone(static_cast<Block*>(block));
    live_ -= static_cast<int64_t>(gone->bytes);
  }

  c10::Allocator* inner_;
  // Static: tensors may outlive their allocator's turn.
  static inline std::atomic<int64_t> live_ = 0, peak_ = 0;
};

// Between the passes only what layers hand on is kept, and at no time the activations of more than
// one layer; after the backward pass nothing is left over.
TEST(RecomputedMemory, HoldsOneLayersActivations) {
  for (const bool is_xl : {true, false}) {
    int64_t held[2], peak[2];
    for (const bool recomputes : {false, true}) {
      const auto model = ModelOf(
          StrCat("seed: 3 model { ",
                 is_xl ? "transformer_xl { layers: 8 d_model: 32 heads: 2 d_head: 16 d_inner: 64 } "
                       : "decoder { layers: 8 d_model: 32 heads: 2 d_inner: 64 dropout: 0.1 } ",
                 Moe({.kind = "smoe"}, {.layers = "[0, 1, 2, 3]"}), "} train { steps: 10",
                 recomputes ? " recompute: true }" : " }"),
          kVocab);
      const at::Tensor tokens = Tokens(4, 64, 1);
      for (const auto& [name, tensor] : model->NamedParameters()) {
        tensor.mutable_grad() = at::zeros_like(tensor);
      }
      // Tables that stay with the model are made before.
      model->Forward(tokens, tokens, {}, nullptr, 0);
      const LiveBytes allocator;
      const int64_t before = LiveBytes::live();
      LiveBytes::ForgetPeak();
      {
        const at::Tensor loss = TotalLoss(model->Forward(
            tokens, tokens, {.is_training = true, .dropout = RandomKey{7}}, nullptr, 0));
        held[recomputes] = LiveBytes::live() - before;
        loss.backward();
      }
      peak[recomputes] = LiveBytes::peak() - before;
      EXPECT_EQ(LiveBytes::live(), before);
    }
    std::cout << "  " << (is_xl ? "transformer_xl" : "decoder") << ": held " << held[0] << " -> "
              << held[1] << " bytes, peak " << peak[0] << " -> " << peak[1] << "\n";
    EXPECT_LT(held[1], held[0] / 3);
    EXPECT_LT(peak[1], peak[0] / 2);
  }
}

at::Tensor Leaf(at::IntArrayRef sizes, uint64_t seed) {
  return Normal(sizes, seed).requires_grad_(true);
}

// A graph that is kept runs backward twice.
TEST(Recompute, RunsAgainOnceForEveryGraph) {
  const at::Tensor x = Leaf({3, 4}, 1), w = Leaf({4, 4}, 2);
  int runs = 0;
  at::Tensor y;
  const auto layer = [&] {
    ++runs;
    return (at::mm(x, w).tanh() * x).exp();
  };
  Recompute([&] { y = layer(); }, [&] { layer(); });
  const at::Tensor loss = y.sum();
  EXPECT_EQ(runs, 1);
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(runs, 2);
  const at::Tensor once = w.grad().clone();
  loss.backward();
  EXPECT_EQ(runs, 2);
  EXPECT_TRUE(at::equal(w.grad(), once * 2));
  w.mutable_grad() = at::Tensor();
  layer().sum().backward();
  EXPECT_TRUE(at::equal(w.grad(), once));
}

// What is not the same the second time is refused, not trained on.
TEST(Recompute, ADifferentSecondRunIsAnError) {
  const at::Tensor x = Leaf({3, 4}, 1);
  const auto failure = [&](const std::function<void()>& again) -> std::string {
    at::Tensor y;
    Recompute([&] { y = x.tanh().exp(); }, again);
    try {
      y.sum().backward();
    } catch (const c10::Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(failure([&] { x.tanh().exp(); }), "");
  EXPECT_THAT(failure([&] { x.narrow(0, 0, 2).tanh().exp(); }),
              HasSubstr("saves [2, 4] Double where it saved [3, 4]"));
  EXPECT_THAT(failure([&] { x.tanh(); }), HasSubstr("saves 1 tensors, it saved 2"));
  EXPECT_THAT(failure([&] { x.tanh().exp().exp(); }), HasSubstr("saves more than 2 tensors"));
  // And what goes wrong in it arrives where the backward pass was asked for.
  EXPECT_THAT(failure([] { TORCH_CHECK(false, "broken"); }), HasSubstr("broken"));
}

TEST(Recompute, PartsInOneAnotherAreRefused) {
  EXPECT_THROW(Recompute([] { Recompute([] {}, [] {}); }, [] {}), c10::Error);
  // And the refusal leaves nothing behind.
  const at::Tensor x = Leaf({2}, 1);
  Recompute([&] { x.exp(); }, [] {});
}

}  // namespace
}  // namespace switchyard::model
