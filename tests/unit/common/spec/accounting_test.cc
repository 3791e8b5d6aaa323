#include "common/spec/accounting.h"

#include <string>

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

// models.md 2.1 and 2.6: totals that reproduce the published models exactly.
TEST(Account, CountsThePublishedModels) {
  const pb::RunSpec official = *RunOf(
                                    "name: a\npreset: txl_official_enwik8_base\nbase: {data: "
                                    "{enwik8: {path: /data}}}\n")
                                    .run;
  EXPECT_EQ(Account(official, 204).params_total, 41'055'436U);

  const pb::RunSpec mcf = Preset("txl_mcf");
  EXPECT_EQ(Account(mcf, 204).params_total, 31'885'068U);
  EXPECT_EQ(Account(mcf).params_total, 31'903'424U);  // bytes256
  EXPECT_EQ(Account(mcf, 267'735).params_total, 126'323'511U);
  EXPECT_EQ(Account(Preset("txl_smoe_dropout_small"), 204).params_total, 19'521'804U);
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
  const Accounting mcf = Account(Preset("txl_mcf"), 204);
  EXPECT_TRUE(mcf.vocab_known);
  EXPECT_EQ(mcf.params_active, 11'651'596U);
  EXPECT_EQ(mcf.flops_per_token_active, 45'539'584U);
  EXPECT_EQ(mcf.params_router, 4U * 5'648U);
  EXPECT_EQ(mcf.params_expert, 4U * 5'780'992U);
  EXPECT_EQ(mcf.params_embedding, 72'012U);
  EXPECT_EQ(Account(Preset("txl_mcf"), 267'735).flops_per_token_active, 233'881'408U);
}

// A hash router has no weights and costs nothing; the experts stay.
TEST(Account, CountsNoGateForHash) {
  const Accounting smoe = Account(Preset("txl_mcf"), 204);
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
  const Accounting smoe = Account(Preset("txl_mcf"), 204);
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
      Account(Preset("txl_mcf", "  model: {moe: {shared_experts: 2}}\n"), 204);
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
