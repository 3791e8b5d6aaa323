#include "common/spec/accounting.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/strings.h"
#include "switchyard/v1/spec.pb.h"
#include "tests/unit/common/spec/spec_builders.h"

namespace switchyard::spec {
namespace {

namespace pb = ::switchyard::v1;

// A preset on byte data; `more` are further lines of `base`.
pb::RunSpec Preset(std::string_view name, std::string_view more = "") {
  return *RunOf(
              StrCat("name: a\npreset: ", name, "\nbase:\n  data: {enwik8: {path: /data}}\n", more))
              .run;
}

// The configuration of the MCF-MoE study behind its plain baseline.
pb::RunSpec Smoe(std::string_view more = "") {
  return Preset("txl_mcf", StrCat("  model: {moe: {router: smoe}}\n", more));
}

// The same behind `router`, a value of model.moe.router.
pb::RunSpec Behind(std::string_view router) {
  // Some of the forms read later tokens; what they cost does not depend on that.
  return Preset("txl_mcf", StrCat("  model: {moe: {router: ", router,
                                  "}}\n  eval: {allow_noncausal: true}\n"));
}

// models.md 2.1 and 2.6: totals that reproduce the published models exactly.
TEST(Account, CountsThePublishedModels) {
  const pb::RunSpec official = *RunOf(
                                    "name: a\npreset: txl_official_enwik8_base\nbase: {data: "
                                    "{enwik8: {path: /data}}}\n")
                                    .run;
  EXPECT_EQ(Account(official, 204).params_total, 41'055'436U);

  EXPECT_EQ(Account(Smoe(), 204).params_total, 31'885'068U);
  EXPECT_EQ(Account(Smoe()).params_total, 31'903'424U);  // bytes256
  EXPECT_EQ(Account(Smoe(), 267'735).params_total, 126'323'511U);
  EXPECT_EQ(Account(Preset("txl_smoe_dropout_small"), 204).params_total, 19'521'804U);
  EXPECT_EQ(Account(Preset("txl_smoe_dropout_medium"), 204).params_total, 23'198'988U);
  EXPECT_EQ(Account(Preset("txl_smoe_dropout_12_layers"), 204).params_total, 26'876'172U);
  EXPECT_EQ(Account(Preset("txl_smoe_dropout_large"), 204).params_total, 32'391'948U);
  EXPECT_EQ(Account(Preset("txl_official_enwik8_large"), 204).params_total, 277'231'820U);
}

// models.md 2.1: adaptive softmax with one width, and with widths that fall by 4.
TEST(Account, CountsTheAdaptiveSoftmax) {
  const auto words = [](std::string_view preset) {
    return *RunOf(StrCat("name: a\npreset: ", preset, "\nbase: {data: {wikitext: {path: /d}}}\n"))
                .run;
  };
  EXPECT_EQ(Account(words("txl_official_wt103_base"), 267'735).params_total, 151'107'538U);
  EXPECT_EQ(Account(words("txl_official_wt103_large"), 267'735).params_total, 285'170'506U);
}

// models.md 4.2, 4.3 and 4.6: the gate of the study with and without layer embeddings and biases,
// every way to fuse, and what the printed integers count.
TEST(Account, CountsTheMcfGate) {
  const auto total = [](std::string_view options) {
    return Account(Behind(StrCat("{mcf: {", options, "}}")), 204).params_total;
  };
  EXPECT_EQ(Account(Preset("txl_mcf"), 204).params_total, 34'774'284U);
  EXPECT_EQ(total("layer_emb: none"), 34'768'652U);
  EXPECT_EQ(total("proj_bias: true"), 34'781'836U);
  EXPECT_EQ(Account(Behind("{mcf: {layer_emb: none}}")).params_total, 34'787'008U);
  EXPECT_EQ(Account(Behind("{mcf: {layer_emb: none}}"), 267'735).params_total, 129'207'095U);
  EXPECT_EQ(total("layer_emb: none, fusion: add"), 34'768'652U);
  EXPECT_EQ(total("layer_emb: none, fusion: concat"), 35'759'884U);
  EXPECT_EQ(total("layer_emb: none, fusion: gate"), 34'771'472U);
  EXPECT_EQ(total("layer_emb: none, fusion: multi_gate"), 35'761'292U);
  EXPECT_EQ(total("layer_emb: none, fusion: double_attn"), 37'586'700U);
  EXPECT_EQ(total("layer_emb: relative"), 34'768'652U + 4 * 3 * 352);
  EXPECT_EQ(total("layer_emb: fused_add"), 34'774'284U);
  EXPECT_EQ(total("history_layers: all"), 34'768'652U + 4 * 8 * 352);
  EXPECT_EQ(total("history_layers: all_plus_embedding"), 34'768'652U + 4 * 9 * 352);
  EXPECT_EQ(total("position: same_position_bias"), 34'774'284U + 4 * 8);
  EXPECT_EQ(total("tau_learned: true"), 34'774'284U + 4);
  EXPECT_EQ(total("use_global: false"), 31'885'068U);
  EXPECT_EQ(total("k_hist: 0"), 31'885'068U);
}

// models.md 4.5 and 2.10: n = 0, 1, 2, 3 blocks of history in the four gates, as one integer and by
// the formula.
TEST(Account, CountsTheMcfForwardPass) {
  EXPECT_EQ(Account(Preset("txl_mcf"), 204).flops_per_token_active, 58'386'688U);
  // Activations that are computed again are overhead.
  EXPECT_EQ(Account(Preset("txl_mcf", "  train: {recompute: true}\n"), 204).flops_per_token_active,
            58'386'688U);
  constexpr uint64_t d = 352, p = 512, T = 512, e = 16;
  const uint64_t smoe = 45'539'584U - 4 * 2 * d * e;
  const auto flops = [](std::string_view options) {
    return Account(Behind(StrCat("{mcf: {", options, "}}")), 204).flops_per_token_active;
  };
  const auto gates = [&](std::vector<uint64_t> blocks, uint64_t window, uint64_t kept) {
    uint64_t sum = smoe;
    for (const uint64_t n : blocks) {
      sum += 2 * d * (window + kept) + 2 * d * e;
      if (n > 0) sum += 4 * d * p + 4 * n * d * p + 4 * n * T * p;
    }
    return sum;
  };
  EXPECT_EQ(flops("k_hist: 3"), gates({0, 1, 2, 3}, 16, 8));
  EXPECT_EQ(flops("k_hist: 1, r: 4, k_loc: 2"), gates({0, 1, 1, 1}, 4, 2));
  EXPECT_EQ(flops("local_dir: both"), gates({0, 1, 2, 3}, 32, 8));
  EXPECT_EQ(flops("history_layers: all_plus_embedding, k_hist: 99"), gates({1, 2, 3, 4}, 16, 8));
  EXPECT_EQ(flops("use_local: false"), gates({0, 1, 2, 3}, 0, 0));
  EXPECT_EQ(flops("use_global: false"), gates({0, 0, 0, 0}, 16, 8));
  EXPECT_EQ(flops("fusion: concat"), gates({0, 1, 2, 3}, 16, 8) + 3 * 4 * d * d);
  EXPECT_EQ(flops("fusion: double_attn"),
            gates({0, 1, 2, 3}, 16, 8) + 3 * (2 * d * p + 4 * p * p + 4 * T * p));
  EXPECT_EQ(flops("router_mem_len: 100"), gates({0, 1, 2, 3}, 16, 8) + 6 * 4 * 100 * p);
}

// models.md 3.7, 2.6 and 2.10: shared and unshared cells.
TEST(Account, CountsTheRecurrentRouter) {
  const Accounting shared = Account(Behind("rmoe"), 204);
  EXPECT_EQ(shared.flops_per_token_active, 49'393'920U);
  EXPECT_EQ(shared.params_router, 4U * (352 * 256 + 256 * 16) + 6 * 256 * 256 + 6 * 256);
  const Accounting unshared = Account(Behind("{rmoe: {state_size: 512, gru_shared: false}}"), 204);
  EXPECT_EQ(unshared.params_router, 4U * (352 * 512 + 512 * 16) + 4U * (6 * 512 * 512 + 6 * 512));
}

// analyses.md C12: totals and forward FLOPs of the matched pair, and the same closed form for the
// presets that two cores train in minutes.
TEST(Account, CountsThePairAndTheTinyPresets) {
  const Accounting one = Account(Preset("pair_top1"), 50'304);
  const Accounting two = Account(Preset("pair_top2"), 50'304);
  EXPECT_EQ(one.params_total, 27'108'608U);
  EXPECT_EQ(two.params_total, 27'114'752U);
  EXPECT_EQ(one.params_expert, 12'582'912U);
  EXPECT_EQ(two.params_expert, 12'582'912U);
  EXPECT_EQ(one.params_router, 6'144U);
  EXPECT_EQ(two.params_router, 12'288U);
  EXPECT_EQ(one.flops_per_token_active, 36'777'984U);
  EXPECT_EQ(two.flops_per_token_active, 36'790'272U);

  struct Size {
    const char* preset;
    uint64_t total, expert, router;
  };
  for (const Size& size :
       std::vector<Size>{// V d + L (4 d^2 + 2 d + router) + d + experts
                         {"nano", 116'048, 2 * 8 * 2 * 64 * 32, 2 * (8 * 64 + 8)},
                         {"mcf_tiny", 2'878'784, 4 * 16 * (2 * 128 * 64 + 64 + 128),
                          4 * (4 * 128 * 512 + 4 * 128 + 16 * 128 + 16)},
                         {"fine_tiny", 1'361'024, 4 * 32 * 2 * 128 * 32, 4 * 32 * 128},
                         {"coarse_tiny", 1'348'736, 4 * 8 * 2 * 128 * 128, 4 * 8 * 128},
                         {"shared_tiny", 1'393'792, 4 * 33 * 2 * 128 * 32, 4 * 32 * 128},
                         {"pair1_tiny", 349'760, 4 * 4 * 2 * 64 * 128, 4 * 4 * 64},
                         {"pair2_tiny", 350'784, 4 * 8 * 2 * 64 * 64, 4 * 8 * 64},
                         {"st_tiny", 452'864, 4 * 128 * 2 * 128, 4 * (128 * 16 + 2 * 128 * 16)},
                         {"dom_tiny", 1'025'184, 3 * 16 * 2 * 96 * 96, 3 * 16 * 96}}) {
    const Accounting account = Account(Preset(size.preset), 256);
    EXPECT_EQ(account.params_total, size.total) << size.preset;
    EXPECT_EQ(account.params_expert, size.expert) << size.preset;
    EXPECT_EQ(account.params_router, size.router) << size.preset;
  }
  // The pairs cost the same but for the router's columns.
  EXPECT_EQ(Account(Preset("pair2_tiny"), 256).flops_per_token_active -
                Account(Preset("pair1_tiny"), 256).flops_per_token_active,
            2U * 4 * 64 * 4);
}

// analyses.md E0, every row of its table: totals of the three sizes with MLP and with static
// experts, routing, the dense controls, and one layer's FLOPs in both conventions.
TEST(Account, CountsTheGeometricRouter) {
  const auto st = [](std::string_view preset, std::string_view more = "") {
    return Preset(preset, more);
  };
  const auto total = [&](std::string_view preset, std::string_view more = "") {
    return Account(st(preset, more), 32'000).params_total;
  };
  constexpr std::string_view kStatic = "  model: {moe: {expert: {kind: static}}}\n";
  constexpr std::string_view kRms = "  model: {decoder: {norm: rmsnorm}}\n";
  const Accounting marathon = Account(st("st_marathon"), 32'000);
  EXPECT_EQ(marathon.params_total, 84'707'328U);
  EXPECT_EQ(marathon.params_total - 17 * 2 * 1024, 84'672'512U);  // without norms
  EXPECT_EQ(total("st_marathon", kRms), 84'689'920U);
  EXPECT_EQ(marathon.params_router, 1'572'864U);
  EXPECT_EQ(marathon.params_expert, 16'777'216U);
  EXPECT_EQ(total("st_marathon", kStatic) - 17 * 2 * 1024, 76'283'904U);
  EXPECT_EQ(total("st_small"), 37'631'488U);
  EXPECT_EQ(total("st_small", kRms), 37'624'576U);
  EXPECT_EQ(total("st_small") - 9 * 2 * 768, 37'617'664U);
  EXPECT_EQ(total("st_large"), 71'723'008U);
  EXPECT_EQ(total("st_large", kStatic), 65'431'552U);

  const auto dense = [&](uint32_t width) {
    pb::RunSpec run = st("st_marathon");
    run.mutable_model()->clear_moe();
    run.mutable_model()->mutable_decoder()->set_d_inner(width);
    return Account(run, 32'000).params_total;
  };
  EXPECT_EQ(dense(1120), marathon.params_total);
  EXPECT_EQ(dense(12), 66'553'856U);

  pb::RunSpec linear = st("st_marathon", "  model: {moe: {router: mixtral}}\n");
  EXPECT_EQ(Account(linear, 32'000).params_router, 8'388'608U);

  // One layer without attention: wide 1 x 12 and deep 3 x 4.
  const auto layer = [&](std::string_view more) {
    pb::RunSpec run = st("st_marathon", more);
    const uint64_t whole = Account(run, 32'000).flops_per_token_active;
    run.mutable_model()->mutable_moe()->mutable_layers()->RemoveLast();
    run.mutable_model()->mutable_decoder()->set_layers(7);
    // A layer's attention: four projections, scores and values.
    return whole - Account(run, 32'000).flops_per_token_active - 8 * 1024 * 1024 - 4 * 256 * 1024;
  };
  EXPECT_EQ(layer(""), 311'296U);
  EXPECT_EQ(layer("  model: {moe: {top_k: 4, router: {cosine: {hops: 3}}}}\n"), 574'464U);
  EXPECT_EQ(layer("  model: {moe: {router: {cosine: {hops: 3, hop_top_k: [6, 4, 2]}}}}\n"),
            131'072U + 3 * 131'072 + 2 * (6 + 4) * 64 + 49'152);
  // A projection for each later hop; a number for each layer (models.md 3.9).
  EXPECT_EQ(total("st_marathon",
                  "  model: {moe: {top_k: 4, router: {cosine: {hops: 3, hop_projection: "
                  "own_projection, magnitude: true}}}}\n"),
            84'707'328U + 8 * 2 * 1024 * 64 + 8);
  EXPECT_EQ(Account(st("st_marathon", "  model: {moe: {top_k: 4, router: {cosine: {hops: 3}}}}\n"),
                    32'000)
                .params_active,
            84'707'328U - 8U * (1024 - 12) * 2 * 1024);
}

// models.md 2.6: the dense controls, whole and only active alike.
TEST(Account, CountsTheDenseControls) {
  const pb::RunSpec dense = *RunOf(R"(name: dense
base:
  kind: train
  data: {enwik8: {path: /data}}
  model: {transformer_xl: {layers: 8, d_model: 352, heads: 8, d_head: 64, d_inner: 8192}}
  train: {steps: 1, batch: 48, target_len: 512, memory_len: 512, optimizer: {adam: {lr: 7e-4}}}
)")
                                 .run;
  EXPECT_EQ(Account(dense, 204).params_total, 53'498'956U);
  EXPECT_EQ(Account(dense).params_total, 53'517'312U);
  EXPECT_EQ(Account(dense, 267'735).params_total, 147'937'399U);
  EXPECT_EQ(Account(dense, 204).params_active, 53'498'956U);
  EXPECT_EQ(Account(dense, 204).flops_per_token_active, 129'118'464U);

  pb::RunSpec narrow = dense;
  narrow.mutable_model()->mutable_transformer_xl()->set_d_inner(512);
  EXPECT_EQ(Account(narrow, 204).params_total, 10'183'756U);
  narrow.mutable_model()->mutable_transformer_xl()->set_d_inner(1024);
  EXPECT_EQ(Account(narrow, 204).params_total, 13'071'436U);

  // Iso-active: the layers that have experts elsewhere are as wide as two of them.
  const pb::RunSpec iso = Preset("txl_mcf", "  model: {moe: {router: {dense: {d_ff: 1024}}}}\n");
  EXPECT_EQ(Account(iso, 204).params_total, 11'627'596U);
  EXPECT_EQ(Account(iso, 204).params_active, 11'627'596U);
  EXPECT_EQ(Account(iso, 204).flops_per_token_active, 45'494'528U);
  EXPECT_EQ(Account(iso, 204).params_expert, 0U);
}

// models.md 2.10: what one token touches, and what its forward pass costs.
TEST(Account, CountsActivePartsAndFlops) {
  const Accounting mcf = Account(Smoe(), 204);
  EXPECT_TRUE(mcf.vocab_known);
  EXPECT_EQ(mcf.params_active, 11'651'596U);
  EXPECT_EQ(mcf.flops_per_token_active, 45'539'584U);
  EXPECT_EQ(mcf.params_router, 4U * 5'648U);
  EXPECT_EQ(mcf.params_expert, 4U * 5'780'992U);
  EXPECT_EQ(mcf.params_embedding, 72'012U);
  EXPECT_EQ(Account(Smoe(), 267'735).flops_per_token_active, 233'881'408U);
}

// A hash router has no weights and costs nothing; the experts stay.
TEST(Account, CountsNoGateForHash) {
  const Accounting smoe = Account(Smoe(), 204);
  const Accounting hash = Account(Preset("txl_mcf", "  model: {moe: {router: hash}}\n"), 204);
  EXPECT_EQ(hash.params_router, 0U);
  EXPECT_EQ(smoe.params_total - hash.params_total, 4U * 5'648U);
  EXPECT_EQ(smoe.flops_per_token_active - hash.flops_per_token_active, 4U * 2 * 352 * 16);
}

// models.md 2.6 and 2.10: the other linear kinds cost what smoe costs, HyperRouter's frozen
// networks are counted, once when they are shared; shared experts belong to the experts.
TEST(Account, CountsTheOtherRouters) {
  const auto with = [](std::string_view router) {
    return Account(Preset("txl_mcf", StrCat("  model: {moe: {router: ", router, "}}\n")), 204);
  };
  const Accounting smoe = Account(Smoe(), 204);
  EXPECT_EQ(with("smoe_dropout").params_total, 31'885'068U);
  EXPECT_EQ(with("smoe_dropout").flops_per_token_active, 45'539'584U);
  const Accounting hyper = with("hyper_router");
  EXPECT_EQ(hyper.params_total, 38'031'500U);
  EXPECT_EQ(hyper.params_router, 4U * 1'542'256U);
  EXPECT_EQ(hyper.flops_per_token_active, 45'539'584U);
  const uint64_t network = 1'542'256U - 352;
  EXPECT_EQ(with("{hyper_router: {shared_hypernet: true}}").params_total,
            38'031'500U - 3 * network);
  EXPECT_EQ(with("mixtral").params_total, 31'885'068U - 4 * 16);
  EXPECT_EQ(with("noisy_topk").params_router, 4U * 2 * 16 * 352);
  EXPECT_EQ(with("xmoe").params_router, 4U * 16 * (352 + 16));
  EXPECT_EQ(with("xmoe").flops_per_token_active - smoe.flops_per_token_active, 4U * 2 * 16 * 16);
  const Accounting shared =
      Account(Preset("txl_mcf", "  model: {moe: {shared_experts: 2, router: smoe}}\n"), 204);
  EXPECT_EQ(shared.params_expert - smoe.params_expert, 4U * (2 * 352 * 1024 + 1024 + 352));
  EXPECT_EQ(shared.params_active - smoe.params_active, shared.params_expert - smoe.params_expert);
  EXPECT_EQ(shared.flops_per_token_active - smoe.flops_per_token_active, 4U * 4 * 352 * 1024);
}

// Words have no vocabulary until the data is read: its part is left out and marked.
TEST(Account, MarksAnUnknownVocabulary) {
  const pb::RunSpec run =
      *RunOf("name: a\npreset: txl_mcf\nbase: {data: {wikitext: {path: /d}}}\n").run;
  EXPECT_FALSE(Account(run).vocab_known);
  EXPECT_EQ(Account(run).params_embedding, 0U);
  EXPECT_EQ(Account(run).params_total + 267'735U * 353, Account(run, 267'735).params_total);
  EXPECT_EQ(VocabFromData(run), 0U);
}

// The matched-compute pair of models.md 2.7, whose totals are published; their gates have no biases
// and ours have.
TEST(Account, CountsDecoders) {
  const auto pair = [](std::string_view moe) {
    return *RunOf(StrCat(R"(name: pair
base:
  kind: train
  data: {enwik8: {path: /data}}
  model:
    decoder: {layers: 6, d_model: 256, heads: 8, d_inner: 1024, position: learned, context: 256, mlp: gelu, tied: true}
    moe: {layers: [0, 1, 2, 3, 4, 5], )",
                         moe, R"(}
  train: {steps: 1, batch: 1, target_len: 256, optimizer: {adamw: {lr: 3e-4}}}
)"))
                .run;
  };
  const Accounting top1 =
      Account(pair("experts: 4, top_k: 1, router: {smoe: {}, gate_norm: softmax_full}"), 50'304);
  const Accounting top2 = Account(pair("experts: 8, expert: {width: 512}, router: smoe"), 50'304);
  EXPECT_EQ(
      Account(pair("experts: 4, top_k: 1, router: {mixtral: {}, gate_norm: softmax_full}"), 50'304)
          .params_total,
      27'108'608U);
  EXPECT_EQ(top1.params_total, 27'108'608U + 6 * 4);
  EXPECT_EQ(top2.params_total, 27'114'752U + 6 * 8);
  EXPECT_EQ(top1.flops_per_token_active, 36'777'984U);
  EXPECT_EQ(top2.flops_per_token_active, 36'790'272U);
}

// By hand: grouped keys, untied head, attention biases, three matrices, LayerNorm with bias.
TEST(Account, CountsADecoderOfOtherOptions) {
  const pb::RunSpec run = *RunOf(R"(name: options
base:
  kind: train
  data: {enwik8: {path: /data}}
  model: {decoder: {layers: 2, d_model: 64, heads: 4, kv_heads: 2, d_inner: 96, norm: layernorm, attn_bias: true}}
  train: {steps: 1, batch: 1, target_len: 32, optimizer: {adamw: {lr: 3e-4}}}
)")
                               .run;
  constexpr uint64_t kAttention = 2 * 64 * 64 + 2 * 64 * 32 + (64 + 2 * 32 + 64);
  constexpr uint64_t kLayer = kAttention + 3 * 64 * 96 + 2 * 128;
  const Accounting sum = Account(run);
  EXPECT_EQ(sum.params_total, 2 * kLayer + 128 + 2 * 256 * 64);
  EXPECT_EQ(sum.flops_per_token_active,
            2 * (2 * (2 * 64 * 64 + 2 * 64 * 32) + 6 * 64 * 96 + 4 * 32 * 64) + 2 * 256 * 64);
}

}  // namespace
}  // namespace switchyard::spec
